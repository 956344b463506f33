"""The key-value store of torch.distributed, where ranks put down their names.

Backends say which connection broke, never who is missing. The store does: a name that is not there after a moment is
that of a rank that is not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

__all__ = ["default_store", "put_down", "wait_for"]


def default_store() -> Any:
    """The store that all ranks of the job share."""
    return dist.distributed_c10d._get_default_store()


def put_down(store: Any, name: str) -> None:
    """Put `name` into the store."""
    store.set(name, "here")


def wait_for(
    store: Any, names: Sequence[str], *, seconds: float, pause: float = 0.02, stop: Callable[[], bool] = lambda: False
) -> list[bool]:
    """Which of `names` are there: as soon as all are, or `stop` says so, or after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        here = [bool(store.check([name])) for name in names]
        if all(here) or time.monotonic() >= end or stop():
            return here
        time.sleep(pause)

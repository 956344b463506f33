"""What others see of a probed module: pickles and deep copies without the weighing, and its parameters in order.

A script may save a whole module with `torch.save`, copy it for a moving average, or send it to another process. None of
these may carry the probe or the hooks. And where parameters of a module and of such a copy are walked side by side, the
probe comes last, so that it stands beside nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import nn

from weighbridge.weigh import probe

__all__ = ["install"]

OURS = __name__.rpartition(".")[0] + "."


def install() -> None:
    """Hook how modules are pickled and copied, and how their parameters are walked."""
    _leave_weighing_out_of_state()
    _walk_the_probe_last()


def _leave_weighing_out_of_state() -> None:
    original = nn.Module.__getstate__

    @functools.wraps(original)
    def state_without_weighing(self: nn.Module) -> Any:
        state = original(self)
        return {key: _without_ours(value) for key, value in state.items()} if isinstance(state, dict) else state

    nn.Module.__getstate__ = state_without_weighing


def _without_ours(value: Any) -> Any:
    """`value`, one attribute of a module; a dict of parameters or hooks without those of the weighing."""
    if not isinstance(value, dict):
        return value
    ours = [key for key, entry in value.items() if key == probe.NAME or _is_our_hook(entry)]
    if not ours:
        return value
    kept = value.copy()
    for key in ours:
        del kept[key]
    return kept


def _is_our_hook(entry: Any) -> bool:
    hook = getattr(entry, "hook", entry)  # torch wraps the hooks of state dicts
    return callable(hook) and str(getattr(hook, "__module__", "")).startswith(OURS)


def _walk_the_probe_last() -> None:
    original = nn.Module.named_parameters

    @functools.wraps(original)
    def probe_last(self: nn.Module, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        probes = []
        for name, parameter in original(self, *args, **kwargs):
            # By name: fully_shard replaces the parameter, and checks that the order of names stays as it was.
            if name.rpartition(".")[2] == probe.NAME:
                probes.append((name, parameter))
            else:
                yield name, parameter
        yield from probes

    nn.Module.named_parameters = probe_last

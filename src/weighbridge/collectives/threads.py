"""Ranks as threads of one process: for tests, yours and ours, and for tools that have no transport.

def work(group):
    tally = weighbridge.Tally(group)
    tally.add("loss", losses[group.rank])
    return tally.reduce()["loss"].value

run_ranks(3, work)     # [value, value, value]
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from weighbridge.collectives.protocol import missing_ranks_error

__all__ = ["ThreadRank", "run_ranks"]

T = TypeVar("T")
_numbers = itertools.count()


class _Table:
    """Where threads put down what they bring, one row a call."""

    def __init__(self, world_size: int, limit: float) -> None:
        self.number = next(_numbers)
        self.world_size = world_size
        self.limit = limit
        self.ready = threading.Condition()
        self.rows: dict[int, dict[int, Any]] = {}
        self.taken: dict[int, int] = {}

    def exchange(self, call: int, rank: int, value: Any, verb: str) -> list[Any]:
        end = time.monotonic() + self.limit
        with self.ready:
            row = self.rows.setdefault(call, {})
            row[rank] = value
            self.ready.notify_all()
            while len(row) < self.world_size:
                if not self.ready.wait(end - time.monotonic()) and len(row) < self.world_size:
                    missing = sorted(set(range(self.world_size)) - set(row))
                    raise missing_ranks_error(
                        missing, rank=rank, world_size=self.world_size, limit=self.limit, verb=verb
                    )
            self.taken[call] = self.taken.get(call, 0) + 1
            if self.taken[call] == self.world_size:
                del self.rows[call], self.taken[call]
            return [row[each] for each in range(self.world_size)]


class ThreadRank:
    """One thread's end of a group of threads; made by `run_ranks`."""

    def __init__(self, table: _Table, rank: int) -> None:
        self._table = table
        self._calls = 0
        self.identity = (table.number, rank)
        self.rank = rank
        self.world_size = table.world_size

    def sum(self, lanes: Any) -> npt.NDArray[np.int64]:
        """The elementwise sum over threads of `lanes` [N]."""
        brought = np.array(lanes.cpu() if hasattr(lanes, "cpu") else lanes, dtype=np.int64)
        total: npt.NDArray[np.int64] = np.sum(self._exchange(brought, "sum"), axis=0, dtype=np.int64)
        return total

    def gather(self, text: str) -> list[str]:
        """The texts of all threads, in order of rank."""
        return self._exchange(text, "gather")

    def _exchange(self, value: Any, verb: str) -> list[Any]:
        self._calls += 1
        return self._table.exchange(self._calls, self.rank, value, verb)


def run_ranks(world_size: int, work: Callable[[ThreadRank], T], *, limit: float = 10.0) -> list[T]:
    """Run `work(group)` in `world_size` threads that form a group; the results in order of rank.

    Args:
        world_size: number of ranks.
        work: what each rank does; `group.rank` says which one it is.
        limit: seconds that a rank waits for the others.

    Raises:
        CollectiveError: a rank waited in vain. Any other error of a rank is raised in preference to that.

    >>> run_ranks(3, lambda group: int(group.sum([group.rank])[0]))
    [3, 3, 3]
    """
    table = _Table(world_size, limit)
    with ThreadPoolExecutor(world_size) as pool:
        futures = [pool.submit(work, ThreadRank(table, rank)) for rank in range(world_size)]
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    for error in sorted(errors, key=lambda error: hasattr(error, "missing")):
        raise error
    return [future.result() for future in futures]

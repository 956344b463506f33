"""Medians of alternating runs: both sides of a ratio are timed in one process, turn by turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """One row of the results: ours against theirs, in seconds (medians), and the goal for ours / theirs."""

    what: str
    against: str
    ours: float
    theirs: float
    goal: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def medians(*works: Callable[[], object], repeats: int = 31) -> list[float]:
    """The median seconds of each of `works`, run in turn so that a slow moment meets all of them."""
    for work in works:
        work()
    rounds = [[seconds(work) for work in works] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]

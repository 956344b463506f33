"""The running window: what was seen since the last optimizer step on this rank, as tensors until the step is over.

Counts and sums stay on their device until they are written, so that weighing adds one synchronisation a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["Entry", "Passes", "Window"]


@dataclass
class Entry:
    """One loss call or mark, with one row a sequence (or one in all)."""

    phase: str
    microbatch: int
    term: str
    site: str
    rows: int
    slots: tuple[int, int] | None
    length: int
    losses: Tensor  # [items] unreduced, no graph
    valid: Tensor | None  # [items]
    mass: Tensor | None  # [items]
    contents: Tensor | None  # int64 [rows]
    constant: float
    dtype: str
    marked: bool = False
    scalar: bool = False
    coefficient: float | None = None
    user_masks: bool = False  # reduction="none": what the user leaves out shows in the gradient only
    gradient: Tensor | None = None  # [items] d(loss of this microbatch on this rank) / d(item), where user_masks
    replayed: bool = False

    def to_rows(self) -> dict[str, Any]:
        """The entry as fields of a record line; one copy from the device."""
        counted = torch.ones_like(self.losses, dtype=torch.bool) if self.valid is None else self.valid
        if self.gradient is not None:
            counted = counted & (self.gradient != 0)
        losses = torch.where(counted, self.losses.double(), 0.0)
        mass = counted.double() if self.mass is None else torch.where(counted, self.mass.double(), 0.0)
        grid = (self.rows, -1)
        columns = torch.stack(
            [counted.reshape(grid).sum(1).double(), mass.reshape(grid).sum(1), losses.reshape(grid).sum(1)]
        )
        tokens, masses, sums = columns.cpu().tolist()
        digests = None if self.contents is None else self.contents.tolist()
        contents = None if digests is None else [f"{value & (2**64 - 1):016x}" for value in digests]
        return {
            "phase": self.phase,
            "microbatch": self.microbatch,
            "term": self.term,
            "site": self.site,
            "slots": self.slots,
            "length": self.length,
            "tokens": [int(count) for count in tokens],
            "mass": masses,
            "loss_sum": sums,
            "content": contents,
            "constant": self.constant,
            "dtype": self.dtype,
            "marked": self.marked,
            "scalar": self.scalar,
            "coefficient": self.coefficient,
            "within": self._spread_within(counted),
        }

    def _spread_within(self, counted: Tensor) -> float:
        """Largest relative difference between the weights of two counted items of this call on this rank."""
        if self.gradient is None or not bool(counted.any()):
            return 0.0
        weights = self.gradient[counted].double()
        return float((weights.max() - weights.min()) / weights.abs().max())


@dataclass
class Window:
    """The entries since the last step, and where the running microbatch stands."""

    entries: list[Entry] = field(default_factory=list)
    microbatch: int = -1
    has_loss: bool = False

    def begin_microbatch(self) -> None:
        """A forward of the outermost module began; it opens a microbatch if the one before has had its loss."""
        if self.microbatch < 0 or self.has_loss:
            self.microbatch += 1
            self.has_loss = False

    def add(self, entry: Entry) -> None:
        self.end_microbatch()
        entry.microbatch = self.microbatch
        self.entries.append(entry)

    def end_microbatch(self) -> None:
        """The running microbatch has its loss: the next forward opens another one."""
        self.microbatch = max(self.microbatch, 0)
        self.has_loss = True

    @property
    def microbatches(self) -> int:
        return self.microbatch + 1

    def replay_of(self, term: str, site: str, items: int) -> Entry | None:
        """The entry that a recomputation (activation checkpointing) runs again, once."""
        for entry in self.entries:
            if not entry.replayed and (entry.term, entry.site) == (term, site) and entry.losses.numel() == items:
                entry.replayed = True
                return entry
        return None


class Passes:
    """Evaluation passes: the batches between two trainings, and which of them a reported number covers.

    Two evaluations may follow each other with no training between; a number that was logged ends the range of batches
    that it and its companions cover.
    """

    def __init__(self) -> None:
        self.window = Window()
        self.number = 0  # of the pass
        self._start = 0  # first batch that the next reported number covers
        self._reported_at: int | None = None
        self._written = 0

    @property
    def batches(self) -> int:
        return self.window.microbatches

    def begin_batch(self) -> None:
        if self._reported_at is not None:
            self._start, self._reported_at = self._reported_at, None
        self.window.begin_microbatch()

    def leave(self) -> None:
        """Training goes on."""
        if self.batches:
            self.window = Window()
            self.number += 1
            self._start, self._reported_at, self._written = 0, None, 0

    def unwritten(self) -> list[dict[str, Any]]:
        """Rows of the batches that no record holds yet."""
        rows = [dict(entry.to_rows(), evaluation=self.number) for entry in self.window.entries[self._written :]]
        self._written = len(self.window.entries)
        return rows

    def reported(self, phase: str) -> dict[str, Any]:
        """What to add to the record of a number logged now."""
        if phase != "evaluation":
            return {}
        self._reported_at = self.batches
        return {"evaluation": self.number, "batches": [self._start, self.batches]}

"""The table of pieces: the only thing that crosses between the parts of weighbridge.

A step is fed by pieces (rank, microbatch). The smallest weighed part of a piece is a `Row`: one sequence where the
loss call showed a batch dimension, the whole microbatch where it did not. A `Table` holds the rows of one term of the
loss in one optimizer step (or one evaluation pass) over all ranks. It may come from a weighed run, from a file of
rows, or from a catalogue case; what reads it does not care.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from weighbridge.errors import InputError

__all__ = ["Columns", "Row", "Table"]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of one microbatch of one rank (or the whole microbatch, where no batch dimension shows).

    Attributes:
        rank: rank in the default process group, from 0.
        microbatch: index within the step on this rank, from 0.
        sequence: index within the microbatch, from 0.
        tokens: number of items that count in the loss, at least 0.
        mass: sum of the items' own weights; equals `tokens` unless the loss has class weights.
        loss_sum: sum of the items' losses (each times its own weight), float64, without any tracer constant.
        length: positions including masked and padded ones, or None where unknown.
        content: digest of inputs and labels, equal for equal items, or None where unknown.
        constant: what the tracer added to every counted item's loss (times the item's own weight).
        weight: d(total loss of the step) / d(`loss_sum`) summed over the row's items: `mass` times the weight of
            one item. None where it was not read.
    """

    rank: int
    microbatch: int
    sequence: int
    tokens: int
    mass: float
    loss_sum: float
    length: int | None = None
    content: str | None = None
    constant: float = 0.0
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """The rows of a table as arrays [rows], and the table's totals, for rules to compute with."""

    rank: npt.NDArray[np.int64]
    microbatch: npt.NDArray[np.int64]
    mass: npt.NDArray[np.float64]
    length: npt.NDArray[np.float64]
    loss_sum: npt.NDArray[np.float64]
    constant: npt.NDArray[np.float64]
    weight: npt.NDArray[np.float64]  # NaN where not read
    first: npt.NDArray[np.float64]  # 0 where an equal item came before, in order of microbatch, rank, sequence; else 1
    world_size: int
    microbatches: int


@dataclass(frozen=True)
class Table:
    """The rows of one term of one optimizer step or evaluation pass, over all ranks.

    Attributes:
        rows: in order of rank, microbatch, sequence.
        world_size: number of ranks, those without rows included.
        microbatches: microbatches per rank in this step (the largest number over ranks).
        step: index of the optimizer step, or of the evaluation pass.
        term: name of the loss term.
    """

    rows: tuple[Row, ...]
    world_size: int
    microbatches: int
    step: int = 0
    term: str = "loss"
    columns: Columns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for index, row in enumerate(self.rows):
            if not 0 <= row.rank < self.world_size:
                raise InputError(
                    f"rank is {row.rank} in row {index} of step {self.step}. A rank lies between 0 and "
                    f"{self.world_size - 1}, one less than the world size. Correct the row."
                )
            if row.tokens < 0 or not np.isfinite(row.mass) or row.mass < 0:
                raise InputError(
                    f"count is {row.tokens} (mass {row.mass}) in row {index} of step {self.step}. "
                    "A count is a whole number of at least 0. Correct the row."
                )
        object.__setattr__(self, "columns", self._columns())

    def _columns(self) -> Columns:
        def floats(values: Iterable[float | int | None]) -> npt.NDArray[np.float64]:
            return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

        return Columns(
            rank=np.array([row.rank for row in self.rows], dtype=np.int64),
            microbatch=np.array([row.microbatch for row in self.rows], dtype=np.int64),
            mass=floats(row.mass for row in self.rows),
            length=floats(row.length for row in self.rows),
            loss_sum=floats(row.loss_sum for row in self.rows),
            constant=floats(row.constant for row in self.rows),
            weight=floats(row.weight for row in self.rows),
            first=self._first(),
            world_size=self.world_size,
            microbatches=self.microbatches,
        )

    def _first(self) -> npt.NDArray[np.float64]:
        """1 for each row whose item was not seen before in the order in which ranks' batches are gathered."""
        first, seen = np.ones(len(self.rows), dtype=np.float64), set()
        places = [(row.microbatch, row.rank, row.sequence, index) for index, row in enumerate(self.rows)]
        for *_, index in sorted(places):
            content = self.rows[index].content
            if content is not None and content in seen:
                first[index] = 0.0
            seen.add(content)
        return first

    @classmethod
    def from_counts(
        cls, counts: Sequence[Sequence[Sequence[int]]], *, length: int | None = None, step: int = 0
    ) -> Table:
        """A table without losses from `counts[rank][microbatch] = [tokens of each sequence]`; [] has no sequence."""
        rows = tuple(
            Row(rank, microbatch, sequence, tokens, float(tokens), 0.0, length=length)
            for rank, microbatches in enumerate(counts)
            for microbatch, sequences in enumerate(microbatches)
            for sequence, tokens in enumerate(sequences)
        )
        return cls(rows, world_size=len(counts), microbatches=max((len(m) for m in counts), default=0), step=step)

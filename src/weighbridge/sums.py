"""The sums over ranks, microbatches and pieces that the formulas of `weighbridge.rules` are written with.

`Sums` takes the tables of several steps at once and answers with arrays that have one entry a row, so that a formula
such as `1 / (s.W * s.n_r)` reads like the text of its rule and is computed for all steps in one go.

    n     mass of the row                       n_r, n_m, n_rm   mass of the rank, microbatch, piece
    N     mass of the step                      B, B_r, B_rm     non-empty rows of the step, rank, piece
    W, M  ranks, microbatches per rank          W_plus, M_plus   ranks, microbatches that hold any mass
    S, S_r, S_rm  rows, those without mass too      F, F_rm      rows, repeated items left out
    K_r   the rank's microbatches with mass     K_plus           pieces with mass
    T, T_r, T_rm  padded lengths (NaN: unknown) n_last           mass of the rank's last microbatch
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weighbridge.pieces import Columns

__all__ = ["Flags", "Floats", "Integers", "Sums", "Totals"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Totals:
    """What holds for a whole step: arrays [tables], for factors to compute with."""

    W: Floats
    M: Floats
    N: Floats
    B: Floats
    T: Floats
    W_plus: Floats
    M_plus: Floats
    K_plus: Floats
    n_first_rank: Floats  # mass of rank 0
    n_largest_rank: Floats  # mass of the rank with most
    n_last_microbatch: Floats  # mass of the last microbatch over all ranks


class Sums:
    """Group sums over the rows of one or more tables; every property is an array [rows] unless said otherwise."""

    def __init__(self, tables: Sequence[Columns]) -> None:
        sizes = [len(columns.mass) for columns in tables]
        self.tables = len(sizes)
        self.table: Integers = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        self.rank = _joined([columns.rank for columns in tables])
        self.microbatch = _joined([columns.microbatch for columns in tables])
        self.n: Floats = np.concatenate([np.zeros(0), *[columns.mass for columns in tables]])
        self.first: Floats = np.concatenate([np.zeros(0), *[columns.first for columns in tables]])
        self.length: Floats = np.concatenate([np.zeros(0), *[columns.length for columns in tables]])
        self.world = np.array([columns.world_size for columns in tables], dtype=np.float64)
        self.accumulation = np.array([columns.microbatches for columns in tables], dtype=np.float64)
        self._ranks = max(1, int(self.world.max(initial=1)), int(self.rank.max(initial=0)) + 1)
        self._microbatches = max(1, int(self.accumulation.max(initial=1)), int(self.microbatch.max(initial=0)) + 1)

    def restricted(self, rows: Flags, *, world: bool = False, microbatches: bool = False) -> Sums:
        """The sums as seen by a program that knows only `rows` [rows].

        `world` and `microbatches` say that it also believes in one rank, or in one microbatch.
        """
        part = object.__new__(Sums)
        part.tables = self.tables
        part.table, part.rank, part.microbatch = self.table[rows], self.rank[rows], self.microbatch[rows]
        part.rank, part.microbatch = part.rank * (not world), part.microbatch * (not microbatches)
        part.n, part.length, part.first = self.n[rows], self.length[rows], self.first[rows]
        part.world = np.ones_like(self.world) if world else self.world
        part.accumulation = np.ones_like(self.accumulation) if microbatches else self.accumulation
        part._ranks, part._microbatches = self._ranks, self._microbatches
        return part

    # ---- grids: [tables, ranks], [tables, microbatches], [tables, ranks, microbatches]

    def _grid(self, values: Floats) -> Floats:
        shape = (self.tables, self._ranks, self._microbatches)
        index = np.ravel_multi_index((self.table, self.rank, self.microbatch), shape) if len(values) else self.table
        flat = np.bincount(index, weights=values, minlength=int(np.prod(shape)))
        return flat.astype(np.float64).reshape(shape)

    @cached_property
    def mass_grid(self) -> Floats:
        """Mass of every piece [tables, ranks, microbatches]."""
        return self._grid(self.n)

    @cached_property
    def sequence_grid(self) -> Floats:
        """Non-empty rows of every piece [tables, ranks, microbatches]."""
        return self._grid((self.n > 0).astype(np.float64))

    @cached_property
    def row_grid(self) -> Floats:
        """Rows of every piece, those without mass too [tables, ranks, microbatches]."""
        return self._grid(np.ones_like(self.n))

    @cached_property
    def length_grid(self) -> Floats:
        """Padded positions of every piece [tables, ranks, microbatches]; NaN where one row's length is unknown."""
        return self._grid(self.length)

    def _of_rank(self, grid: Floats) -> Floats:
        return np.asarray(grid.sum(axis=2)[self.table, self.rank])

    def _of_piece(self, grid: Floats) -> Floats:
        return np.asarray(grid[self.table, self.rank, self.microbatch])

    @cached_property
    def totals(self) -> Totals:
        """The sums of whole steps [tables]."""
        mass, by_rank, by_microbatch = self.mass_grid, self.mass_grid.sum(axis=2), self.mass_grid.sum(axis=1)
        last = np.clip(self.accumulation.astype(np.int64) - 1, 0, None)
        return Totals(
            W=self.world,
            M=self.accumulation,
            N=mass.sum(axis=(1, 2)),
            B=self.sequence_grid.sum(axis=(1, 2)),
            T=self.length_grid.sum(axis=(1, 2)),
            W_plus=(by_rank > 0).sum(axis=1).astype(np.float64),
            M_plus=(by_microbatch > 0).sum(axis=1).astype(np.float64),
            K_plus=(mass > 0).sum(axis=(1, 2)).astype(np.float64),
            n_first_rank=by_rank[:, 0],
            n_largest_rank=by_rank.max(axis=1),
            n_last_microbatch=by_microbatch[np.arange(self.tables), last],
        )

    # ---- the letters of the formulas

    @cached_property
    def W(self) -> Floats:
        """Ranks."""
        return np.asarray(self.world[self.table])

    @cached_property
    def M(self) -> Floats:
        """Microbatches per rank."""
        return np.asarray(self.accumulation[self.table])

    @cached_property
    def N(self) -> Floats:
        """Mass of the step."""
        return np.asarray(self.totals.N[self.table])

    @cached_property
    def B(self) -> Floats:
        """Non-empty rows of the step."""
        return np.asarray(self.totals.B[self.table])

    @cached_property
    def T(self) -> Floats:
        """Padded positions of the step."""
        return np.asarray(self.totals.T[self.table])

    @cached_property
    def W_plus(self) -> Floats:
        """Ranks with mass."""
        return np.asarray(self.totals.W_plus[self.table])

    @cached_property
    def M_plus(self) -> Floats:
        """Microbatches that hold mass on any rank."""
        return np.asarray(self.totals.M_plus[self.table])

    @cached_property
    def K_plus(self) -> Floats:
        """Pieces with mass."""
        return np.asarray(self.totals.K_plus[self.table])

    @cached_property
    def n_r(self) -> Floats:
        """Mass of the row's rank."""
        return self._of_rank(self.mass_grid)

    @cached_property
    def n_m(self) -> Floats:
        """Mass of the row's microbatch over all ranks."""
        return np.asarray(self.mass_grid.sum(axis=1)[self.table, self.microbatch])

    @cached_property
    def n_rm(self) -> Floats:
        """Mass of the row's piece."""
        return self._of_piece(self.mass_grid)

    @cached_property
    def B_r(self) -> Floats:
        """Non-empty rows of the row's rank."""
        return self._of_rank(self.sequence_grid)

    @cached_property
    def B_rm(self) -> Floats:
        """Non-empty rows of the row's piece."""
        return self._of_piece(self.sequence_grid)

    @cached_property
    def S(self) -> Floats:
        """Rows of the step, those without mass too."""
        return np.asarray(self.row_grid.sum(axis=(1, 2))[self.table])

    @cached_property
    def S_r(self) -> Floats:
        """Rows of the row's rank, those without mass too."""
        return self._of_rank(self.row_grid)

    @cached_property
    def S_rm(self) -> Floats:
        """Rows of the row's piece, those without mass too."""
        return self._of_piece(self.row_grid)

    @cached_property
    def first_grid(self) -> Floats:
        """Rows of every piece whose item did not come before [tables, ranks, microbatches]."""
        return self._grid(self.first)

    @cached_property
    def F(self) -> Floats:
        """Rows of the step, repeated items left out."""
        return np.asarray(self.first_grid.sum(axis=(1, 2))[self.table])

    @cached_property
    def F_rm(self) -> Floats:
        """Rows of the row's piece, repeated items left out."""
        return self._of_piece(self.first_grid)

    @cached_property
    def K_r(self) -> Floats:
        """Microbatches of the row's rank that hold mass."""
        return self._of_rank((self.mass_grid > 0).astype(np.float64))

    @cached_property
    def T_r(self) -> Floats:
        """Padded positions of the row's rank."""
        return self._of_rank(self.length_grid)

    @cached_property
    def T_rm(self) -> Floats:
        """Padded positions of the row's piece."""
        return self._of_piece(self.length_grid)

    @cached_property
    def n_last(self) -> Floats:
        """Mass of the last microbatch of the row's rank."""
        last = np.clip(self.M.astype(np.int64) - 1, 0, None)
        return np.asarray(self.mass_grid[self.table, self.rank, last])

    @cached_property
    def later(self) -> Floats:
        """Microbatches of the step that come after the row's own: M - 1 - m."""
        return self.M - 1 - self.microbatch


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

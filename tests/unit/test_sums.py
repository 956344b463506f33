"""The sums that formulas are written with, by hand on a split with an empty rank and an empty microbatch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from planted import CELLS
from weighbridge.factors import joined_names
from weighbridge.pieces import Table
from weighbridge.sums import Sums


def test_the_letters() -> None:
    sums = Sums([Table.from_counts(CELLS, length=16).columns])
    totals = sums.totals
    assert [float(x[0]) for x in (totals.W, totals.M, totals.N, totals.B, totals.T)] == [3, 5, 73, 10, 160]
    assert [float(x[0]) for x in (totals.W_plus, totals.M_plus, totals.K_plus)] == [2, 4, 7]
    assert [float(x[0]) for x in (totals.n_first_rank, totals.n_largest_rank, totals.n_last_microbatch)] == [32, 41, 35]
    last = -1  # the sequence of 12 on rank 1
    assert [float(x[last]) for x in (sums.n, sums.n_r, sums.n_m, sums.n_rm)] == [12, 41, 35, 21]
    assert [float(x[last]) for x in (sums.B_r, sums.B_rm, sums.K_r, sums.n_last, sums.later)] == [7, 3, 4, 21, 0]


def test_steps_do_not_mix() -> None:
    one, two = (Table.from_counts(counts).columns for counts in ([[[3], [4]]], [[[5]], [[1]], [[2]]]))
    sums = Sums([one, two])
    assert sums.N.tolist() == [7, 7, 8, 8, 8]
    assert sums.W.tolist() == [1, 1, 3, 3, 3]
    assert sums.M.tolist() == [2, 2, 1, 1, 1]


def test_a_table_without_rows_has_totals() -> None:
    sums = Sums([Table((), world_size=2, microbatches=3).columns])
    assert (sums.totals.N.tolist(), sums.totals.W.tolist(), len(sums.n)) == ([0.0], [2.0], 0)


def test_a_rank_on_its_own_believes_in_one_rank() -> None:
    sums = Sums([Table.from_counts(CELLS).columns])
    own = sums.restricted(sums.rank == 1, world=True)
    assert (set(own.W), set(own.N), set(own.M)) == ({1.0}, {41.0}, {5.0})
    last = sums.restricted((sums.rank == 1) & (sums.microbatch == 4), world=True, microbatches=True)
    assert np.array_equal(last.n_last, np.full(3, 21.0))


def test_names_of_factors() -> None:
    assert joined_names(["W", "M", "W+", "N/W+"]) == "W, or M, or N/W+"
    assert joined_names([]) is None


def test_judging_needs_no_torch() -> None:
    code = "import weighbridge.verdict, sys; sys.exit(any(m in sys.modules for m in ('torch', 'scipy', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""The solve finds the probe's weights by a road of its own, and tells an aggregation fault from any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from judged import judge, weigh
from solve_loops import sequence_gradients, step
from weighbridge.errors import InputError
from weighbridge.outcome import Verdict
from weighbridge.weigh.solve import solve


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("way", ["token-mean", "mean-of-microbatch-means"])
def test_solve_confirms_the_probe(way: str, world_size: int, tmp_path: Path) -> None:
    gradients, found = weigh(tmp_path, step, world_size, way)
    assert found.gradient is not None
    rows = found.gradient.terms[0].tables[0].rows
    probed = np.array([row.weight / row.tokens if row.tokens else np.nan for row in rows])
    solution = solve(gradients[0], sequence_gradients(world_size))
    assert solution.unique
    assert solution.residual < 1e-12
    np.testing.assert_allclose(solution.weights, probed, rtol=1e-9)
    assert judge(found).verdict is (Verdict.RIGHT if way == "token-mean" else Verdict.WRONG)


@pytest.mark.parametrize("way", ["dropout", "foreign", "both"])
def test_residual_shows_what_is_not_aggregation(way: str, tmp_path: Path) -> None:
    gradients, _ = weigh(tmp_path, step, 2, way)
    assert solve(gradients[0], sequence_gradients(2)).residual > 0.05


def test_alike_sequences_are_not_unique() -> None:
    solution = solve([2.0, 0.0], [[1.0, 0.0], [1.0, 0.0]])
    assert not solution.unique
    assert solution.residual < 1e-12


def test_shapes_that_do_not_match() -> None:
    with pytest.raises(InputError, match=r"shapes are \(2,\) and \(1, 3\)\. .* Flatten them"):
        solve([1.0, 2.0], [[1.0, 2.0, 3.0]])

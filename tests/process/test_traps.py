"""Loops around which weighing could stumble: a right one is right, the same with averaged averages is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from judged import judge, weigh
from trap_loops import COUNTS, FAULTY, LOOPS, train
from weighbridge.outcome import Verdict

# Steps that are weighed, where not all are: the first one in evaluation mode, a skipped one.
STEPS = {"EvaluationMode": len(COUNTS) - 1, "Scaler": len(COUNTS) - 1, "ScalerAlone": len(COUNTS) - 1}


@pytest.mark.parametrize("trap", LOOPS)
def test_right_loop_is_right(trap: str, tmp_path: Path) -> None:
    results, found = weigh(tmp_path, train, 2, trap, True)
    gradient = judge(found)
    assert (gradient.verdict, gradient.rule) == (Verdict.RIGHT, "token-mean"), gradient
    assert found.steps == STEPS.get(trap, len(COUNTS))
    assert all(result.get("same", True) for result in results)
    tokens = {(row.rank, row.microbatch): 0 for row in found.gradient.terms[0].tables[-1].rows}
    for row in found.gradient.terms[0].tables[-1].rows:
        tokens[row.rank, row.microbatch] += row.tokens
    last = COUNTS[-1]
    assert tokens == {(rank, m): sum(last[rank][m]) for rank in range(2) for m in range(2)}
    assert [note for note in found.notes if "optimizer" in note] == []


@pytest.mark.parametrize("trap", LOOPS)
def test_mean_of_means_is_named(trap: str, tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 2, trap, False)
    gradient = judge(found)
    assert (gradient.verdict, gradient.rule) == (Verdict.WRONG, "mean-of-microbatch-means"), gradient


@pytest.mark.parametrize("trap", FAULTY)
def test_fault_between_the_microbatches_is_named(trap: str, tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 2, trap, True)
    gradient = judge(found)
    rule = "scaled" if trap == "DividedByHand" else "last-microbatch-only"
    assert (gradient.verdict, gradient.rule) == (Verdict.WRONG, rule), gradient
    if rule == "scaled":
        assert gradient.factor == pytest.approx(1 / 3, rel=1e-6)

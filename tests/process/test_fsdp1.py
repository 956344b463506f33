"""FSDP1 weighed: right and wrong in every sharding strategy, and the same run as without weighing."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_invariance import differences

from fsdp1_loops import STEPS, train, train_averaged
from judged import judge, weigh
from ranks import run_ranks
from weighbridge.outcome import Verdict

STRATEGIES = {"FULL_SHARD": 2, "SHARD_GRAD_OP": 2, "NO_SHARD": 2, "HYBRID_SHARD": 4}  # with the number of ranks


@pytest.mark.parametrize("original", [False, True], ids=["flat", "original"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weighed_right_and_the_same_run(strategy: str, original: bool, tmp_path: Path) -> None:
    """With sharded states loaded before, full ones saved on the way, no_sync, and a clip that bites in one step."""
    weighed, found = weigh(
        tmp_path, train, STRATEGIES[strategy], strategy, original, "right",
        steps=STEPS - 1, tracer=True, keep_running=True,
    )  # fmt: skip
    gradient = judge(found)
    assert (gradient.verdict, found.steps) == (Verdict.RIGHT, STEPS - 1)
    assert [round(factor, 3) < 1 for factor in gradient.clip_factors] == [True]
    assert differences(weighed, run_ranks(train, STRATEGIES[strategy], strategy, original, "right")) == []


@pytest.mark.parametrize("original", [False, True], ids=["flat", "original"])
def test_weighed_wrong(original: bool, tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 3, "FULL_SHARD", original, "wrong", steps=STEPS)
    gradient = judge(found)
    assert (gradient.verdict, gradient.rule) == (Verdict.WRONG, "mean-of-microbatch-means")


def test_reduced_in_bfloat16(tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 2, "FULL_SHARD", True, "bfloat16", steps=STEPS)
    gradient = judge(found)
    assert gradient.verdict is Verdict.RIGHT
    assert gradient.precision is not None
    assert gradient.precision.right_within > 0.01


@pytest.mark.parametrize("reduces", [True, False])
def test_a_wrapper_that_leaves_the_probe_out_is_not_called_wrong(reduces: bool, tmp_path: Path) -> None:
    """Its gradients agree between ranks; those of ranks that really drift apart don't."""
    _, found = weigh(tmp_path, train_averaged, 2, reduces, steps=STEPS)
    assert judge(found).rule == "unsynchronised-ranks"
    assert found.left_out is reduces

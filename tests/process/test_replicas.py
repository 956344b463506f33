"""Ranks that share a model by tensor parallelism count as one rank of the data; ranks that only seem to, don't."""

from __future__ import annotations

from pathlib import Path

import pytest

from judged import judge, weigh
from parallel_loops import STEPS, train
from weighbridge.outcome import Verdict

SAID = "Ranks 0 and 1; 2 and 3 each hold parts of one model"


@pytest.mark.parametrize(("how", "rule"), [("right", "token-mean"), ("wrong", "mean-of-microbatch-means")])
def test_right_and_wrong_with_tensor_parallelism(how: str, rule: str, tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 4, "fsdp2", how, steps=STEPS)
    assert judge(found).rule == rule
    assert found.world_size == 2
    assert any(note.startswith(SAID) and "rank 0 is 0, 1 is 2" in note for note in found.notes)


def test_a_model_that_all_ranks_share(tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 2, "none", "right", steps=STEPS)
    assert judge(found).verdict is Verdict.RIGHT
    assert found.world_size == 1


def test_groups_that_were_fed_different_items_drift_apart(tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 4, "ddp", "other data", steps=STEPS)
    assert judge(found).rule == "unsynchronised-ranks"
    assert (found.world_size, found.left_out) == (4, False)

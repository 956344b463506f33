"""The pairs of examples/cure on the scale, as a user would: wrong before, with the rule's name, and right after.

What SFTTrainer does by default, and with `average_tokens_across_devices=False`, is in test_frameworks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pairs import PAIRS, Pair
from weighing import torchrun, weigh

pytestmark = pytest.mark.launch


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_wrong_before(tmp_path: Path, pair: Pair) -> None:
    found = weigh(tmp_path, *pair.command("wrong"))
    assert found.exit_code == 1, found.stdout + found.stderr
    assert (found.gradient["verdict"], found.gradient["rule"]) == ("wrong", pair.rule)
    assert [(number["verdict"], number["rule"]) for number in found.json["reported"]] == (
        [("wrong", pair.logged)] if pair.logged else []
    )


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_right_after(tmp_path: Path, pair: Pair) -> None:
    found = weigh(tmp_path, *pair.command("right"))
    assert found.exit_code == 0, found.stdout + found.stderr
    assert found.json["problems"] == []
    pieces, within = found.gradient["pieces"], found.gradient["precision"]["right_within"]
    assert len(pieces) == found.json["steps"] * found.json["world_size"] * 2
    assert len({piece["tokens"] for piece in pieces}) > len(pieces) / 2, "counts must be uneven"
    assert within < 1e-5
    assert all(abs(piece["relative_weight"] - 1) <= within for piece in pieces)
    assert [number["verdict"] for number in found.json["reported"]] == (["right"] if pair.logged else [])


@pytest.mark.parametrize(("how", "rule"), [("theirs", "mean-of-microbatch-means"), ("ours", "token-mean")])
def test_sft_with_a_model_that_takes_no_count(tmp_path: Path, how: str, rule: str) -> None:
    found = weigh(tmp_path, *torchrun("tests/launch/programs/sft_train.py", how))
    assert found.exit_code == (0 if how == "ours" else 1), found.stdout + found.stderr
    assert (found.gradient["rule"], found.reported("loss")["rule"]) == (rule, rule)

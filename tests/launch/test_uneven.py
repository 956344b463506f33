"""`--uneven`: an even data set hides rules; masked to uneven counts, whatever form its batches have, it shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from weighing import script, weigh

pytestmark = pytest.mark.launch

MEAN = "mean-of-microbatch-means"


def test_even_counts_hide_rules_and_the_report_says_which(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("even.py"))
    assert found.gradient["verdict"] == "right"
    assert {MEAN, "sequence-mean", "padded-length-mean"} <= set(found.gradient["indistinguishable"])
    assert {piece["tokens"] for piece in found.gradient["pieces"]} == {48}


@pytest.mark.parametrize("batch", ["dict", "tuple", "list", "encoding"])
def test_uneven_counts_show_the_rule(batch: str, tmp_path: Path) -> None:
    ranks = 2 if batch == "tuple" else 1
    found = weigh(
        tmp_path, *script("even.py", "--batch", batch, *(["--spawn", "2"] if ranks > 1 else [])), options=("--uneven",)
    )
    assert (found.exit_code, found.gradient["rule"]) == (1, MEAN), found.stdout + found.stderr
    assert found.reported("loss")["rule"] == MEAN
    assert "sequence-mean" not in found.gradient["indistinguishable"]
    counts = [piece["tokens"] for piece in found.gradient["pieces"]]
    assert counts.count(0) == 1  # one piece is empty, on the last rank
    assert len(set(counts[: 2 * ranks])) == 2 * ranks
    assert max(counts) <= 48


def test_labels_that_are_no_integers_are_left_and_a_note_says_so(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("even.py", "--batch", "float"), options=("--uneven", "--steps", "2"))
    assert "--uneven found no integer labels" in " ".join(found.json["notes"])
    assert {piece["tokens"] for piece in found.gradient["pieces"]} == {48}


def test_a_trainer_counts_the_masked_labels(tmp_path: Path) -> None:
    found = weigh(
        tmp_path,
        *script("trainer_logs.py", "--folder", str(tmp_path / "out"), "--save-steps", "100"),
        options=("--uneven",),
    )
    assert (found.exit_code, found.gradient["rule"]) == (0, "token-mean"), found.stdout + found.stderr
    assert found.reported("loss")["verdict"] == "right"
    assert 0 in [piece["tokens"] for piece in found.gradient["pieces"]]

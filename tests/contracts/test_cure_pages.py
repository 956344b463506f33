"""The pages show the pairs of examples/cure as they are now, and say of their weights what is tested."""

from __future__ import annotations

from pathlib import Path

import pytest
from pairs import PAIRS, Pair
from show import blocks_of

ROOT = Path(__file__).resolve().parents[2]
CURE, README = (blocks_of((ROOT / page).read_text(encoding="utf-8")) for page in ("docs/cure.md", "README.md"))
AGAIN = "Run: python examples/cure/show.py"


def test_every_pair_is_shown() -> None:
    assert list(CURE) == [pair.name for pair in PAIRS]
    assert README, "the README shows one"
    assert {name: CURE[name] for name in README} == README


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_diff_and_the_verdicts_are_the_current_ones(pair: Pair) -> None:
    block = CURE[pair.name]
    assert block.split("```")[1].splitlines()[1:] == pair.diff(), AGAIN
    judged = [f"Gradient: **wrong, {pair.rule}** before, right, token-mean after."]
    if pair.logged:
        judged.append(f": **wrong, {pair.logged}** before, right, token-mean after.")
    assert all(text in block for text in judged), AGAIN
    rows = [line.split("|")[1:-1] for line in block.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == (2 if pair.name == "plain" else 4)
    assert all(float(after) == 1 for *_, after in rows)
    assert any(float(before) != 1 for *_, before, _ in rows)

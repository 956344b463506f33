"""Grades of strangers' programs, and evaluation splits."""

from __future__ import annotations

from collections import Counter

import pytest

from weighbridge.cases.catalogue import MECHANISMS, load_catalogue
from weighbridge.cases.entry import Implementation, load_entry
from weighbridge.cases.grade import Grade, grade_candidate, held_back_variants
from weighbridge.cases.programs import published_program
from weighbridge.cases.runner import Limits
from weighbridge.cases.split import parse_ratios, split_entries
from weighbridge.errors import InputError

FOUNDING = load_entry(MECHANISMS / "mean-of-rank-means")
CATALOGUE = load_catalogue()


def graded(source: str, *, seconds: int = 10) -> Grade:
    return grade_candidate(FOUNDING, source.encode(), limits=Limits(seconds=seconds))


def test_a_stranger_s_repair_passes() -> None:
    grade = graded(
        "from fractions import Fraction\n"
        "def solve(rows):\n"
        "    rows = [r for r in rows if r[1]]\n"
        "    n = sum(c for _, c in rows)\n"
        "    return float(Fraction(sum(s for s, _ in rows), n)) if n else None\n"
    )
    assert grade.passed
    assert (grade.checks_passed, grade.checks) == (36, 36)


def test_a_whole_published_program_can_be_graded() -> None:
    assert graded(published_program(FOUNDING, Implementation.REPAIR, n=1)).passed
    grade = graded(published_program(FOUNDING, Implementation.FAILING, n=1))
    assert not grade.passed
    assert [check.passed for check in grade.variants[0].checks] == [False, True, True, False, False, True]


def test_remembered_outputs_fail_at_held_back_values() -> None:
    """It knows every answer at the variants that the entry shows."""
    table = [
        (fixture.given(n), fixture.answer(n)) for n in FOUNDING.facts.variants for fixture in FOUNDING.facts.fixtures
    ]
    grade = graded(f"TABLE = {table!r}\ndef solve(rows):\n    return next((a for g, a in TABLE if g == rows), None)\n")
    assert not grade.passed
    assert all(check.passed for v in grade.variants if not v.held_back for check in v.checks)
    assert not any(all(check.passed for check in v.checks) for v in grade.variants if v.held_back)


def test_what_is_held_back_is_not_told() -> None:
    grade = graded(FOUNDING.sources[Implementation.FAILING])
    for variant in grade.variants:
        if variant.held_back:
            assert variant.n is None
            assert all(check.actual is None for check in variant.checks)
    values = held_back_variants(FOUNDING, seed=0)
    assert values == held_back_variants(FOUNDING, seed=0)
    assert values != held_back_variants(FOUNDING, seed=1)
    assert not set(values) & set(FOUNDING.facts.variants)


@pytest.mark.parametrize(
    ("source", "ended"),
    [
        ("def solve(rows): 1 +", "gave no answers, exit status 1: SyntaxError"),
        ("x = 1", None),
        ("def solve(rows):\n    while True: pass", "ended at the time limit"),
        ("def solve(rows):\n    import os; os._exit(0)", "gave no answers, exit status 0"),
        ("def solve(rows):\n    import sys; sys.exit(0)", "gave no answers, exit status 0"),
        ("def solve(rows):\n    import os; os.write(1, b'[[]]\\n'); os._exit(0)", "gave answers of another shape"),
        ("def solve(rows):\n    print('x' * 10**7)", "ended at the output limit"),
        ("def solve(rows):\n    return [0] * 10**9", None),
        ("import no_such_module", "gave no answers, exit status 1: ModuleNotFoundError"),
    ],
)
def test_a_candidate_that_misbehaves_gets_a_grade_all_the_same(source: str, ended: str | None) -> None:
    grade = graded(source, seconds=2)
    assert not grade.passed
    assert grade.checks_passed == 0
    for variant in grade.variants:
        assert (variant.ended or "").startswith(ended or "")


def test_answers_that_only_look_right_are_wrong() -> None:
    """None for nothing is asked for: neither False nor the text None will do."""
    grade = graded("def solve(rows):\n    return 'None' if not rows else False\n")
    assert grade.checks_passed == 0


@pytest.mark.parametrize("ratios", [[80, 10, 10], [50, 50], [25, 25, 25, 25]])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_split_never_separates_a_group(ratios: list[int], seed: int) -> None:
    parts = split_entries(CATALOGUE, ratios=ratios, seed=seed)
    assert sorted(name for names in parts.values() for name in names) == sorted(entry.name for entry in CATALOGUE)
    group = {entry.name: entry.facts.group for entry in CATALOGUE}
    homes = Counter(g for names in parts.values() for g in {group[name] for name in names})
    assert set(homes.values()) == {1}
    assert all(parts.values())
    assert parts == split_entries(CATALOGUE, ratios=ratios, seed=seed)


def test_a_split_comes_near_its_ratios() -> None:
    parts = split_entries(CATALOGUE, ratios=[80, 10, 10], seed=0)
    assert list(parts) == ["train", "validation", "test"]
    assert 26 <= len(parts["train"]) <= 29


def test_the_seed_matters() -> None:
    splits = [split_entries(CATALOGUE, ratios=[80, 10, 10], seed=seed) for seed in range(5)]
    assert any(split != splits[0] for split in splits)


@pytest.mark.parametrize("text", ["80/10", "80/10/5", "100", "50/50/0", "a/b", "120/-20", "33.3/66.7", ""])
def test_ratios_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="sum to 100"):
        parse_ratios(text)

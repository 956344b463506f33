"""The format of an entry, and the catalogue as it stands."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weighbridge.cases.catalogue import MECHANISMS, find_entries, load_catalogue
from weighbridge.cases.compare import plain, same
from weighbridge.cases.entry import Entry, Implementation, load_entry
from weighbridge.errors import InputError

CATALOGUE = load_catalogue()
SOME_NS = [*range(1, 25), 97, 251, 399]


def answers(entry: Entry, which: Implementation, n: int) -> list[Any]:
    space: dict[str, Any] = {}
    exec(compile(entry.sources[which], f"{entry.name}/{which}.py", "exec"), space)
    shown = []
    for fixture in entry.facts.fixtures:
        try:
            shown.append(plain(space["solve"](fixture.given(n))))
        except Exception as error:
            shown.append(f"raised {type(error).__name__}")
    return shown


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_repair_is_right_and_the_others_wrong_at_every_n(entry: Entry) -> None:
    for n in SOME_NS:
        expected = [fixture.answer(n) for fixture in entry.facts.fixtures]
        given = {which: answers(entry, which, n) for which in Implementation}
        passed = {
            which: [
                same(one, other, tolerance=entry.facts.tolerance) for one, other in zip(shown, expected, strict=True)
            ]
            for which, shown in given.items()
        }
        assert all(passed[Implementation.REPAIR]), n
        assert not all(passed[Implementation.FAILING]), n
        assert any(passed[Implementation.FAILING]), n
        assert not all(passed[Implementation.UNSUCCESSFUL]), n
        assert given[Implementation.FAILING] != given[Implementation.UNSUCCESSFUL], n


def test_there_are_35_mechanisms_with_ids_in_a_row() -> None:
    assert [entry.facts.id for entry in CATALOGUE] == [f"WB-{number:04}" for number in range(1, 36)]


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_entry_asks_about_nothing(entry: Entry) -> None:
    """One fixture at least is empty or zero."""
    ends = {"None", "0", "[]", "{}"}
    marks = ("None", ": []")
    nothing = [f for f in entry.facts.fixtures if f.expected in ends or any(mark in f.expected for mark in marks)]
    assert nothing


def test_no_program_is_a_copy_of_another() -> None:
    sources = [source for entry in CATALOGUE for source in entry.sources.values()]
    assert len(set(sources)) == len(sources)


def test_the_founding_case_is_found_by_its_reference() -> None:
    entry = find_entries(CATALOGUE, ("fa-99256",))[0]
    assert (entry.name, entry.facts.family) == ("mean-of-rank-means", "Distributed training aggregation")
    with pytest.raises(InputError, match="'nothing' is no entry"):
        find_entries(CATALOGUE, ("nothing",))


FOUNDING_TABLE = {  # check: expected, failing, unsuccessful, all at N = 1
    "unequal tokens": (2.5, 2.0, 5.0),
    "equal token split": (1.5, 1.5, 3.0),
    "empty": (None, None, None),
    "zero counts": (None, 0.0, 0.0),
    "zero worker ignored": (3.0, 1.5, 3.0),
    "single batch": (1.0, 1.0, 5.0),
}


def test_the_founding_case_gives_its_table() -> None:
    entry = CATALOGUE[0]
    assert [fixture.label for fixture in entry.facts.fixtures] == list(FOUNDING_TABLE)
    columns = [[f.answer(1) for f in entry.facts.fixtures]] + [answers(entry, which, 1) for which in Implementation]
    expected, failing, unsuccessful, repair = columns
    assert list(zip(expected, failing, unsuccessful, strict=True)) == list(FOUNDING_TABLE.values())
    assert repair == expected


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MECHANISMS / "mean-of-rank-means", tmp_path / "copied-case"))


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text("utf-8")), "utf-8")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("case.toml", 'id = "WB-0001"', 'id = "1"', "id: String should match pattern"),
        ("case.toml", 'title = "Mean of rank means"', "", "title: Field required"),
        ("case.toml", 'title = "', 'titel = "x"\ntitle = "', "titel: Extra inputs"),
        ("case.toml", "variants = [1, 3, 10]", "variants = [1, 3]", "variants: List should have at least 3"),
        ("case.toml", "variants = [1, 3, 10]", "variants = [1, 3, 3]", "variants are given twice"),
        ("case.toml", 'label = "empty"', 'label = "zero counts"', "fixture labels are given twice: .'zero counts'"),
        ("case.toml", '"pytorch#31579"', '"see the pytorch issue"', "reports.0: String should match pattern"),
        ("case.toml", 'expected = "2.5*N"', 'expected = "open(N)"', "A fixture value holds 'open.N.'"),
        ("case.toml", 'title = "', "title = ", "can't be read as TOML"),
        ("case.toml", 'rule = "mean-of-rank-means"', "", "exhibit: Value error, a gradient exhibit names the rule"),
        ("case.toml", '[exhibit]\nkind = "gradient"\nrule = "mean-of-rank-means"', "", "They belong together"),
        ("training.py", "import torch\n", "import torch\nimport weighbridge\n", "imports weighbridge"),
        ("failing.py", "def solve(rows)", "def answer(rows)", "has no function solve of one argument"),
        ("failing.py", "def solve(rows)", "def solve(rows, n)", "has no function solve of one argument"),
        ("failing.py", "def solve", "import numpy\n\n\ndef solve", "imports numpy"),
        ("failing.py", "def solve", "from weighbridge import mean\n\n\ndef solve", "imports weighbridge"),
        ("failing.py", "def solve", "def solve(", "is not a Python program"),
    ],
)
def test_an_entry_that_breaks_the_format_is_refused_with_the_rule(
    copy: Path, file: str, old: str, new: str, message: str
) -> None:
    rewrite(copy / file, lambda text: text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        load_entry(copy)


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / "repair.py").unlink()
    with pytest.raises(InputError, match=r"repair\.py is not there"):
        load_entry(copy)


def test_ids_belong_to_one_entry_and_related_entries_exist(copy: Path) -> None:
    with pytest.raises(InputError, match="which the catalogue does not have"):
        load_catalogue(copy.parent)
    rewrite(copy / "case.toml", lambda text: re.sub(r"related = .*", "", text))
    assert [entry.name for entry in load_catalogue(copy.parent)] == ["copied-case"]
    shutil.copytree(copy, copy.parent / "another-case")
    with pytest.raises(InputError, match="both have the id WB-0001"):
        load_catalogue(copy.parent)

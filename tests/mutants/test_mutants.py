"""Grades mutants of every repair: each must be told from the repair by a fixture, or explained.

A mutant that passes shows a fixture that is missing. `explained.toml` lists those that no fixture can tell apart.
"""

from __future__ import annotations

import ast
import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mutation import choose_mutants

from weighbridge.cases.catalogue import load_catalogue
from weighbridge.cases.entry import Entry, Implementation
from weighbridge.cases.grade import grade_candidate
from weighbridge.cases.runner import Limits

pytestmark = [pytest.mark.mutants, pytest.mark.timeout(600)]

CATALOGUE = load_catalogue()
EXPLAINED: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("explained.toml").read_text("utf-8"))[
    "explained"
]
MUTANTS_EACH = 20


@dataclass(frozen=True)
class Change:
    """The line of the repair that a mutant changes, before and after, as ast.unparse writes it."""

    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.before}  ->  {self.after}"


def change_of(repair: str, mutant: str) -> Change:
    before, after = (ast.unparse(ast.parse(text)).splitlines() for text in (repair, mutant))
    lines = [line for line in difflib.unified_diff(before, after, lineterm="", n=0) if line[:3] not in ("+++", "---")]
    return Change(*(" ".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+"))


def explains(one: dict[str, Any], entry: Entry, change: Change) -> bool:
    """Whether the two lines are alike once the change that is explained is made in the first."""
    return entry.name in one["cases"] and any(
        change.before.replace(was, now, 1) == change.after
        for was in one["change"]
        for now in one["change"]
        if was != now
    )


def passes(entry: Entry, mutant: str) -> bool:
    return grade_candidate(entry, mutant.encode(), held_back=0, limits=Limits(seconds=3)).passed


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_mutant_is_told_from_the_repair_or_explained(entry: Entry) -> None:
    repair = entry.sources[Implementation.REPAIR]
    mutants = choose_mutants(repair, count=MUTANTS_EACH)
    assert len(mutants) == MUTANTS_EACH
    survivors = [mutant for mutant in mutants if passes(entry, mutant)]
    changes = [change_of(repair, mutant) for mutant in survivors]
    unexplained = [str(change) for change in changes if not any(explains(one, entry, change) for one in EXPLAINED)]
    assert not unexplained
    idle = [one["because"] for one in EXPLAINED if entry.name in one["cases"]]
    used = {one["because"] for change in changes for one in EXPLAINED if explains(one, entry, change)}
    assert set(idle) == used
    print(f"{entry.name}: {len(mutants) - len(survivors)} told apart, {len(survivors)} explained")

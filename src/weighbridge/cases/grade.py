"""Grades a stranger's `solve` against an entry's fixtures, at the entry's variants and at held-back ones.

The candidate is never told the expected answers: its process is given inputs, and the answers are compared out here.
Held-back values of N follow from a seed, so that a candidate can't have remembered them and a grade can be repeated.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, ConfigDict

from weighbridge.cases.compare import same
from weighbridge.cases.entry import Entry
from weighbridge.cases.programs import quoted
from weighbridge.cases.reading import strict_json
from weighbridge.cases.runner import Limits, run_program

__all__ = ["Grade", "grade_candidate", "held_back_variants"]

_DRIVER = """\
import contextlib
import json
import math
import sys

N = @N@
INPUTS = [
@INPUTS@
]


def plain(value):
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return type(value).__name__


with contextlib.redirect_stdout(sys.stderr):
    space = {}
    try:
        with open(__file__.replace("driver.py", "candidate.py"), encoding="utf-8") as file:
            exec(compile(file.read(), "candidate.py", "exec"), space)
    except SystemExit:  # a whole published program ends itself; its solve is there all the same
        pass
    answers = []
    for given in INPUTS:
        try:
            answers.append(["answer", plain(space["solve"](given))])
        except Exception as error:
            answers.append(["raised", type(error).__name__])
print(json.dumps(answers))
"""


class Checked(BaseModel):
    """One fixture at one N: whether the candidate's answer was right, and what it was where N is no secret."""

    model_config = ConfigDict(frozen=True)

    check: str
    passed: bool
    actual: Any = None


class GradedVariant(BaseModel):
    """All fixtures at one N; `ended` says why there are no answers, if there are none."""

    model_config = ConfigDict(frozen=True)

    n: int | None
    held_back: bool
    ended: str | None
    checks: list[Checked]


class Grade(BaseModel):
    """What a candidate achieved on one entry."""

    model_config = ConfigDict(frozen=True)

    case: str
    name: str
    candidate_sha256: str
    passed: bool
    checks_passed: int
    checks: int
    variants: list[GradedVariant]


def held_back_variants(entry: Entry, *, seed: int, count: int = 3) -> list[int]:
    """Values of N that the entry does not show, the same for the same seed on every machine."""
    chosen = random.Random(f"{entry.facts.id}:{seed}")
    free = [n for n in range(11, 400) if n not in entry.facts.variants]
    return sorted(chosen.sample(free, count))


def grade_candidate(
    entry: Entry, source: bytes, *, seed: int = 0, held_back: int = 3, limits: Limits | None = None
) -> Grade:
    """Runs the candidate at every variant, one process each, and compares its answers with the entry's.

    `held_back` is the number of values of N beyond the entry's own, which `seed` chooses.
    """
    secret = held_back_variants(entry, seed=seed, count=held_back)
    plan = [(n, False) for n in entry.facts.variants] + [(n, True) for n in secret]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        variants = list(pool.map(lambda one: _grade_variant(entry, source, one[0], one[1], limits), plan))
    checks = [check for variant in variants for check in variant.checks]
    return Grade(
        case=entry.facts.id,
        name=entry.name,
        candidate_sha256=hashlib.sha256(source).hexdigest(),
        passed=all(check.passed for check in checks),
        checks_passed=sum(check.passed for check in checks),
        checks=len(checks),
        variants=variants,
    )


def _grade_variant(entry: Entry, source: bytes, n: int, held_back: bool, limits: Limits | None) -> GradedVariant:
    answers, ended = _answers(entry, source, n, limits)
    checks = []
    for fixture, (kind, actual) in zip(entry.facts.fixtures, answers, strict=True):
        passed = kind == "answer" and same(actual, fixture.answer(n), tolerance=entry.facts.tolerance)
        shown = None if held_back else actual if kind == "answer" else f"raised {actual}"
        checks.append(Checked(check=fixture.label, passed=passed, actual=shown))
    return GradedVariant(n=None if held_back else n, held_back=held_back, ended=ended, checks=checks)


def _answers(entry: Entry, source: bytes, n: int, limits: Limits | None) -> tuple[list[list[Any]], str | None]:
    fixtures = entry.facts.fixtures
    inputs = "\n".join(f"    {fixture.input},  # {quoted(fixture.label)}" for fixture in fixtures)
    driver = _DRIVER.replace("@N@", str(n)).replace("@INPUTS@", inputs)
    ending = run_program({"driver.py": driver.encode(), "candidate.py": source}, limits=limits)
    nothing: list[list[Any]] = [["nothing", None]] * len(fixtures)
    if ending.stopped is not None:
        return nothing, f"ended at the {ending.stopped} limit"
    try:
        answers = strict_json(ending.stdout.decode("utf-8").rstrip("\n").split("\n")[-1])
    except ValueError:
        last = ending.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no error shown"]
        return nothing, f"gave no answers, exit status {ending.exit_status}: {last[0][:200]}"
    if not _fits(answers, len(fixtures)):
        return nothing, "gave answers of another shape"
    return answers, None


def _fits(answers: Any, count: int) -> bool:
    return (
        isinstance(answers, list)
        and len(answers) == count
        and all(isinstance(one, list) and len(one) == 2 and one[0] in ("answer", "raised") for one in answers)
    )


def grade_json(grade: Grade) -> str:
    """The grade as indented JSON."""
    return json.dumps(grade.model_dump(), indent=2, ensure_ascii=False)

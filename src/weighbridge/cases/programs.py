"""The published program: an entry's `solve`, a number N, the checks, and the print.

It is one file that runs anywhere with `python file.py`: it prints one JSON object on its last line and exits 0 if
every check passed, else 1. The text is made from the entry and nothing else, so the same entry gives the same bytes.
"""

from __future__ import annotations

import textwrap

from weighbridge.cases.entry import Entry, Implementation

__all__ = ["published_program"]

# What follows `solve` in a published program. It repeats the rules of compare.py in a form that stands alone;
# a test holds the two to the same answers.
_CHECKING = '''\
import json
import math
import sys

N = @N@
TOLERANCE = @TOLERANCE@

CHECKS = [
    # label, what solve is given, what it should answer
@CHECKS@
]


def plain(value):
    """What JSON can show: NaN and infinity by name, tuples as lists, other objects by their type."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return type(value).__name__


def same(actual, expected):
    """Numbers equal as numbers, None only None, and a bool is no number."""
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    if isinstance(actual, (int, float)) and isinstance(expected, (int, float)):
        return actual == expected or math.isclose(actual, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(same(actual[key], expected[key]) for key in actual)
    return type(actual) is type(expected) and actual == expected


observations = []
for label, given, expected in CHECKS:
    try:
        actual = plain(solve(given))
    except Exception as error:
        actual = f"raised {type(error).__name__}"
    expected = plain(expected)
    observations.append(
        {"check": label, "actual": actual, "expected": expected, "passed": same(actual, expected)}
    )
passed = all(observation["passed"] for observation in observations)
print(json.dumps({"observations": observations, "passed": passed@PRINT@}))
sys.exit(0 if passed else 1)
'''

_ROLES = {
    Implementation.FAILING: "the failing program",
    Implementation.UNSUCCESSFUL: "the unsuccessful fix",
    Implementation.REPAIR: "the repair",
}


def published_program(entry: Entry, which: Implementation, *, n: int) -> str:
    """The text of the program `which` of `entry` at N = `n`."""
    facts = entry.facts
    checks = "\n".join(
        f"    ({quoted(fixture.label)}, {fixture.input}, {fixture.expected})," for fixture in facts.fixtures
    )
    checking = (
        _CHECKING.replace("@N@", str(n))
        .replace("@TOLERANCE@", repr(facts.tolerance))
        .replace("@PRINT@", ', "tolerance": TOLERANCE' if facts.tolerance else "")
        .replace("@CHECKS@", checks)
    )
    return f"{_opening(entry, which, n)}\n{entry.sources[which].strip()}\n\n\n{checking}"


def quoted(text: str) -> str:
    """`text` as a Python string in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _opening(entry: Entry, which: Implementation, n: int) -> str:
    facts = entry.facts
    head = f"{facts.id} {facts.title}: {_ROLES[which]}, N = {n}."
    contract = textwrap.fill(" ".join(facts.contract.split()), width=96, break_long_words=False)
    text = f"{head}\n\n{contract}".replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{text}\n"""\n'

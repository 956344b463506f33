"""Reads what a program printed, and finds what is wrong with it.

A program's word that it passed is recorded and never believed: every check is compared again, and each difference
between what it says and what it shows becomes a finding. A run with a finding did not pass, whatever it printed.
"""

from __future__ import annotations

import json
import math
import re
import signal
from dataclasses import dataclass, field
from typing import Any

from weighbridge.cases.compare import same
from weighbridge.cases.runner import Ending

__all__ = ["Observed", "Reading", "read_ending", "strict_json"]

_DEEPEST = 32
_LARGEST_TOLERANCE = 1e-6
_STOPPED = {
    "time": "did not end within the time limit and was ended",
    "output": "printed more than the output limit and was ended",
}


class _Refused(ValueError):
    """JSON that Python would read and the format does not allow."""


@dataclass(frozen=True)
class Observed:
    """One check as a program printed it (`claimed` is its own word), and `passed` as compared again."""

    check: str
    actual: Any
    expected: Any
    claimed: bool
    passed: bool


@dataclass
class Reading:
    """All that could be read from one run; `passed` only if every check passed and nothing was found wrong."""

    observations: list[Observed] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    printed: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.observations) and not self.findings and all(one.passed for one in self.observations)


def read_ending(ending: Ending) -> Reading:
    """What the run shows, with every finding."""
    reading = Reading()
    if ending.stopped is not None:
        reading.findings.append(_STOPPED[ending.stopped])
        return reading
    _read_exit(ending, reading)
    document = _last_line(ending, reading)
    if document is None:
        return reading
    _read_document(document, reading)
    if reading.observations:
        holds = all(one.passed for one in reading.observations)
        if document.get("passed") is not holds:
            reading.findings.append(
                f"says passed is {json.dumps(document.get('passed'))}, its checks say {_word(holds)}"
            )
        if ending.exit_status != (0 if holds else 1):
            reading.findings.append(f"exit status is {ending.exit_status}, its checks ask for {0 if holds else 1}")
    return reading


def strict_json(text: str) -> Any:
    """`text` as JSON without NaN, infinities, repeated keys, depth over 32 or numbers too large. Raises ValueError."""

    def no_constant(name: str) -> Any:
        raise _Refused(f"prints {name}, which is not a JSON number")

    def finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            raise _Refused("prints a number too large for a float")
        return number

    def whole(digits: str) -> int:
        if len(digits) > 1000:
            raise _Refused(f"prints a whole number of {len(digits)} digits; at most 1000 are read")
        return int(digits)

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) != len(keys):
            raise _Refused(f"gives the key {max(keys, key=keys.count)!r} twice")
        return dict(pairs)

    try:
        value = json.loads(
            text, parse_constant=no_constant, parse_float=finite, parse_int=whole, object_pairs_hook=distinct
        )
    except RecursionError:
        raise _Refused("prints JSON nested too deeply") from None
    _check_depth_and_text(value)
    return value


def _check_depth_and_text(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _check_text(item)
            elif isinstance(item, list):
                deeper += item
            elif isinstance(item, dict):
                deeper += [*item, *item.values()]
        level = deeper
    if level:
        raise _Refused("prints JSON nested too deeply")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Refused("prints half of a surrogate pair, which is no text") from None


def _read_exit(ending: Ending, reading: Reading) -> None:
    status = ending.exit_status
    if status is None:
        reading.findings.append("ended without an exit status")
    elif status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        reading.findings.append(f"was ended by the signal {name}")
    else:
        last = ending.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raised = re.match(r"([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt))\b", last[0]) if last else None
        if status == 1 and raised:
            reading.findings.append(f"ended with an uncaught {raised[1]}")


def _last_line(ending: Ending, reading: Reading) -> dict[str, Any] | None:
    try:
        lines = ending.stdout.decode("utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError:
        reading.findings.append("prints bytes that are not UTF-8")
        return None
    try:
        document = strict_json(lines[-1])
    except _Refused as error:
        reading.findings.append(str(error))
    except ValueError:
        if any(_is_result(line) for line in lines[:-1]):
            reading.findings.append("prints something after its JSON object; the object must be the last line")
        else:
            reading.findings.append("prints no JSON object on its last line")
    else:
        if isinstance(document, dict):
            reading.printed = lines[-1]
            return document
        reading.findings.append("prints no JSON object on its last line")
    return None


def _is_result(line: str) -> bool:
    try:
        document = strict_json(line) if line.startswith("{") else None
    except ValueError:
        return False
    return isinstance(document, dict) and "observations" in document


def _read_document(document: dict[str, Any], reading: Reading) -> None:
    tolerance = document.get("tolerance", 0.0)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)):
        tolerance = math.inf
    if not 0.0 <= tolerance <= _LARGEST_TOLERANCE:
        reading.findings.append("asks for a tolerance that is not a number from 0 to 1e-6; 0 is used")
        tolerance = 0.0
    if unknown := sorted(set(document) - {"observations", "passed", "tolerance"}):
        reading.findings.append(f"prints keys that the format does not have: {', '.join(unknown)}")
    observations = document.get("observations")
    if not isinstance(observations, list) or not observations:
        reading.findings.append("prints no list of observations")
        return
    for index, item in enumerate(observations):
        if not _is_observation(item):
            reading.findings.append(f"observation {index} is not an object of check, actual, expected and passed")
            continue
        passed = same(item["actual"], item["expected"], tolerance=tolerance)
        one = Observed(item["check"], item["actual"], item["expected"], item["passed"], passed)
        reading.observations.append(one)
        if one.claimed is not passed:
            reading.findings.append(
                f"check {one.check!r} says passed is {_word(one.claimed)}, compared again {_word(passed)}"
            )
    checks = [one.check for one in reading.observations]
    if len(set(checks)) != len(checks):
        reading.findings.append(f"observes the check {max(checks, key=checks.count)!r} twice")


def _is_observation(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and item.keys() == {"check", "actual", "expected", "passed"}
        and isinstance(item["check"], str)
        and isinstance(item["passed"], bool)
    )


def _word(value: bool) -> str:
    return "true" if value else "false"

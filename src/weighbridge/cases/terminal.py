"""Shows entries, records and grades on a terminal, readable without colour and at 80 columns."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weighbridge.cases.entry import Entry, Implementation
from weighbridge.cases.grade import Grade
from weighbridge.cases.record import Record
from weighbridge.cases.verify import Verified

__all__ = ["print_entry", "print_grade", "print_list", "print_record", "print_verified", "shown_value"]

_LONGEST_VALUE = 60


def shown_value(value: Any) -> str:
    """A JSON value as Python writes it, which is how the contract speaks of it: None, True, 2.5, 'nan'."""
    text = ascii(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def print_list(entries: Sequence[Entry], stream: TextIO | None = None) -> None:
    """One line an entry."""
    console = _console(stream)
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "name", "family"):
        table.add_column(heading, no_wrap=heading != "family")
    for entry in entries:
        table.add_row(entry.facts.id, entry.name, entry.facts.family)
    console.print(table)
    console.print(f"\n{len(entries)} entries. weighbridge cases show NAME tells one.")


def print_entry(verified: Verified, stream: TextIO | None = None) -> None:
    """One entry in full: its prose, its programs, and the outcome table of each at its first variant."""
    console = _console(stream)
    entry, facts = verified.entry, verified.entry.facts
    console.print(Text(f"{facts.id} {entry.title}", style="bold"))
    reference = f", reference {facts.reference}" if facts.reference else ""
    console.print(f"{entry.name}, {facts.family}, evaluation group {facts.group}{reference}")
    for heading, text in (("Contract", facts.contract), ("Root cause", facts.root_cause)):
        _print_prose(console, heading, text)
    n = facts.variants[0]
    told = {
        Implementation.FAILING: [("The failure", facts.failure)],
        Implementation.UNSUCCESSFUL: [("Looks right, and is not", facts.approach), ("Why", facts.approach_fails)],
        Implementation.REPAIR: [("The repair", facts.repair)],
    }
    for which, paragraphs in told.items():
        for heading, text in paragraphs:
            _print_prose(console, heading, text)
        console.print()
        console.print(Text(entry.sources[which].rstrip(), style="cyan"))
        console.print()
        _print_observations(console, verified.records[n, which], n)
    for heading, text in (("Why it matters", facts.matters), ("Out of scope", facts.out_of_scope)):
        _print_prose(console, heading, text)
    _print_prose(console, "Reports", ", ".join(facts.reports))
    _print_prose(console, "Related", ", ".join(facts.related) or "none")
    for problem in verified.problems:
        console.print(Text(f"Does not hold: {problem}", style="bold red"))


def print_record(record: Record, stream: TextIO | None = None) -> None:
    """The outcome table of one run, how it ended, and what identifies it."""
    console = _console(stream)
    _print_observations(console, record, None)
    for finding in record.findings:
        console.print(Text(f"The program {finding}.", style="bold red"))
    environment = record.environment
    lines: Mapping[str, object] = {
        "exit status": "none: it was ended" if record.exit_status is None else record.exit_status,
        "SHA-256": record.source_sha256,
        "record digest": record.digest,
        "ran with": f"Python {environment.python}, weighbridge {environment.weighbridge}",
        "time": f"{environment.utc}, {environment.seconds} s",
        "limits": ", ".join(f"{key} {value}" for key, value in environment.enforced.items()),
    }
    console.print()
    for key, value in lines.items():
        console.print(f"{key:14}{value}")


def print_verified(verified: Sequence[Verified], seconds: float, stream: TextIO | None = None) -> None:
    """What does not hold, and the line that says k of k."""
    console = _console(stream)
    for one in verified:
        for problem in one.problems:
            console.print(f"{one.entry.facts.id} {one.entry.name}: {problem}")
    holding = sum(one.holds for one in verified)
    runs = sum(len(one.records) for one in verified)
    style = "bold green" if holding == len(verified) else "bold red"
    console.print(
        Text(f"{holding} of {len(verified)} entries hold; {runs} programs run in {seconds:.1f} s.", style=style)
    )


def print_grade(grade: Grade, stream: TextIO | None = None) -> None:
    """Which checks the candidate passes, at shown and at held-back values of N."""
    console = _console(stream)
    table = Table(box=None, pad_edge=False)
    table.add_column("check")
    for variant in grade.variants:
        table.add_column("held back" if variant.held_back else f"N = {variant.n}")
    for index, first in enumerate(grade.variants[0].checks):
        table.add_row(first.check, *(_mark(variant.checks[index].passed) for variant in grade.variants))
    console.print(table)
    for variant in grade.variants:
        if variant.ended:
            where = "a held-back N" if variant.held_back else f"N = {variant.n}"
            console.print(Text(f"At {where} the candidate {variant.ended}", style="bold red"))
    verdict = "passes" if grade.passed else "does not pass"
    console.print(f"\nThe candidate {verdict} {grade.name}: {grade.checks_passed} of {grade.checks} checks.")
    console.print(f"SHA-256 {grade.candidate_sha256}")


def _console(stream: TextIO | None) -> Console:
    return Console(file=stream or sys.stdout, highlight=False, emoji=False, markup=False, soft_wrap=False)


def _mark(passed: bool) -> Text:
    return Text("pass", style="green") if passed else Text("FAIL", style="bold red")


def _print_prose(console: Console, heading: str, text: str) -> None:
    console.print()
    console.print(Text(heading, style="bold"))
    console.print(" ".join(text.split()))


def _print_observations(console: Console, record: Record, n: int | None) -> None:
    if not record.observations:
        console.print("No check was observed.")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("check" if n is None else f"check at N = {n}", "actual", "expected", "result"):
        table.add_column(heading)
    for one in record.observations:
        table.add_row(
            Text(one.check), Text(shown_value(one.actual)), Text(shown_value(one.expected)), _mark(one.passed)
        )
    console.print(table)


def to_json(value: Any) -> str:
    """Indented JSON for `--json`."""
    return json.dumps(value, indent=2, ensure_ascii=False)

"""Runs every program of every entry at every variant, and says what is not as the entry claims.

Failing and unsuccessful must fail, each in its own way, and the repair must pass. The programs that run are the
published ones, so what a reader downloads is what was verified.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from weighbridge.cases.compare import same
from weighbridge.cases.entry import Entry, Implementation
from weighbridge.cases.programs import published_program
from weighbridge.cases.reading import Reading, read_ending
from weighbridge.cases.record import Record, make_record
from weighbridge.cases.runner import run_program

__all__ = ["Verified", "run_entry_program", "verify_entries", "write_records"]


@dataclass(frozen=True)
class Verified:
    """One entry with the record of each run, by variant and implementation, and what is wrong with it."""

    entry: Entry
    records: dict[tuple[int, Implementation], Record]
    problems: list[str]

    @property
    def holds(self) -> bool:
        return not self.problems


def verify_entries(entries: Iterable[Entry], *, jobs: int | None = None) -> list[Verified]:
    """Every entry verified, `jobs` programs at a time (as many as there are cores, if not given)."""
    entries = list(entries)
    tasks = [(entry, n, which) for entry in entries for n in entry.facts.variants for which in Implementation]
    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count() or 1) as pool:
        records = list(pool.map(lambda task: run_entry_program(*task), tasks))
    verified, finished = [], iter(records)
    for entry in entries:
        own = {(n, which): next(finished) for n in entry.facts.variants for which in Implementation}
        verified.append(Verified(entry, own, _problems(entry, own)))
    return verified


def run_entry_program(entry: Entry, n: int, which: Implementation) -> Record:
    """The record of running the published program `which` of `entry` at N = `n`."""
    source = published_program(entry, which, n=n).encode()
    ending = run_program({f"{which}.py": source})
    reading = read_ending(ending)
    _compare_with_entry(entry, n, reading)
    return make_record(source, ending, case=entry.facts.id, variant=n, implementation=which, reading=reading)


def _compare_with_entry(entry: Entry, n: int, reading: Reading) -> None:
    """A program can print any checks it likes; these must be the entry's."""
    if not reading.observations:
        return
    if [one.check for one in reading.observations] != [fixture.label for fixture in entry.facts.fixtures]:
        reading.findings.append("its checks are not the entry's fixtures")
        return
    for one, fixture in zip(reading.observations, entry.facts.fixtures, strict=True):
        if not same(one.expected, fixture.answer(n)):
            reading.findings.append(f"check {one.check!r} expects what the entry does not")


def _problems(entry: Entry, records: dict[tuple[int, Implementation], Record]) -> list[str]:
    problems: list[str] = []
    for (n, which), record in records.items():
        where = f"{which} at N = {n}"
        problems += [f"{where}: {finding}" for finding in record.findings]
        if not record.observations:
            continue
        if which is Implementation.REPAIR and not record.passed:
            failed = [one.check for one in record.observations if not one.passed]
            problems.append(f"{where} does not pass {failed}")
        if which is not Implementation.REPAIR and record.passed:
            problems.append(f"{where} passes every check, and must fail")
        if which is Implementation.FAILING and not any(one.passed for one in record.observations):
            problems.append(f"{where} passes no check: an entry needs one that shows why the fault stays unseen")
    for n in entry.facts.variants:
        wrong = [records[n, which] for which in (Implementation.FAILING, Implementation.UNSUCCESSFUL)]
        actuals = [[one.actual for one in record.observations] for record in wrong]
        if actuals[0] == actuals[1]:
            problems.append(f"failing and unsuccessful give the same answers at N = {n}, and must differ")
    return problems


def write_records(verified: Iterable[Verified], folder: Path) -> None:
    """Each record as a file of its own, `folder`/NAME/VARIANT-IMPLEMENTATION.json."""
    for one in verified:
        home = folder / one.entry.name
        home.mkdir(parents=True, exist_ok=True)
        for (n, which), record in one.records.items():
            (home / f"{n}-{which}.json").write_text(record.model_dump_json(indent=2) + "\n", "utf-8")

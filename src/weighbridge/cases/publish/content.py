"""What a page, its JSON and its bundle say about one entry in one tier.

Everything the site shows goes through here, so what a tier holds back is left out in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from weighbridge.cases.entry import Entry, Implementation
from weighbridge.cases.programs import published_program
from weighbridge.cases.publish.bundle import make_bundle
from weighbridge.cases.publish.chart import weight_chart
from weighbridge.cases.publish.tiers import Tier, shown_in
from weighbridge.cases.record import Record, canonical_json, schema
from weighbridge.cases.verify import Verified

__all__ = ["Shown", "ShownExhibit", "Told", "entry_bundle", "entry_json", "show_entry", "show_exhibit"]

HEADINGS = {
    Implementation.FAILING: "The failure",
    Implementation.UNSUCCESSFUL: "Looks right, and is not",
    Implementation.REPAIR: "The repair",
}


@dataclass(frozen=True)
class Told:
    """One implementation as a tier tells it; without records and source where the tier holds it back."""

    which: Implementation
    heading: str
    prose: list[str]
    source: str | None
    program: str | None
    records: dict[int, Record]

    @property
    def held(self) -> bool:
        return self.source is None

    @property
    def tier(self) -> Tier:
        return Tier.MEMBER if self.which is Implementation.REPAIR else Tier.OPEN

    @property
    def outcome(self) -> str:
        """In words: how many checks pass at the first variant."""
        if self.held:
            return "held"
        first = next(iter(self.records.values()))
        passed = sum(one.passed for one in first.observations)
        return f"passes {passed} of {len(first.observations)}"


@dataclass(frozen=True)
class Shown:
    """One entry as a tier shows it."""

    entry: Entry
    told: list[Told]
    related: list[Entry]

    @property
    def first_variant(self) -> int:
        return self.entry.facts.variants[0]

    @property
    def runs(self) -> int:
        return sum(len(one.records) for one in self.told)

    @property
    def search_text(self) -> str:
        """What the search box looks through: words of the entry, in lower case."""
        facts = self.entry.facts
        words = [facts.id, facts.reference or "", self.entry.name, facts.title, facts.family, facts.contract]
        words += [facts.root_cause, facts.failure, facts.approach, facts.matters, *facts.reports]
        return " ".join(" ".join(words).lower().split())


def show_entry(verified: Verified, tier: Tier, related: list[Entry]) -> Shown:
    """The entry as `tier` shows it."""
    entry, facts = verified.entry, verified.entry.facts
    prose = {
        Implementation.FAILING: [facts.failure],
        Implementation.UNSUCCESSFUL: [facts.approach, facts.approach_fails],
        Implementation.REPAIR: [facts.repair],
    }
    told = []
    for which in Implementation:
        if which in shown_in(tier):
            program = published_program(entry, which, n=facts.variants[0])
            records = {n: verified.records[n, which] for n in facts.variants}
            told.append(Told(which, HEADINGS[which], prose[which], entry.sources[which].strip(), program, records))
        else:
            told.append(Told(which, HEADINGS[which], [], None, None, {}))
    return Shown(entry, told, related)


@dataclass(frozen=True)
class ShownExhibit:
    """What an exhibit showed, as far as the tier tells: heading and chart, or heading and sentence."""

    heading: str
    chart: Markup | None
    sentence: str


def show_exhibit(shown: Shown) -> list[ShownExhibit]:
    """The exhibit's fault and, where the tier shows repairs, its repair."""
    exhibit, exhibited = shown.entry.facts.exhibit, shown.entry.exhibited
    if exhibit is None or exhibited is None:
        return []
    parts = []
    for one in shown.told:
        seen = exhibited.get(one.which.value)
        if seen is None or one.held:
            continue
        heading = "The fault" if one.which is Implementation.FAILING else "The repair"
        if exhibit.kind == "gradient":
            sentence = f"weighbridge weigh says: {seen['verdict']}, {seen['rule']}."
            chart = weight_chart(seen["pieces"], f"{heading}: weight of a token by microbatch")
        else:
            sentence = f"Reported is {seen['reported']}; the rows of all ranks give {seen['right']}: {seen['verdict']}."
            chart = None
        parts.append(ShownExhibit(heading, chart, sentence))
    return parts


def entry_json(shown: Shown) -> dict[str, Any]:
    """The entry as data: facts, programs and records, as far as the tier shows them."""
    facts = shown.entry.facts
    document: dict[str, Any] = {"name": shown.entry.name} | facts.model_dump(exclude={"repair"})
    document["implementations"] = {}
    for one in shown.told:
        if one.held:
            document["implementations"][one.which.value] = {"held": True}
            continue
        document["implementations"][one.which.value] = {
            "held": False,
            "prose": one.prose,
            "source": one.source,
            "records": {str(n): record.model_dump() for n, record in one.records.items()},
        }
    return document


def entry_bundle(shown: Shown) -> bytes:
    """The published programs at every variant, their records without what differs from run to run, and the facts."""
    facts = shown.entry.facts
    folder = shown.entry.name
    facts_only = {"name": shown.entry.name} | facts.model_dump(exclude={"repair"})
    files = {
        f"{folder}/case.json": canonical_json(facts_only),
        f"{folder}/record.schema.json": canonical_json(schema()),
    }
    if shown.entry.exhibit and not any(one.held for one in shown.told):  # an exhibit's source holds its repair
        files[f"{folder}/training.py"] = shown.entry.exhibit.encode()
    for one in shown.told:
        if one.held:
            continue
        for n, record in one.records.items():
            program = published_program(shown.entry, one.which, n=n)
            files[f"{folder}/{one.which}-N{n}.py"] = program.encode()
            lasting = record.model_dump(exclude={"environment"})
            files[f"{folder}/records/{one.which}-N{n}.json"] = canonical_json(lasting)
    return make_bundle(files)

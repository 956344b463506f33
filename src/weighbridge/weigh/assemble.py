"""From the records of the ranks to what the verdict is given: tables with weights, and logged numbers with tables.

No rank knows the others' pieces: each wrote its own rows with their slots, and its own view of the probe's reduced
gradient. Here the views are put together (a sharded gradient lies in parts on many ranks), compared where two ranks
hold the same entry, and joined with the rows by slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from weighbridge.pieces import Row, Table
from weighbridge.readings import Clip, GradientReading, LoggedNumber, LoggedValue, WeighedTerm
from weighbridge.weigh import problems as problems_
from weighbridge.weigh.records import Line, RankRecord, Records, read_records
from weighbridge.weigh.replicas import without_replicas
from weighbridge.weigh.terms import TermNames

__all__ = ["Assembled", "assemble"]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass
class Assembled:
    """What the records of a run amount to; `gradient` is None where no optimizer step was read."""

    gradient: GradientReading | None
    logged: tuple[LoggedNumber, ...]
    world_size: int
    microbatches: int
    steps: int
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    saw_torch: bool = True  # some process of the command imported torch and could be weighed
    saw_loss: bool = True  # some process computed a loss on which the probe sits
    comparable: bool = True  # ranks agree about the microbatches of a step
    left_out: bool = False  # gradients were reduced over ranks, and the probe's was not
    not_finite: str = ""  # where a loss was first NaN or infinite


def assemble(folder: Path) -> Assembled:
    """Read the records in `folder` and put them together."""
    records, replicas = without_replicas(read_records(folder))
    steps = _complete_steps(records)
    names = TermNames(records, steps)
    views = {step: _View(records, step) for step in steps}
    readings = _gradient(records, names, views)
    versions: dict[str, str] = {}
    for record in records.ranks.values():
        versions.update({"python": record.process.get("python", "")}, **record.versions)
    return Assembled(
        gradient=readings,
        logged=tuple(_logged(records, names, steps)),
        world_size=records.world_size,
        microbatches=max((_microbatches(records, step) for step in steps), default=0),
        steps=len(steps),
        problems=problems_.problems(records, steps),
        notes=[*replicas, *problems_.notes(records, steps), *names.notes],
        versions=versions,
        saw_torch=bool(records.ranks or records.bystanders),
        saw_loss=any(record.microbatches for record in records.ranks.values()),
        comparable=problems_.comparable(records, steps),
        left_out=any(view.left_out for view in views.values()),
        not_finite=problems_.first_not_finite(records),
    )


def _complete_steps(records: Records) -> list[int]:
    """Steps that every rank of the world recorded."""
    if not records.ranks or len(records.ranks) < records.world_size:
        return []
    common = set.intersection(*(set(record.steps) for record in records.ranks.values()))
    return sorted(common)


def _microbatches(records: Records, step: int) -> int:
    most: int = max(record.steps[step]["microbatches"] for record in records.ranks.values())
    return most


# -- the probe's gradient ---------------------------------------------------------------------------------------------


class _View:
    """The probe's reduced gradient in one step, put together from what the ranks hold."""

    def __init__(self, records: Records, step: int) -> None:
        self.lines = {rank: record.steps[step] for rank, record in records.ranks.items()}
        self.capacity = next(iter(self.lines.values()))["capacity"]
        self.slot_ranks = {rank: record.slot_rank for rank, record in records.ranks.items()}
        self.slots: dict[int, tuple[float, float]] = {}
        self.disagreement = 0.0
        self.disagreeing: set[int] = set()
        self.read = False
        for rank, line in self.lines.items():
            self._add(rank, line)
        self.left_out = bool(self.disagreeing) and _alike([line.get("beside") for line in self.lines.values()])
        self.factor = _last_clip(self.lines.values())

    def _add(self, rank: int, line: Line) -> None:
        own = {slot: (first, second) for slot, first, second in line["readings"]}
        for start, end in line["held"]:
            self.read = self.read or end > start
            held = range(start // 2, end // 2)
            known = {slot for slot in self.slots if slot in held}
            for slot in known | {slot for slot in own if slot in held}:
                value = own.get(slot, (0.0, 0.0))
                if slot in self.slots:
                    self._compare(rank, self.slots[slot][0], value[0])
                elif self._held_before(rank, slot):
                    self._compare(rank, 0.0, value[0])
                else:
                    self.slots[slot] = value

    def _held_before(self, rank: int, slot: int) -> bool:
        """Some lower rank holds this slot too, and had a zero there."""
        return any(
            start // 2 <= slot < end // 2
            for lower, line in self.lines.items()
            if lower < rank
            for start, end in line["held"]
        )

    def _compare(self, rank: int, one: float, other: float) -> None:
        largest = max(abs(one), abs(other))
        difference = abs(one - other) / largest if largest else 0.0
        if difference > self.disagreement:
            self.disagreement = difference
        if difference > 1e-6:
            self.disagreeing.add(rank)

    def weight(self, rank: int, slot: int) -> float:
        return self.slots.get(self.slot_ranks[rank] * self.capacity + slot, (0.0, 0.0))[0] / self.factor

    def spread(self, rank: int, slot: int) -> float:
        first, second = self.slots.get(self.slot_ranks[rank] * self.capacity + slot, (0.0, 0.0))
        return abs(first - second) / abs(first) if first and first == first and second == second else 0.0


def _alike(sums: list[list[float] | None]) -> bool:
    """Whether the ranks' other gradients are the same, as far as they were looked at, and not zero."""
    first = sums[0]
    if not first or not any(first):
        return False
    return all(
        other is not None
        and len(other) == len(first)
        and all(abs(one - two) <= 1e-6 * abs(one) for one, two in zip(first, other, strict=True))
        for other in sums
    )


def _last_clip(lines: Iterable[Line]) -> float:
    """What active clips after the last microbatch multiplied the gradient by; a rank without a view says nothing."""
    for line in lines:
        factor = 1.0
        for microbatches, value in line["clips"]:
            if microbatches >= line["microbatches"]:
                factor *= value
        if factor != 1.0:
            return factor
    return 1.0


def _gradient(records: Records, names: TermNames, views: dict[int, _View]) -> GradientReading | None:
    views = {step: view for step, view in views.items() if view.read}
    if not views:
        return None
    terms, spread = [], 0.0
    dtypes: set[str] = set()
    for name in names.ordered:
        tables = []
        for step, view in views.items():
            rows, step_spread, step_dtypes = _weighed_rows(records, names, name, step, view)
            spread, dtypes = max(spread, step_spread), dtypes | step_dtypes
            if rows:
                tables.append(Table(tuple(rows), records.world_size, _microbatches(records, step), step, name))
        if tables:
            first = names.first_line[name]
            terms.append(WeighedTerm(name, tuple(tables), first["marked"], first["coefficient"], first["scalar"]))
    terms = _trained_on(terms, names)
    dtypes |= {line["dtype"] for view in views.values() for line in view.lines.values()}
    clips = tuple(
        Clip(step, rank, microbatches, factor)
        for step, view in views.items()
        for rank, line in view.lines.items()
        for microbatches, factor in line["clips"]
    )
    return GradientReading(
        terms=tuple(terms),
        epsilon=_epsilon(dtypes, spread),
        spread=spread,
        disagreement=max(view.disagreement for view in views.values()),
        disagreeing_ranks=tuple(sorted(set().union(*(view.disagreeing for view in views.values())))),
        clips=clips,
    )


def _trained_on(terms: list[WeighedTerm], names: TermNames) -> list[WeighedTerm]:
    """The terms without those that no gradient came from, while one came from others: losses computed and not used."""
    used = [term for term in terms if any(row.weight for table in term.tables for row in table.rows)]
    if not used or len(used) == len(terms):
        return terms
    for term in terms:
        if term not in used:
            names.leave_out(term.name)
    return used


def _epsilon(dtypes: set[str], spread: float) -> float:
    """Machine epsilon of the coarsest dtype on the probe's path: of those that were seen, or, where the two readings
    differ by more than those allow, of the dtype that a wrapper must have reduced in."""
    seen = max((EPSILON.get(dtype, EPSILON["bfloat16"]) for dtype in dtypes), default=EPSILON["float32"])
    if spread <= 16 * seen:
        return seen
    return next(
        (epsilon for epsilon in sorted(EPSILON.values()) if epsilon > seen and spread <= epsilon), EPSILON["bfloat16"]
    )


def _weighed_rows(
    records: Records, names: TermNames, name: str, step: int, view: _View
) -> tuple[list[Row], float, set[str]]:
    rows: list[Row] = []
    dtypes: set[str] = set()
    spread = 0.0
    for rank, record in records.ranks.items():
        lines = [line for line in record.microbatches if line["step"] == step and names.of(line) == name]
        own = _rows(rank, lines)
        slots = [slot for line in lines for slot in _slots(line)]
        for row, slot in zip(own, slots, strict=True):
            weight = None if slot is None else view.weight(rank, slot)
            rows.append(_with_weight(row, weight))
            spread = max(spread, 0.0 if slot is None else view.spread(rank, slot))
        dtypes |= {line["dtype"] for line in lines}
    return rows, spread, dtypes


def _slots(line: Line) -> list[int | None]:
    rows = len(line["tokens"])
    if line["slots"] is None:
        return [None] * rows
    first, number = line["slots"]
    return list(range(first, first + number))


def _with_weight(row: Row, weight: float | None) -> Row:
    return Row(
        row.rank,
        row.microbatch,
        row.sequence,
        row.tokens,
        row.mass,
        row.loss_sum,
        row.length,
        row.content,
        row.constant,
        weight,
    )


def _rows(rank: int, lines: list[Line]) -> list[Row]:
    """The rows of some microbatch lines of one term on one rank; several calls in a microbatch number on."""
    rows: list[Row] = []
    number: dict[int, int] = {}
    for line in lines:
        contents = line["content"] or [None] * len(line["tokens"])
        for tokens, mass, loss_sum, content in zip(
            line["tokens"], line["mass"], line["loss_sum"], contents, strict=True
        ):
            microbatch = line["microbatch"]
            sequence = number.get(microbatch, 0)
            number[microbatch] = sequence + 1
            rows.append(
                Row(rank, microbatch, sequence, tokens, mass, loss_sum, line["length"], content, line["constant"])
            )
    return rows


# -- logged numbers ---------------------------------------------------------------------------------------------------


def _logged(records: Records, names: TermNames, steps: list[int]) -> Iterable[LoggedNumber]:
    main = names.ordered[0] if names.ordered else None
    if main is None:
        return
    for rank, record in records.ranks.items():
        series: dict[tuple[str, str, str], list[tuple[Line, list[Line]]]] = {}
        for line, unfinished in record.reported:
            series.setdefault((line["name"], line["source"], line["phase"]), []).append((line, unfinished))
        for (name, source, phase), lines in series.items():
            values = _values(records, names, main, steps, rank, lines)
            if values:
                dtypes = {line["dtype"] for line in [*record.microbatches, *record.evaluation]}
                yield LoggedNumber(name, source, phase, rank, tuple(values), _epsilon(dtypes, 0.0))


def _values(
    records: Records, names: TermNames, main: str, steps: list[int], rank: int, lines: list[tuple[Line, list[Line]]]
) -> list[LoggedValue]:
    values, done = [], 0
    for line, unfinished in lines:
        if line["phase"] == "evaluation":
            table = _evaluation_table(records, names, main, line, records.ranks[rank])
            if table is not None:
                values.append(LoggedValue(line["value"], (table,)))
            continue
        since = done if line["step"] > done else max(0, line["step"] - 1)
        done = line["step"]
        tables = [_step_table(records, names, main, step) for step in range(since, line["step"]) if step in steps]
        running = bool(unfinished)
        if running:
            tables.append(_running_table(records, names, main, line, unfinished, rank))
        if tables and (running or line["step"] - 1 in steps):
            values.append(LoggedValue(line["value"], tuple(tables), running))
    return values


def _step_table(records: Records, names: TermNames, main: str, step: int) -> Table:
    rows = [
        row
        for rank, record in records.ranks.items()
        for row in _rows(
            rank, [line for line in record.microbatches if line["step"] == step and names.of(line) == main]
        )
    ]
    return Table(tuple(rows), records.world_size, _microbatches(records, step), step, main)


def _running_table(
    records: Records, names: TermNames, main: str, line: Line, unfinished: list[Line], reporter: int
) -> Table:
    """The step in which a number was logged: the reporter's microbatches so far, and the same ones of other ranks."""
    rows = []
    for rank, record in records.ranks.items():
        own = (
            unfinished
            if rank == reporter
            else [
                other
                for other in record.microbatches
                if other["step"] == line["step"] and other["microbatch"] < line["microbatches"]
            ]
        )
        rows += _rows(rank, [other for other in own if names.of(other) == main])
    return Table(tuple(rows), records.world_size, line["microbatches"], line["step"], main)


def _evaluation_table(records: Records, names: TermNames, main: str, line: Line, reporter: RankRecord) -> Table | None:
    start, end = line["batches"]
    last = all(
        other.get("batches", [0, 0])[0] <= start
        for other, _ in reporter.reported
        if other.get("evaluation") == line["evaluation"]
    )
    rows = []
    for rank, record in records.ranks.items():
        to = end if rank == reporter.rank or not last else max(end, 1 << 30)
        own = [
            dict(other, microbatch=other["microbatch"] - start)
            for other in record.evaluation
            if other["evaluation"] == line["evaluation"] and start <= other["microbatch"] < to
        ]
        rows += _rows(rank, [other for other in own if names.of(other, evaluation=True) == main])
    if not rows:
        return None
    microbatches = max(row.microbatch for row in rows) + 1
    return Table(tuple(rows), records.world_size, microbatches, line["evaluation"], main)

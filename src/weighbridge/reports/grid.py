"""The table of pieces of a report: which pieces it shows, and each piece's weight in every column.

A weight in the gradient and one in a logged number can only be set side by side for the same piece of the same step,
because other steps have other token counts. The tracer reads different pieces in different steps; so where a logged
number was weighed, each line shows its piece in the step in which that was done, and the first step otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weighbridge.outcome import Finding, Outcome, PieceWeight, Reported, Verdict

__all__ = [
    "Cell",
    "Column",
    "Grid",
    "Group",
    "Line",
    "distance",
    "format_weight",
    "group_reported",
    "log_scale",
    "piece_grid",
    "rank_text",
    "rule_text",
    "weight_range",
]

SMALLEST_SCALE = math.log(1.25)  # weights closer to 1 than this don't fill the chart


@dataclass(frozen=True, slots=True)
class Cell:
    """One weight in the table: its value, or None where it was not read."""

    weight: float | None = None
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One thing that was weighed."""

    title: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Line:
    """One piece with its weight in every column."""

    step: int | None
    rank: int
    microbatch: int
    tokens: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The table of pieces, one line a rank and microbatch.

    Attributes:
        columns: the gradient first, then the reported numbers.
        lines: the pieces shown, in order of rank and microbatch.
        total: number of pieces, those not shown included.
        several_steps: whether lines are of different steps.
        caption: which step is shown, in words, "" where there is only one.
        other_steps: a sentence about the other steps, "" if there are none.
    """

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    total: int
    several_steps: bool = False
    caption: str = ""
    other_steps: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A number that several ranks logged with the same finding, as one: the first rank's record, and all the ranks."""

    number: Reported
    ranks: tuple[int, ...]


def group_reported(numbers: Sequence[Reported]) -> list[Group]:
    """The reported numbers, those that differ in nothing but their rank and their last digits put together."""
    groups: dict[tuple[object, ...], Group] = {}
    for number in numbers:
        key = (
            *(number.name, number.source, number.phase, number.verdict, rule_text(number), number.window),
            *(number.reason, number.remedy, *number.indistinguishable),
            *(
                (piece.rank, piece.microbatch, piece.step, format_weight(piece.relative_weight))
                for piece in number.pieces
            ),
        )
        ranks = () if number.rank is None else (number.rank,)
        before = groups.get(key)
        groups[key] = Group(number, ranks) if before is None else Group(before.number, (*before.ranks, *ranks))
    return list(groups.values())


Place = tuple[int, int]  # rank, microbatch


def piece_grid(outcome: Outcome, *, limit: int | None = 40, phase: str = "training") -> Grid:
    """The table of one phase: every rank and microbatch, or the `limit` most extreme of them."""
    training = phase == "training"
    groups = group_reported([number for number in outcome.reported if number.phase == phase and number.pieces])
    findings: list[Finding] = [*([outcome.gradient] if training else []), *(group.number for group in groups)]
    names = [group.number.name for group in groups]
    titles = [*(["gradient"] if training else []), *(_column_title(group, names) for group in groups)]
    steps = sorted({piece.step for piece in outcome.gradient.pieces if piece.step is not None}) if training else []
    lines = _lines([finding.pieces for finding in findings], _shown_steps(groups, outcome) if training else {})
    shown = sorted(lines, key=_extremity, reverse=True)[:limit]
    in_table = {line.step for line in lines}
    return Grid(
        columns=tuple(Column(title, finding.verdict) for title, finding in zip(titles, findings, strict=True)),
        lines=tuple(sorted(shown, key=lambda line: (line.rank, line.microbatch))),
        total=len(lines),
        several_steps=len(in_table) > 1,
        caption=_caption(in_table) if len(steps) > 1 else "",
        other_steps=_other_steps(outcome, steps, in_table),
    )


def _shown_steps(groups: Sequence[Group], outcome: Outcome) -> dict[Place, int]:
    """The step in which each place is shown."""
    chosen: dict[Place, PieceWeight] = {}
    for group in groups:
        read = [piece for piece in group.number.pieces if piece.step is not None and piece.relative_weight is not None]
        for piece in sorted(read, key=lambda piece: (piece.inferred, piece.step)):
            chosen.setdefault((piece.rank, piece.microbatch), piece)
    steps = {place: piece.step for place, piece in chosen.items() if piece.step is not None}
    for piece in sorted(outcome.gradient.pieces, key=lambda piece: piece.step or 0):
        if piece.step is not None:
            steps.setdefault((piece.rank, piece.microbatch), piece.step)
    return steps


def _lines(columns: Sequence[Sequence[PieceWeight]], steps: dict[Place, int]) -> list[Line]:
    chosen: list[dict[Place, PieceWeight]] = []
    for pieces in columns:
        column: dict[Place, PieceWeight] = {}
        for piece in sorted(pieces, key=lambda piece: piece.relative_weight is None):
            place = (piece.rank, piece.microbatch)
            if piece.step in (None, steps.get(place, piece.step)):
                column.setdefault(place, piece)
        chosen.append(column)
    return [
        _line(place, chosen, steps.get(place)) for place in sorted({place for column in chosen for place in column})
    ]


def _line(place: Place, columns: Sequence[dict[Place, PieceWeight]], step: int | None) -> Line:
    found = [column.get(place) for column in columns]
    tokens = next(piece.tokens for piece in found if piece is not None)
    cells = tuple(Cell() if piece is None else Cell(piece.relative_weight, piece.inferred) for piece in found)
    return Line(step, *place, tokens, cells)


def _caption(in_table: set[int | None]) -> str:
    if len(in_table) > 1:
        return "Each piece in the step in which its weight in a logged number was read."
    return f"Step {next(iter(in_table))}." if in_table else ""


def _other_steps(outcome: Outcome, steps: Sequence[int], in_table: set[int | None]) -> str:
    others = list(steps) if len(in_table) > 1 else [step for step in steps if step not in in_table]
    if not others or len(steps) < 2:
        return ""
    spread = weight_range([piece for piece in outcome.gradient.pieces if piece.step in others])
    if len(others) == len(steps):
        which = f"all {len(steps)} steps"
    elif len(others) == 1:
        which = f"step {others[0]}"
    elif others[-1] - others[0] == len(others) - 1:
        which = f"steps {others[0]} to {others[-1]}"
    else:
        which = f"the other {len(others)} steps"
    return f"In {which}, gradient weights are {spread}." if spread else f"In {which}, no weight was read."


def _extremity(line: Line) -> float:
    return max((distance(cell.weight) for cell in line.cells), default=-1.0)


def distance(weight: float | None) -> float:
    """How far a weight lies from 1, on a log scale; infinite for 0, negative ones and NaN, -1 for none."""
    if weight is None:
        return -1.0
    return abs(math.log(weight)) if 0 < weight < math.inf else math.inf


def log_scale(grid: Grid) -> float:
    """The largest finite distance from 1 in the table: what a full bar stands for."""
    distances = [distance(cell.weight) for line in grid.lines for cell in line.cells]
    return max([SMALLEST_SCALE, *(value for value in distances if math.isfinite(value))])


def weight_range(pieces: Sequence[PieceWeight]) -> str:
    """The range of the weights, in words; "" if there is none."""
    weights = [piece.relative_weight for piece in pieces if piece.relative_weight is not None]
    finite = [weight for weight in weights if math.isfinite(weight)]
    if not finite:
        return ""
    low, high = format_weight(min(finite)), format_weight(max(finite))
    return f"all {low}" if low == high else f"between {low} and {high}"


def format_weight(weight: float | None) -> str:
    """A weight in at most nine characters."""
    if weight is None:
        return "-"
    if weight == 0 or not math.isfinite(weight):
        return f"{weight:g}"
    return f"{weight:.4f}" if 1e-3 <= abs(weight) < 1e4 else f"{weight:.2e}"


def _column_title(group: Group, names: Sequence[str]) -> str:
    name = group.number.name
    return f"{name} ({rank_text(group.ranks)})" if names.count(name) > 1 and group.ranks else name


def rank_text(ranks: Sequence[int]) -> str:
    """The ranks in words: `rank 0`, `ranks 0 and 2`, `ranks 0 to 7`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 3 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(str(rank) for rank in ranks[:-1])} and {ranks[-1]}"


def rule_text(finding: Finding) -> str:
    """The rule's name, with its factor if there is one: `mean-of-rank-means times W (2)`."""
    if finding.rule is None:
        return ""
    if finding.factor is None:
        return finding.rule
    factor = f"{finding.factor:.6g}"
    return f"{finding.rule} times {f'{finding.factor_name} ({factor})' if finding.factor_name else factor}"

"""What a report says and in which order, shared by the terminal and the page.

Nothing is judged here: an outcome is arranged into one table of pieces, one block of labelled sentences a finding, and
a headline. Both reports only differ in how they draw these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weighbridge.outcome import Finding, Outcome, PieceWeight, Reported, Verdict

__all__ = [
    "Block",
    "Cell",
    "Column",
    "Grid",
    "Group",
    "Line",
    "blocks",
    "clean",
    "distance",
    "facts",
    "format_weight",
    "group_reported",
    "headline",
    "lead_finding",
    "log_scale",
    "piece_grid",
    "reported_title",
    "rule_text",
    "uneven_sequences",
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

    rank: int
    microbatch: int
    tokens: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The table of pieces of one step.

    Attributes:
        columns: the gradient first, then the reported numbers.
        lines: the pieces shown, in order of rank and microbatch.
        total: number of pieces, those not shown included.
        step: the step shown, None where there is only one or none is known.
        other_steps: a sentence about the other steps, "" if there are none.
    """

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    total: int
    step: int | None = None
    other_steps: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """One finding in words: a title, its verdict, and labelled sentences (the label may be "")."""

    title: str
    verdict: Verdict
    rule: str
    sentences: tuple[tuple[str, str], ...]


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


def piece_grid(outcome: Outcome, *, limit: int | None = 40, phase: str = "training") -> Grid:
    """The first weighed step in full, or its `limit` most extreme pieces; beside it what other steps did."""
    groups = group_reported([number for number in outcome.reported if number.phase == phase and number.pieces])
    findings: list[Finding] = [outcome.gradient] if phase == "training" else []
    findings += [group.number for group in groups]
    names = [group.number.name for group in groups]
    titles = ["gradient"] if phase == "training" else []
    titles += [_column_title(group, names) for group in groups]
    steps = sorted({piece.step for piece in outcome.gradient.pieces if piece.step is not None})
    first = steps[0] if steps and phase == "training" else None
    columns = [_by_place(finding.pieces, first) for finding in findings]
    places = sorted({place for column in columns for place in column})
    lines = [_line(place, columns) for place in places]
    shown = sorted(lines, key=_extremity, reverse=True)[:limit]
    return Grid(
        columns=tuple(Column(title, finding.verdict) for title, finding in zip(titles, findings, strict=True)),
        lines=tuple(sorted(shown, key=lambda line: (line.rank, line.microbatch))),
        total=len(lines),
        step=first if len(steps) > 1 else None,
        other_steps=_other_steps(outcome, steps[1:]) if phase == "training" else "",
    )


def _by_place(pieces: Sequence[PieceWeight], step: int | None) -> dict[tuple[int, int], PieceWeight]:
    """One piece a place: the one of `step` if there is one, else the first that has a weight."""
    chosen: dict[tuple[int, int], PieceWeight] = {}
    for piece in pieces:
        place = (piece.rank, piece.microbatch)
        before = chosen.get(place)
        if before is None or (before.step != step and (piece.step == step or before.relative_weight is None)):
            chosen[place] = piece
    return chosen


def _line(place: tuple[int, int], columns: Sequence[dict[tuple[int, int], PieceWeight]]) -> Line:
    found = [column.get(place) for column in columns]
    tokens = next(piece.tokens for piece in found if piece is not None)
    cells = tuple(Cell() if piece is None else Cell(piece.relative_weight, piece.inferred) for piece in found)
    return Line(*place, tokens, cells)


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


def _other_steps(outcome: Outcome, steps: Sequence[int]) -> str:
    if not steps:
        return ""
    spread = weight_range([piece for piece in outcome.gradient.pieces if piece.step in set(steps)])
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return f"In {which}, gradient weights are {spread}." if spread else f"In {which}, no weight was read."


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
    return f"{name} ({_rank_text(group.ranks)})" if names.count(name) > 1 and group.ranks else name


def _rank_text(ranks: Sequence[int]) -> str:
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


def lead_finding(outcome: Outcome) -> Finding:
    """The finding that the headline is about: the first that has the overall verdict and names a rule."""
    findings = [outcome.gradient, *outcome.reported]
    same = [finding for finding in findings if finding.verdict is outcome.verdict]
    named = [finding for finding in same if finding.rule]
    return (named or same or findings)[0]


def headline(outcome: Outcome) -> tuple[str, str]:
    """The verdict in words, and the rule that explains it ("" where none does)."""
    words = {Verdict.RIGHT: "Right", Verdict.WRONG: "Wrong", Verdict.INCONCLUSIVE: "Could not tell"}
    lead = lead_finding(outcome)
    return words[outcome.verdict], rule_text(lead) if lead.verdict is outcome.verdict else ""


def facts(outcome: Outcome) -> list[str]:
    """The size of what was weighed."""
    return [
        f"objective {outcome.objective}",
        _count(outcome.world_size, "rank"),
        f"{_count(outcome.microbatches, 'microbatch')} a step",
        f"{_count(outcome.steps, 'step')} weighed",
        *([] if outcome.seconds is None else [f"{outcome.seconds:.1f} s"]),
    ]


def _count(number: int, thing: str) -> str:
    plural = f"{thing}es" if thing.endswith("ch") else f"{thing}s"
    return f"{number} {thing if number == 1 else plural}"


def clean(text: str) -> str:
    """The text without anything that a terminal would obey, as escapes; line ends stay."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def reported_title(group: Group) -> str:
    """Name, source, phase and ranks of a reported number."""
    number = group.number
    where = [number.source]
    where += [number.phase] if number.phase != "training" else []
    where += [_rank_text(group.ranks)] if group.ranks else []
    where += [f"one value every {number.window} steps"] if number.window > 1 else []
    return f"Reported {number.name} ({', '.join(where)})"


def blocks(outcome: Outcome) -> list[Block]:
    """All findings in words: the gradient, its terms if it has several, the reported numbers."""
    gradient = outcome.gradient
    extra = []
    if gradient.clip_factors:
        clips = ", ".join(f"{factor:.6g}" for factor in gradient.clip_factors[:8])
        more = ", and so on" if len(gradient.clip_factors) > 8 else ""
        extra.append(("Clipping", f"multiplied the gradients by {clips}{more}; the weights are shown without it."))
    found = [_block("Gradient", gradient, extra)]
    if len(gradient.terms) > 1:
        for term in gradient.terms:
            coefficients = [("declared", term.coefficient), ("observed", term.observed_coefficient)]
            text = ", ".join(f"{name} {value:.6g}" for name, value in coefficients if value is not None)
            found.append(_block(f"Loss term {term.name}", term, [("Coefficient", text)] if text else []))
    for group in group_reported(outcome.reported):
        extra = [*_values(group.number), *_range_of(group.number)]
        found.append(_block(reported_title(group), group.number, extra))
    return found


def _block(title: str, finding: Finding, extra: Sequence[tuple[str, str]]) -> Block:
    apart = "This batch could not show" if finding.verdict is Verdict.RIGHT else "This batch could not tell it from"
    sentences = [
        ("", finding.story),
        ("", finding.reason),
        ("What to change", finding.remedy),
        *extra,
        (apart, ", ".join(finding.indistinguishable)),
        ("Precision", _precision(finding)),
    ]
    return Block(title, finding.verdict, rule_text(finding), tuple(item for item in sentences if item[1]))


def _precision(finding: Finding) -> str:
    if finding.precision is None:
        return ""
    precision = finding.precision
    bands = f"right within {precision.right_within:.2g} of 1, wrong from {precision.wrong_from:.2g}"
    return f"{bands}. {precision.derivation}".strip()


def _values(number: Reported) -> list[tuple[str, str]]:
    if not number.values:
        return []
    pairs = []
    for index, value in enumerate(number.values[:3]):
        right = number.right_values[index] if index < len(number.right_values) else None
        pairs.append(f"{value:.6g}" + ("" if right is None else f" where {right:.6g} is right"))
    more = f"; {len(number.values) - 3} more" if len(number.values) > 3 else ""
    return [("Logged", "; ".join(pairs) + more)]


def _range_of(number: Reported) -> list[tuple[str, str]]:
    spread = weight_range(number.pieces)
    return [("Weights", spread)] if spread else []


def uneven_sequences(outcome: Outcome, limit: int = 5) -> list[str]:
    """Pieces in whose microbatch the sequences weigh differently, the most uneven first, one sentence each."""
    found = []
    for piece in outcome.gradient.pieces:
        weights = [part.relative_weight for part in piece.sequences or () if part.relative_weight is not None]
        finite = [weight for weight in weights if math.isfinite(weight)]
        if len(finite) > 1 and format_weight(min(finite)) != format_weight(max(finite)):
            where = f"rank {piece.rank}, microbatch {piece.microbatch}"
            where = where if piece.step is None else f"step {piece.step}, {where}"
            low, high = format_weight(min(finite)), format_weight(max(finite))
            found.append((max(finite) - min(finite), f"{where}: {low} to {high}"))
    found.sort(key=lambda item: -item[0])
    more = [f"and {len(found) - limit} more"] if len(found) > limit else []
    return [text for _, text in found[:limit]] + more

"""The verdict on the first step: its pieces as a table, judged by the rules that judge every weighed run.

Two measurements meet here. What each token weighs in the loss sum comes from autograd's graph (`training.losses`), what
each loss sum weighs in the gradient from fingerprints (`training.proof`); their product is the weight of the token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weighbridge.errors import WeightError
from weighbridge.outcome import Gradient, Verdict
from weighbridge.pieces import Row, Table
from weighbridge.readings import GradientReading, WeighedTerm
from weighbridge.training.losses import CallWeights
from weighbridge.training.proof import GradientCheck, Place

__all__ = ["PieceCheck", "StepCheck", "judge_step", "refusal"]

Calls: TypeAlias = "list[CallWeights | None]"  # one a piece

COARSE = 2.0**-6  # what reductions in bfloat16 may do: up to here a difference is told, beyond it is an error
LEVEL = 1e-4  # relative: item weights this close to 1 are 1
SOLVED = 1e-4  # what weights that least squares had to find are uncertain by, relative


@dataclass(frozen=True, slots=True)
class PieceCheck:
    """One microbatch of the checked step.

    Attributes:
        tokens: its number of tokens, as counted.
        weight: weight of each of them relative to the one it should have (1 is right), the mean over the microbatch;
            None where not determined.
        term: name of the term of the loss; "" where there is only one.
    """

    rank: int
    microbatch: int
    tokens: int
    weight: float | None
    term: str = ""


@dataclass(frozen=True)
class StepCheck:
    """What checking a step found.

    Attributes:
        pieces: in order of rank and microbatch.
        divisor: what the wrapper divides by; the median where it differs by parameter.
        difference: of the gradient from the one of the loss sums over their tokens, relative.
        within: up to which difference it is right.
        verdict: "right", "wrong", or "inconclusive", on the weights of the tokens.
        rule: the name of the rule that gives the weights; None where none was looked for.
        covers: "token losses" where a known loss function was seen, so that weights are those of single tokens; "loss
            sums" where only what follows the loss sum could be checked.
        reason: what else there is to say.
        story: what the rule does; `remedy`: what to change.
    """

    pieces: tuple[PieceCheck, ...]
    divisor: float
    difference: float
    within: float
    verdict: str = "right"
    rule: str | None = None
    covers: str = "loss sums"
    reason: str = ""
    story: str = ""
    remedy: str = ""

    @property
    def is_right(self) -> bool:
        """Whether every token weighs what it should, to the precision of the gradients."""
        return self.difference <= self.within and self.verdict == "right"

    def table(self) -> str:
        """The weights, one microbatch a line."""
        named = any(piece.term for piece in self.pieces)
        width = max([4, *(len(piece.term) for piece in self.pieces)])
        lines = [f"rank  microbatch  {'term':<{width}}  " * named or "rank  microbatch  "]
        lines[0] += "tokens  relative weight"
        for piece in self.pieces:
            weight = "-" if piece.weight is None else f"{piece.weight:.4f}"
            term = f"{piece.term:<{width}}  " if named else ""
            lines.append(f"{piece.rank:4d}  {piece.microbatch:10d}  {term}{piece.tokens:6d}  {weight:>15}")
        return "\n".join(lines)


def judge_step(
    places: Sequence[Place],
    check: GradientCheck,
    totals: Mapping[str, int],
    coefficients: Mapping[str, float],
    *,
    divisor: float,
    world_size: int,
) -> StepCheck:
    """The verdict on a step.

    Args:
        places: every piece of every rank.
        check: what the pieces' loss sums got in the gradient.
        totals: tokens of each term in the whole step.
        coefficients: what each term is multiplied by.
        divisor: what the wrapper divides by.
        world_size: number of ranks.
    """
    from weighbridge.verdict import judge_gradient  # needs pydantic, and only here

    terms: list[WeighedTerm] = []
    for name, coefficient in coefficients.items():
        chosen = [index for index, place in enumerate(places) if place.term == name]
        mine = [places[index] for index in chosen]
        goal = coefficient / max(totals[name], 1)
        sums = [None if check.weights[index] is None else (check.weights[index] or 0.0) * goal for index in chosen]
        terms += _terms_of(name, coefficient, mine, sums, world_size)
    solved = check.difference > check.within
    epsilon = max([2.0**-23, *(call.epsilon for place in places for call in place.calls)])
    found = judge_gradient(GradientReading(tuple(terms), epsilon, spread=SOLVED if solved else 0.0), "token-mean")
    return StepCheck(
        pieces=_pieces(places, found),
        divisor=divisor,
        difference=check.difference,
        within=check.within,
        verdict=_verdict(check, found),
        rule=found.rule,
        covers="token losses" if any(place.calls for place in places) else "loss sums",
        reason="; ".join(part for part in (_miscounted(places, totals), found.reason) if part),
        story=found.story,
        remedy=found.remedy,
    )


def _verdict(check: GradientCheck, found: Gradient) -> str:
    if check.difference > max(check.within, COARSE):
        return Verdict.WRONG.value
    return (Verdict.INCONCLUSIVE if check.difference > check.within else found.verdict).value


def _terms_of(
    name: str, coefficient: float, places: Sequence[Place], sums: Sequence[float | None], world_size: int
) -> list[WeighedTerm]:
    """The term as what is judged: one entry, or one for each loss function that it is made of."""
    series = _series(places) or [[None] * len(places)]
    microbatches = max((place.microbatch for place in places), default=-1) + 1
    made = []
    for number, calls in enumerate(series):
        level = _level(places, calls)
        rows = [
            row
            for place, call, weight in zip(places, calls, sums, strict=True)
            if call is not None or number == 0
            for row in _rows(place, call, weight, level)
        ]
        title = _title(name, number)
        known = coefficient if len(series) == 1 else None
        table = Table(tuple(rows), world_size, microbatches, term=title)
        # Besides the main loss, elements may be averaged first and then counted by token, or not: both are meant.
        aside = number > 0 and any(call is not None and not call.labels for call in calls)
        made.append(WeighedTerm(title, (table,), coefficient=known, scalar=aside))
    return made


def _title(name: str, number: int) -> str:
    return (name or "loss") + (f", loss function {number + 1}" if number else "")


def _series(places: Sequence[Place]) -> list[Calls]:
    """The known calls of the pieces, the n-th of each piece together; the one that tokens were counted for is first.

    Calls that all weigh 1 are one loss, taken in parts, unless the tokens were counted for one of them. Where other
    things than labels were counted, sequences say, a piece is taken as a whole if its weights add up to that number.
    """
    longest = max((len(place.calls) for place in places), default=0)
    series = [[place.calls[n] if n < len(place.calls) else None for place in places] for n in range(longest)]
    every = [call for place in places for call in place.calls]
    declared = sum(place.tokens for place in places)
    counts = [sum(_items(call) for call in calls if call is not None) for calls in series]
    if declared in counts:
        return sorted(series, key=lambda calls: counts[series.index(calls)] != declared)
    if len({call.function for call in every}) == 1 and all(_is_one(call) for call in every):
        return [[_joined(place.calls) for place in places]]
    if longest and all(_adds_up(place) for place in places):
        return [[None] * len(places)]
    return series


def _adds_up(place: Place) -> bool:
    total = sum(weight for call in place.calls for _, _, weight in call.rows)
    return abs(total - place.tokens) <= LEVEL * place.tokens


def _is_one(call: CallWeights) -> bool:
    return not call.free and all(abs(total - touched) <= LEVEL * touched for _, touched, total in call.rows)


def _joined(calls: Sequence[CallWeights]) -> CallWeights | None:
    if len(calls) < 2:
        return calls[0] if calls else None
    rows = [row for call in calls for row in call.rows]
    return CallWeights(calls[0].function, calls[0].labels, False, rows, max(call.epsilon for call in calls))


def _level(places: Sequence[Place], calls: Calls) -> float:
    """What all weights are relative to: 1, or their median where their level says nothing.

    Elements stand for as many tokens as were counted, so what one of them should weigh is known only where they are
    the tokens.
    """
    known = [(place, call) for place, call in zip(places, calls, strict=True) if call is not None]
    elements = any(not call.labels and _items(call) != place.tokens for place, call in known)
    if not elements and not any(call.free for _, call in known):
        return 1.0
    weights = [
        row.weight / row.mass
        for place, call in known
        for row in _rows(place, call, 1.0, 1.0)
        if row.mass and row.weight is not None
    ]
    return float(np.median(weights)) if weights else 1.0


def _items(call: CallWeights) -> int:
    return sum(counted for counted, _, _ in call.rows)


def _rows(place: Place, call: CallWeights | None, weight: float | None, level: float) -> list[Row]:
    """The rows of one piece, `weight` being that of its loss sum in the gradient."""
    if call is None:
        total = None if weight is None else place.tokens * weight
        return [Row(place.rank, place.microbatch, 0, place.tokens, float(place.tokens), 0.0, weight=total)]
    items = _items(call)
    masked = items != place.tokens == sum(touched for _, touched, _ in call.rows)
    made = []
    for sequence, (counted, touched, total) in enumerate(call.rows):
        number = touched if masked else counted
        tokens = float(number) if call.labels or not items else place.tokens * number / items
        given = None if weight is None else total / level * weight
        made.append(Row(place.rank, place.microbatch, sequence, round(tokens), tokens, 0.0, weight=given))
    return made


def _miscounted(places: Sequence[Place], totals: Mapping[str, int]) -> str:
    """Where more or fewer tokens were counted than have a loss."""
    told = []
    for name, declared in totals.items():
        mine = [place for place in places if place.term == name]
        series = _series(mine)
        if not series or any(call is not None and not call.labels for call in series[0]):
            continue
        pairs = zip(mine, series[0], strict=True)
        held = sum(row.tokens for place, call in pairs for row in _rows(place, call, 1.0, 1.0))
        if held != declared:
            told.append(f"{declared} tokens were counted{f' for {name}' * bool(name)}, and {held} have a loss")
    return "; ".join(told)


def _pieces(places: Sequence[Place], found: Gradient) -> tuple[PieceCheck, ...]:
    weights = {
        (term.name, piece.rank, piece.microbatch): piece.relative_weight
        for term in found.terms
        for piece in term.pieces
    }
    return tuple(
        PieceCheck(
            place.rank,
            place.microbatch,
            place.tokens,
            weights.get((_title(place.term, 0), place.rank, place.microbatch)) if place.tokens else None,
            place.term,
        )
        for place in places
    )


def refusal(check: StepCheck) -> WeightError:
    """The error for a step whose tokens don't weigh what they should."""
    if check.difference > check.within:
        what = (
            f"The gradient of the first step differs from the token mean's by {check.difference:.2g} of its size; up "
            f"to {check.within:.2g} is rounding."
        )
        where = (
            "Look for what scales or skips some microbatches between backward and finish: an accumulation that divides "
            "by itself, a clip before finish, gradients that are cleared or not reduced."
        )
    else:
        what = "The loss sums of the first step don't weigh every token alike."
        where = (
            "Hand in the sum of the losses, not their mean, and the number of tokens that have a loss; or the losses "
            "and a mask. Where tokens are meant to weigh differently, say check='gradient': then nothing before the "
            "loss sum is looked at."
        )
    rule = f"Rule: {check.rule}. {check.story} {check.remedy}".strip() if check.rule else ""
    parts = (
        f"{what} Every token of a step has to weigh the same (relative weight 1).",
        check.table(),
        rule,
        f"{check.reason[:1].upper()}{check.reason[1:]}." if check.reason else "",
        where,
    )
    return WeightError("\n".join(part for part in parts if part))

"""The verdict on the gradient: that of its worst term, or that its ranks disagree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weighbridge.band import band_of, too_noisy
from weighbridge.duplicates import duplicated_items, replicated_ranks
from weighbridge.judge_term import Context, judge_term
from weighbridge.objectives import parse_objective
from weighbridge.outcome import Gradient, Term, Verdict
from weighbridge.pieces import Table
from weighbridge.readings import Clip, GradientReading
from weighbridge.rules import RULES

__all__ = ["judge_gradient"]

_ORDER = (Verdict.WRONG, Verdict.INCONCLUSIVE, Verdict.RIGHT)


def judge_gradient(reading: GradientReading, objective: str) -> Gradient:
    """The verdict on the weights of a weighed run's gradient.

    The main term comes first in `reading.terms`. The verdict is the worst over all terms (wrong before inconclusive
    before right), and `rule`, `factor` and `pieces` are that term's; the main term's where several are equally bad.

    Raises:
        InputError: `objective` names none.
    """
    main = next((term for term in reading.terms if not term.scalar), None)
    tables = main.tables if main else ()
    counts = [float(table.columns.mass.sum()) for table in tables]
    precision = band_of(reading.epsilon, reading.spread, smallest_count=min((n for n in counts if n > 0), default=0.0))
    context = Context(
        parse_objective(objective), precision, reading.epsilon, reading.clips, tables, alone=len(reading.terms) == 1
    )
    if not reading.terms:
        return Gradient(verdict=Verdict.INCONCLUSIVE, reason="no gradient was read", precision=precision)
    terms = [judge_term(term, context, main=index == 0) for index, term in enumerate(reading.terms)]
    if too_noisy(reading.spread):
        terms = [_unreadable(term, reading.spread) for term in terms]
    index = next(index for index, term in enumerate(terms) if not term.scalar) if main else 0
    terms[index] = _with_duplicates(terms[index], tables)
    worst = min(terms, key=lambda term: _ORDER.index(term.verdict))
    steps = {table.step: table.microbatches for term in reading.terms for table in term.tables}
    shared = {
        name: getattr(worst, name)
        for name in (
            "verdict",
            "rule",
            "factor",
            "factor_name",
            "indistinguishable",
            "story",
            "remedy",
            "reason",
            "pieces",
        )
    }
    found = Gradient(
        **shared, precision=precision, term=worst.name, terms=terms, clip_factors=_outer_clips(reading.clips, steps)
    )
    return _with_disagreement(found, reading) if reading.disagreement > precision.right_within else found


def _unreadable(term: Term, spread: float) -> Term:
    reason = f"two readings of one weight differ by {spread:.2g}: nothing can be told from weights this noisy"
    return term.model_copy(
        update={
            "verdict": Verdict.INCONCLUSIVE,
            "reason": reason,
            "rule": None,
            "factor": None,
            "factor_name": None,
            "indistinguishable": [],
            "story": "",
            "remedy": "",
        }
    )


def _with_duplicates(term: Term, tables: Sequence[Table]) -> Term:
    """The finding with what the items' contents say about it."""
    places = duplicated_items(tables)
    if places:
        more = f" and {len(places) - 6} more" if len(places) > 6 else ""
        remark = f"the same items were fed more than once: {', '.join(places[:6])}{more}"
        if term.verdict is Verdict.RIGHT:
            rule = RULES["duplicated-items"]
            return term.model_copy(
                update={
                    "verdict": Verdict.WRONG,
                    "rule": rule.id,
                    "story": rule.story,
                    "remedy": rule.remedy,
                    "reason": remark,
                    "indistinguishable": [],
                }
            )
    elif replicated_ranks(tables):
        remark = "every rank was fed the same items: they differ only within a rank"
    else:
        return term
    return term.model_copy(update={"reason": f"{term.reason}; {remark}" if term.reason else remark})


def _outer_clips(clips: Sequence[Clip], steps: dict[int, int]) -> list[float]:
    """The factors of clips after the last microbatch, one a step (that of the lowest rank)."""
    outer = [clip for clip in clips if clip.microbatches >= steps.get(clip.step, 0)]
    by_step: dict[int, float] = {}
    for clip in sorted(outer, key=lambda clip: (clip.step, clip.rank)):
        by_step.setdefault(clip.step, clip.factor)
    return list(by_step.values())


def _with_disagreement(found: Gradient, reading: GradientReading) -> Gradient:
    rule = RULES["unsynchronised-ranks"]
    ranks = ", ".join(str(rank) for rank in reading.disagreeing_ranks) or "unknown"
    size = "without bound" if not np.isfinite(reading.disagreement) else f"by up to {reading.disagreement:.2g}"
    reason = f"the reduced weights of rank {ranks} differ {size} from those of the lowest rank"
    return found.model_copy(
        update={
            "verdict": Verdict.WRONG,
            "rule": rule.id,
            "story": rule.story,
            "remedy": rule.remedy,
            "factor": None,
            "factor_name": None,
            "indistinguishable": [],
            "reason": reason,
        }
    )

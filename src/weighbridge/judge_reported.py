"""The verdict on one logged number: which rule gives the values that were logged, tracer constants included.

Four questions, in this order. Does a rule give every value, within half a printed digit and rounding? Does a rule
give the exponential of it (a perplexity)? Does a rule give it up to one offset that stays the same (a total with
other terms in it)? Does it at least move when the tracer does? If none: it has nothing to do with the weighed losses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weighbridge.band import FINE
from weighbridge.factors import joined_names
from weighbridge.fitting import LOSS_NAME, Fit, find_fit, moves
from weighbridge.matching import Tier
from weighbridge.objectives import Objective, parse_objective
from weighbridge.outcome import PieceWeight, Precision, Reported, Verdict
from weighbridge.predictions import MEAN, Family, Prediction, Windows
from weighbridge.readings import LoggedNumber
from weighbridge.reported_pieces import reported_pieces
from weighbridge.rules import rule_of

__all__ = ["judge_reported"]


def judge_reported(number: LoggedNumber, objective: str) -> Reported | None:
    """The verdict on one logged number, or None where it has nothing to do with the weighed losses.

    Raises:
        InputError: `objective` names none.
    """
    goal = parse_objective(objective)
    values = [value for value in number.values if value.tables]
    if not values or sum(len(table.rows) for value in values for table in value.tables) == 0:
        return None
    windows = Windows(values)
    if not windows.usable.any():
        return _unusable(number, windows, goal)
    family = Family(windows, goal, number.rank)
    fit = find_fit(number, family)
    if fit is not None:
        return _found(number, family, fit)
    if moves(number, family):
        return _unexplained(number, family)
    return None


def _found(number: LoggedNumber, family: Family, fit: Fit) -> Reported:
    best = fit.predictions[0]
    right = best.tier is Tier.OBJECTIVE
    rule = rule_of(best.rule)
    fits = [other.rule for other in fit.predictions if other.tier <= max(best.tier, Tier.PARTIAL)]
    names = [
        other.factor_name
        for other in fit.predictions
        if other.factor_name
        and (other.rule, other.base, other.scope, other.reach) == (best.rule, best.base, best.scope, best.reach)
    ]
    pieces = reported_pieces(family, best, fit.observed - fit.offset)
    verdict = Verdict.RIGHT if right else Verdict.WRONG
    close = "" if right else _too_close(number, family, fit)
    verdict = Verdict.INCONCLUSIVE if close else verdict
    return _record(number, family.windows, family, verdict, pieces).model_copy(
        update={
            "rule": rule.id,
            "factor": best.factor,
            "story": rule.story,
            "remedy": "" if right else rule.remedy,
            "factor_name": joined_names(list(dict.fromkeys(names))) if best.factor_name else None,
            "indistinguishable": [other for other in dict.fromkeys(fits) if other != rule.id],
            "reason": "; ".join(part for part in (_words(best, family), fit.remark, close, _caution(family)) if part),
            "precision": _precision(fit),
        }
    )


def _precision(fit: Fit) -> Precision:
    text = (
        "A value may be off by half a printed digit and by rounding of the losses in it; beyond that it does not "
        "meet a rule."
    )
    return Precision(right_within=fit.tolerance, wrong_from=fit.tolerance, derivation=text)


def _too_close(number: LoggedNumber, family: Family, fit: Fit) -> str:
    """Why a number in a coarse dtype that another rule meets is not called wrong, or ""."""
    use, right = family.windows.usable, family.right.values
    off = float(np.max(np.abs((fit.observed - fit.offset - right)[use]) / np.maximum(np.abs(right[use]), 1e-300)))
    if number.epsilon <= FINE or off > 2 * fit.tolerance:
        return ""
    return (
        f"the values differ by only {off:.2g} from what the objective gives, which rounding in the dtype of the "
        "losses could nearly explain"
    )


def _words(best: Prediction, family: Family) -> str:
    """What the rule's story leaves open."""
    parts = []
    if best.scope:
        parts.append(f"it covers only {best.scope}")
        if best.base not in (family.objective.rule, best.rule):
            parts.append(f"combined with {best.base}")
    if best.reach != MEAN:
        parts.append(f"it covers {best.reach}")
    return "; ".join(parts)


def _caution(family: Family) -> str:
    traced = bool(np.any(family.windows.shift[family.windows.sums.n > 0] != 0))
    return "" if traced else "judged by its values alone: no tracer constant was in any of them"


def _unexplained(number: LoggedNumber, family: Family) -> Reported:
    rule = rule_of("unexplained")
    windows = family.windows
    base = family.right.values - family.right.shift
    still = windows.usable & (family.right.shift == 0)
    level = float(np.median((windows.values - base)[still])) if still.any() else 0.0
    nothing = replace(family.right, rule=rule.id)
    pieces = reported_pieces(family, nothing, windows.values - level, infer=False)
    return _record(number, windows, family, Verdict.WRONG, pieces).model_copy(
        update={
            "rule": rule.id,
            "story": rule.story,
            "remedy": rule.remedy,
            "reason": "it moves with the tracer, and no rule gives its values" + _repeats(number),
        }
    )


def _repeats(number: LoggedNumber) -> str:
    """What to add where items came more than once in the pass behind the last value."""
    contents = [row.content for table in number.values[-1].tables for row in table.rows if row.content is not None]
    repeated = len(contents) - len(set(contents))
    if not repeated or number.phase != "evaluation":
        return ""
    return (
        f"; {repeated} of its {len(contents)} items came twice, as samplers repeat items to even out ranks, and "
        "may have been cut off again"
    )


def _unusable(number: LoggedNumber, windows: Windows, objective: Objective) -> Reported | None:
    """The record of a loss of which no value can be compared; None where the name doesn't say that it is a loss."""
    if not LOSS_NAME.search(number.name):
        return None
    if not np.isfinite(windows.values).any():
        reason = "every value that was logged is NaN or infinite"
    elif windows.broken.any():
        reason = "the losses behind every value are NaN or infinite"
    else:
        reason = "every label was masked: nothing was counted"
    return _record(number, windows, None, Verdict.INCONCLUSIVE, []).model_copy(update={"reason": reason})


def _record(
    number: LoggedNumber, windows: Windows, family: Family | None, verdict: Verdict, pieces: list[PieceWeight]
) -> Reported:
    sizes = [len(value.tables) for value in number.values if value.tables]
    known = np.zeros(len(windows.values), dtype=bool) if family is None else windows.usable
    right = family.right.values if family is not None else windows.values
    position = iter(range(len(windows.values)))
    order = [next(position) if value.tables else None for value in number.values]
    return Reported(
        name=number.name,
        source=number.source,
        phase=number.phase,
        rank=number.rank,
        verdict=verdict,
        window=int(np.median(sizes)) if sizes else 1,
        values=[value.value for value in number.values],
        right_values=[float(right[i]) if i is not None and known[i] else None for i in order],
        pieces=pieces,
    )

"""The verdict on one logged number: which rule gives the values that were logged, tracer constants included.

Four questions, in this order. Does a rule give every value, within half a printed digit and rounding? Does a rule
give the exponential of it (a perplexity)? Does a rule give it up to one offset that stays the same (a total with
other terms in it)? Does it at least move when the tracer does? If none: it has nothing to do with the weighed losses.

A fit has to be worth more than chance: with thousands of predictions, a learning rate can meet one of them. What a
fit is worth is counted in decimal digits, and simple rules need fewer than composed ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from weighbridge.matching import Tier
from weighbridge.objectives import Objective, parse_objective
from weighbridge.outcome import PieceWeight, Reported, Verdict
from weighbridge.predictions import MEAN, Family, Prediction, Windows
from weighbridge.readings import LoggedNumber
from weighbridge.reported_pieces import reported_pieces
from weighbridge.rules import rule_of
from weighbridge.sums import Floats, Integers

__all__ = ["judge_reported"]

_LOSS_NAME = re.compile(r"loss|nll|ppl|perplex|xent|cross.?entropy", re.IGNORECASE)
_DIGITS_NEEDED = {Tier.OBJECTIVE: 2.0, Tier.EXACT: 2.5, Tier.SCALED: 3.5}  # others: 4
_OFFSET_SHARE = 0.02  # of the tracer's smallest shift: what an offset may vary by
_OFFSET_LEAD = 5.0  # times smaller than the next rule's variation


@dataclass(frozen=True)
class _Fit:
    """The predictions that fit, the one that assumes least first, and what had to be assumed about the number."""

    predictions: list[Prediction]
    observed: Floats  # values [values], as the prediction is compared with them
    offset: float = 0.0
    remark: str = ""


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
    fit = _direct(family, number.epsilon) or _exponential(family, number.epsilon) or _offset(family)
    if fit is not None:
        return _found(number, family, fit)
    if _moves(number, family):
        return _unexplained(number, family)
    return None


# ---- the four questions


def _quantum(values: Floats) -> float:
    """The printed step of the values: 0.0001 where all are rounded to four digits; 0 where none shows."""
    for digits in range(8):
        if np.array_equal(np.round(values, digits), values):
            return float(10.0**-digits)
    return 0.0


def _direct(family: Family, epsilon: float) -> _Fit | None:
    windows = family.windows
    observed = windows.values[windows.usable]
    for half in dict.fromkeys((0.0, _quantum(observed) / 2)):
        found = _fitting(family, windows.values, half, epsilon, composed=True)
        if found:
            return _Fit(found, windows.values)
    return None


def _exponential(family: Family, epsilon: float) -> _Fit | None:
    windows = family.windows
    values = windows.values[windows.usable]
    if values.min() <= 0:
        return None
    logs = np.log(np.where(windows.usable, windows.values, 1.0))
    for half in dict.fromkeys((0.0, _quantum(values) / 2)):
        found = _fitting(family, logs, half / np.exp(logs), epsilon, composed=False)
        if found:
            base = "the token mean" if found[0].rule == "token-mean" else "what the rule gives"
            return _Fit(found, logs, remark=f"it is the exponential of {base} (a perplexity)")
    return None


def _fitting(family: Family, observed: Floats, half: float | Floats, epsilon: float, *,
             composed: bool) -> list[Prediction]:
    """The predictions [sorted] that meet every usable value and are worth more than chance."""
    windows, use = family.windows, family.windows.usable
    spread_half = np.broadcast_to(np.asarray(half, dtype=np.float64), observed.shape)[use]
    found: list[tuple[int, Prediction]] = []
    for place, block in enumerate(family.blocks):
        values = block.values[:, :, use]
        tolerance = spread_half + 16 * max(epsilon, 2.0**-24) * (block.size[:, :, use] + (0.0 if composed else 1.0))
        meets = (np.abs(values - observed[use]) <= tolerance).all(axis=2)
        if not composed:
            meets = meets & np.array([label == "" for label in block.labels])
        if not meets.any():
            continue
        tiers = block.tiers(family.objective.rule)
        meets &= _digits(values, tolerance) >= _needed(tiers)
        found += [(place, block.prediction(int(b), int(f), windows, family.objective.rule))
                  for b, f in np.argwhere(meets)]
    return [prediction for _, prediction in sorted(found, key=lambda entry: (entry[1].tier, entry[0]))]


def _digits(values: Floats, tolerance: Floats) -> Floats:
    """What meeting all values is worth, in decimal digits [bases, factors].

    The first value counts with its own size, every further one only with how far predictions differ between values.
    """
    tiny = np.maximum(tolerance.mean(axis=2), 1e-300)
    first = np.log10(np.maximum(np.abs(values).mean(axis=2) / tiny, 1e-9))
    further = np.log10(np.maximum(np.ptp(values, axis=2) / tiny, 1.0))
    return np.asarray(first + (values.shape[2] - 1) * further)


def _needed(tiers: Integers) -> Floats:
    return np.asarray(np.vectorize(lambda tier: _DIGITS_NEEDED.get(Tier(tier), 4.0), otypes=[np.float64])(tiers))


def _offset(family: Family) -> _Fit | None:
    """The rule that gives the number up to one offset: a total that contains other terms."""
    windows, use = family.windows, family.windows.usable
    if use.sum() < 3:
        return None
    half = _quantum(windows.values[use])
    candidates: list[tuple[float, Prediction]] = []
    for block in family.blocks:
        if block.reach != MEAN or (block.scope.rule is not None and not block.scope.own):
            continue
        for index in range(len(block.rules)):
            prediction = block.prediction(index, 0, windows, family.objective.rule)
            spread = float(np.ptp((windows.values - prediction.values)[use]))
            moved = np.abs(prediction.shift[use])
            smallest = moved[moved > 0].min(initial=np.inf)
            if np.isfinite(smallest) and np.ptp(moved) > 0 and half < smallest / 10:
                candidates.append((spread / smallest, prediction))
    if not candidates:
        return None
    best = min(share for share, _ in candidates)
    if best > _OFFSET_SHARE:
        return None
    limit = max(_OFFSET_LEAD * best, 1e-12)
    near = sorted((p for share, p in candidates if share <= limit), key=lambda p: p.tier)
    left = (windows.values - near[0].values)[use]
    offset = float(left.mean())
    remark = (f"it contains other terms that add {offset:.4g} (between {left.min():.4g} and {left.max():.4g}) to the "
              "weighed loss")
    return _Fit(near, windows.values, offset, remark)


def _moves(number: LoggedNumber, family: Family) -> bool:
    """Whether the number clearly follows the tracer although no rule gives its values."""
    use = family.windows.usable
    shift, values = family.right.shift[use], family.windows.values[use]
    if np.all(shift == 0) or np.all(shift != 0):
        return False
    known = values - (family.right.values - family.right.shift)[use]  # what the losses themselves don't explain
    values = min(values, known, key=lambda series: float(np.ptp(series[shift == 0])))
    still, traced = values[shift == 0], shift != 0
    needed = 2 if _LOSS_NAME.search(number.name) else 4
    if len(still) < needed:
        return False
    rise = (values[traced] - np.median(still)) / shift[traced]
    noise = np.ptp(still) / np.abs(shift[traced])
    follows = (rise > 0.05) & (rise > 4 * noise) & (rise < 100)
    return bool(follows.sum() >= max(1, needed // 2) and not np.any(rise < -4 * noise - 0.05))


# ---- the records


def _found(number: LoggedNumber, family: Family, fit: _Fit) -> Reported:
    best = fit.predictions[0]
    right = best.tier is Tier.OBJECTIVE
    rule = rule_of(best.rule)
    fits = [other.rule for other in fit.predictions if other.tier <= max(best.tier, Tier.PARTIAL)]
    names = [other.factor_name for other in fit.predictions if other.factor_name
             and (other.rule, other.base, other.scope, other.reach) == (best.rule, best.base, best.scope, best.reach)]
    pieces = reported_pieces(family, best, fit.observed - fit.offset)
    verdict = Verdict.RIGHT if right else Verdict.WRONG
    return _record(number, family.windows, family, verdict, pieces).model_copy(update={
        "rule": rule.id, "factor": best.factor, "story": rule.story, "remedy": "" if right else rule.remedy,
        "factor_name": ", or ".join(dict.fromkeys(names[:3])) if best.factor_name else None,
        "indistinguishable": [other for other in dict.fromkeys(fits) if other != rule.id],
        "reason": "; ".join(part for part in (_words(best, family), fit.remark, _caution(family)) if part)})


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
    level = float(np.median((windows.values - base)[still]))
    nothing = replace(family.right, rule=rule.id)
    pieces = reported_pieces(family, nothing, windows.values - level, infer=False)
    return _record(number, windows, family, Verdict.WRONG, pieces).model_copy(update={
        "rule": rule.id, "story": rule.story, "remedy": rule.remedy,
        "reason": "it moves with the tracer, and no rule gives its values"})


def _unusable(number: LoggedNumber, windows: Windows, objective: Objective) -> Reported | None:
    """The record of a loss of which no value can be compared; None where the name doesn't say that it is a loss."""
    if not _LOSS_NAME.search(number.name):
        return None
    if not np.isfinite(windows.values).any():
        reason = "every value that was logged is NaN or infinite"
    elif windows.broken.any():
        reason = "the losses behind every value are NaN or infinite"
    else:
        reason = "every label was masked: nothing was counted"
    return _record(number, windows, None, Verdict.INCONCLUSIVE, []).model_copy(update={"reason": reason})


def _record(number: LoggedNumber, windows: Windows, family: Family | None, verdict: Verdict,
            pieces: list[PieceWeight]) -> Reported:
    sizes = [len(value.tables) for value in number.values if value.tables]
    known = np.zeros(len(windows.values), dtype=bool) if family is None else windows.usable
    right = family.right.values if family is not None else windows.values
    position = iter(range(len(windows.values)))
    order = [next(position) if value.tables else None for value in number.values]
    return Reported(
        name=number.name, source=number.source, phase=number.phase, rank=number.rank, verdict=verdict,
        window=int(np.median(sizes)) if sizes else 1, values=[value.value for value in number.values],
        right_values=[float(right[i]) if i is not None and known[i] else None for i in order], pieces=pieces)

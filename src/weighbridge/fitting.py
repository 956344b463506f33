"""Which predictions give a logged number: directly, up to rounding; as an exponential; up to one offset.

A fit has to be worth more than chance: with thousands of predictions, a learning rate can meet one of them. What a
fit is worth is counted in decimal digits, and simple rules need fewer than composed ones.

A value may be off by half a printed digit, and by rounding: 16 epsilon of the sum of all absolute values in it for a
fine dtype, 4 epsilon (eight casts of half an epsilon, as in `weighbridge.band`) for a coarse one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from weighbridge.band import FINE
from weighbridge.matching import Tier
from weighbridge.predictions import MEAN, Block, Family, Prediction
from weighbridge.readings import LoggedNumber
from weighbridge.sums import Floats, Integers

__all__ = ["LOSS_NAME", "Fit", "find_fit", "moves", "quantum", "rounding_of"]

LOSS_NAME = re.compile(r"loss|nll|ppl|perplex|xent|cross.?entropy", re.IGNORECASE)
_DIGITS_NEEDED = {Tier.OBJECTIVE: 2.0, Tier.EXACT: 2.5, Tier.SCALED: 3.5}  # others: 4; one less for a loss by name
_OFFSET_SHARE = 0.02  # of the tracer's smallest shift: what an offset may vary by
_OFFSET_LEAD = 5.0  # times smaller than the next rule's variation
_OFFSET_FACTORS = frozenset(("", "W", "1/W", "M", "1/M", "W*M", "1/(W*M)"))
_FOLLOWS_FROM = 0.3  # relative weight from which a number counts as following the tracer, whatever its rule


@dataclass(frozen=True)
class Fit:
    """The predictions that fit, the one that assumes least first, and what had to be assumed about the number."""

    predictions: list[Prediction]
    observed: Floats  # values [values], as the prediction is compared with them
    tolerance: float  # relative, of the value it is largest for
    offset: float = 0.0
    remark: str = ""


def find_fit(number: LoggedNumber, family: Family) -> Fit | None:
    """The simplest way in which a rule gives this number, or None."""
    named = bool(LOSS_NAME.search(number.name))
    needed = {tier: _DIGITS_NEEDED.get(tier, 4.0) - named for tier in Tier}
    if not named and family.windows.usable.sum() == 1:  # one number of unknown meaning: a runtime, an accuracy
        needed |= {tier: np.inf for tier in Tier if tier > Tier.EXACT}
    return _direct(family, number.epsilon, needed) or _exponential(family, number.epsilon, needed) or _offset(family)


def quantum(values: Floats) -> float:
    """The printed step of the values: 0.0001 where all are rounded to four digits; 0 where none shows."""
    for digits in range(8):
        if np.array_equal(np.round(values, digits), values):
            return float(10.0**-digits)
    return 0.0


def rounding_of(epsilon: float) -> float:
    """What rounding may do to a value, relative to the sum of the absolute values in it."""
    return 16 * max(epsilon, 2.0**-24) if epsilon <= FINE else 4 * epsilon


def _direct(family: Family, epsilon: float, needed: dict[Tier, float]) -> Fit | None:
    windows = family.windows
    values = windows.values[windows.usable]
    halves = dict.fromkeys((0.0, quantum(values) / 2))  # unrounded first: losses of a small test are round by nature
    found = [
        (half, _fitting(family, windows.values, np.full(len(windows.values), half), epsilon, needed)) for half in halves
    ]
    half, best = min(found, key=lambda entry: entry[1][0].tier if entry[1] else len(Tier))
    if not best:
        return None
    return Fit(best, windows.values, rounding_of(epsilon) + half / max(float(np.abs(values).min()), 1e-300))


def _exponential(family: Family, epsilon: float, needed: dict[Tier, float]) -> Fit | None:
    windows = family.windows
    values = windows.values[windows.usable]
    if values.min() <= 0:
        return None
    logs = np.log(np.where(windows.usable, windows.values, 1.0))
    for half in dict.fromkeys((0.0, quantum(values) / 2)):
        slack = half / np.exp(logs) + rounding_of(epsilon)
        found = [p for p in _fitting(family, logs, slack, epsilon, needed) if not p.factor_name]
        if found:
            base = "the token mean" if found[0].rule == "token-mean" else "what this rule gives"
            return Fit(found, logs, float(slack.max()), remark=f"it is the exponential of {base} (a perplexity)")
    return None


def _fitting(
    family: Family, observed: Floats, slack: Floats, epsilon: float, needed: dict[Tier, float]
) -> list[Prediction]:
    """The predictions [sorted] that meet every usable value and are worth more than chance."""
    windows, use = family.windows, family.windows.usable
    found: list[tuple[int, Prediction]] = []
    for place, block in enumerate(family.blocks):
        values = block.values[:, :, use]
        tolerance = slack[use] + rounding_of(epsilon) * block.size[:, :, use]
        meets = (np.abs(values - observed[use]) <= tolerance).all(axis=2)
        if not meets.any():
            continue
        meets &= _digits(values, tolerance) >= _by_tier(block.tiers(family.objective.rule), needed)
        found += [
            (place, block.prediction(int(b), int(f), windows, family.objective.rule)) for b, f in np.argwhere(meets)
        ]
    return [prediction for _, prediction in sorted(found, key=lambda entry: (entry[1].tier, entry[0]))]


def _digits(values: Floats, tolerance: Floats) -> Floats:
    """What meeting all values is worth, in decimal digits [bases, factors].

    The first value counts with its own size, every further one only with how far predictions differ between values.
    """
    tiny = np.maximum(tolerance.mean(axis=2), 1e-300)
    first = np.log10(np.maximum(np.abs(values).mean(axis=2) / tiny, 1e-9))
    further = np.log10(np.maximum(np.ptp(values, axis=2) / tiny, 1.0))
    return np.asarray(first + (values.shape[2] - 1) * further)


def _by_tier(tiers: Integers, needed: dict[Tier, float]) -> Floats:
    return np.array([needed[tier] for tier in Tier])[tiers]


def _offset(family: Family) -> Fit | None:
    """The rule that gives the number up to one offset: a total that contains other terms."""
    windows, use = family.windows, family.windows.usable
    if use.sum() < 3:
        return None
    printed = quantum(windows.values[use])
    shares = [
        (block, _offset_shares(block, windows.values, use, printed))
        for block in family.blocks
        if block.reach == MEAN and (block.scope.rule is None or block.scope.own)
    ]
    best = min((float(share.min()) for _, share in shares), default=np.inf)
    if best > _OFFSET_SHARE:
        return None
    limit = max(_OFFSET_LEAD * best, 1e-12)
    near = [
        block.prediction(int(b), int(f), windows, family.objective.rule)
        for block, share in shares
        for b, f in np.argwhere(share <= limit)
    ]
    near.sort(key=lambda prediction: prediction.tier)
    left = (windows.values - near[0].values)[use]
    offset, largest = float(left.mean()), float(np.abs(left).max())
    remark = (
        f"it contains other terms that add {offset:.4g} (between {left.min():.4g} and {left.max():.4g}) to the "
        "weighed loss"
    )
    if largest < 1e-3 * float(np.abs(windows.values[use]).max()):
        remark = f"its values differ by up to {largest:.2g} from what was computed from the weighed losses"
    return Fit(
        near,
        windows.values,
        float(np.ptp(left) / max(float(np.abs(windows.values[use]).min()), 1e-300)),
        offset,
        remark,
    )


def _offset_shares(
    block: Block, observed: Floats, use: np.ndarray[tuple[int], np.dtype[np.bool_]], printed: float
) -> Floats:
    """How much the rest varies, as a share of the tracer's smallest shift [bases, factors]; inf: can't be told."""
    spread = np.ptp((observed - block.values)[:, :, use], axis=2)
    moved = np.abs(block.shift[:, :, use])
    smallest = np.where(moved > 0, moved, np.inf).min(axis=2)
    tells = np.isfinite(smallest) & (np.ptp(moved, axis=2) > 0) & (printed < smallest / 10)
    tells &= np.array([label in _OFFSET_FACTORS for label in block.labels])
    return np.where(tells, spread / np.where(tells, smallest, 1.0), np.inf)


def moves(number: LoggedNumber, family: Family) -> bool:
    """Whether the number clearly follows the tracer although no rule gives its values."""
    use = family.windows.usable
    shift, values = family.right.shift[use], family.windows.values[use]
    if np.all(shift == 0):
        return False
    if np.all(shift != 0):
        return _follows_everywhere(number, family)
    known = values - (family.right.values - family.right.shift)[use]  # what the losses themselves don't explain
    values = min(values, known, key=lambda series: float(np.ptp(series[shift == 0])))
    still, traced = values[shift == 0], shift != 0
    needed = 2 if LOSS_NAME.search(number.name) else 4
    if len(still) < needed:
        return False
    rise = (values[traced] - np.median(still)) / shift[traced]
    noise = np.ptp(still) / np.abs(shift[traced])
    follows = (rise > 4 * noise) & (rise > _FOLLOWS_FROM) & (rise < 100)
    return bool(3 * follows.sum() >= len(rise) and not np.any(rise < -2 * noise - 0.05))


def _follows_everywhere(number: LoggedNumber, family: Family) -> bool:
    """As `moves`, where every value holds tracer constants, as in evaluation: of their size, and varying with them.

    The constants are many times larger than the losses, so a number near their mean holds them, unless by chance; a
    number whose name doesn't say that it is a loss must also vary from pass to pass as they do.
    """
    use = family.windows.usable
    right, shift = family.right.values[use], family.right.shift[use]
    rise = (family.windows.values[use] - (right - shift)) / shift
    if not np.all((rise > 1 / 3) & (rise < 3)):
        return False
    varies = len(rise) > 2 and np.ptp(shift) > 0.05 * np.abs(shift).max()
    return bool(LOSS_NAME.search(number.name)) or bool(varies and np.ptp(rise) < 0.1 * np.ptp(shift) / shift.mean())

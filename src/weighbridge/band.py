"""How far a weight may be from 1 and still be right, and from where on it is wrong.

**Fine dtypes** (epsilon up to 1e-6: float32, float64). A reading goes through a sum, a divide factor, a reduction and
a scale, each rounding by at most half an epsilon; the spread between two differently rounded readings of one weight
measures what that adds up to. Right is within 8 times the larger of the spread and 4 epsilon, wrong from 1000 times
that on.

**Coarse dtypes** (bfloat16, float16). There 1000 times the band would be more than 1. But a slot of the probe belongs
to one microbatch of one rank: in every sum that it goes through, all other addends are exact zeros, and adding zero
does not round. What rounds is a handful of scalings and casts (the divide factor of the microbatch, the average over
ranks, the loss scale, the copy into the dtype of the reduction and back), half an epsilon each. Eight of them make 4
epsilon; a weight is right within that, and wrong from twice that on.

What lies between the two is inconclusive, with one exception: from 16 times the band on, weights that a rule without
any free number gives to within the band are called wrong, because that agreement is no accident.

In both cases a weight that is a quarter off can be called wrong, or the reading is too noisy to say anything.
"""

from __future__ import annotations

from weighbridge.outcome import Precision

__all__ = ["FINE", "band_of", "too_noisy"]

FINE = 1e-6  # largest epsilon of a fine dtype
WRONG_AT_MOST = 0.25  # a weight this far off is wrong in every dtype


def band_of(epsilon: float, spread: float, *, smallest_count: float = 0.0) -> Precision:
    """The band for weights that went through a dtype with `epsilon`, measured to differ by `spread`.

    `smallest_count` is the number of tokens of the smallest weighed step (0: unknown).

    >>> round(band_of(2.0**-7, 0.0).right_within, 5)
    0.03125
    """
    if epsilon <= FINE:
        within = 8 * max(spread, 4 * epsilon)
        wrong = 1000 * within
        text = (
            f"Machine epsilon of the probe's gradient is {epsilon:.2g}, two differently rounded readings of one "
            f"weight differed by {spread:.2g}: right is within 8 times the larger of that spread and 4 epsilon, "
            "wrong from 1000 times that on."
        )
    else:
        within = max(4 * epsilon, 2 * spread)
        wrong = 2 * within
        text = (
            f"Machine epsilon of the probe's gradient is {epsilon:.2g}. All other addends of a slot are exact "
            "zeros, so that only about 8 scalings and casts round, by half an epsilon each: right is within "
            f"{within:.2g}, wrong from twice that on."
        )
    wrong = min(wrong, WRONG_AT_MOST)
    within = min(within, wrong / 2)
    if smallest_count > 0 and 1 / smallest_count < within:
        text += (
            f" One token of {smallest_count:.12g} weighs {1 / smallest_count:.2g} of the step: lost tokens below "
            f"{within:.2g} of it can't be seen in this precision."
        )
    return Precision(right_within=within, wrong_from=wrong, derivation=text)


def too_noisy(spread: float) -> bool:
    """Whether two readings of one weight differ by so much that no verdict can rest on them."""
    return not spread < WRONG_AT_MOST / 2

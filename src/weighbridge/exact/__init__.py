"""Exact sums: the same bits for every order, grouping, number of workers and way of computing.

    lanes = exact_lanes(token_losses, mask)      # int64 [13] (or [70] for float64), on the device of the losses
    total = ExactSum.from_lanes(lanes.tolist())  # Python integers

`layout` says how a sum is held. Three producers make it, by numba, by plain torch and by numpy; each is exact, so which
one ran never shows.
"""

from weighbridge.exact.layout import NARROW, WIDE, ExactSum, Layout, layout_of
from weighbridge.exact.producers import Lanes, add_lanes, available_producers, exact_lanes, weighted_lanes, widen_lanes
from weighbridge.exact.with_numpy import windowed_sum

__all__ = [
    "NARROW",
    "WIDE",
    "ExactSum",
    "Lanes",
    "Layout",
    "add_lanes",
    "available_producers",
    "exact_lanes",
    "layout_of",
    "weighted_lanes",
    "widen_lanes",
    "windowed_sum",
]

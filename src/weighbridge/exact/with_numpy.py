"""Exact sums with numpy alone: values are sorted into lanes by sign and exponent, fractions added as integers.

All values with one exponent are integers in the same unit, so their fractions can be added without rounding. numpy's
`bincount` does that in float64, which is exact below 2 ** 53: hence the limits on a block. Only bits are looked at,
never values, so a processor told to flush subnormals to zero changes nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weighbridge.exact.layout import NARROW, WIDE, ExactSum, Layout

__all__ = ["exact_lanes"]

Values = npt.NDArray[np.float32] | npt.NDArray[np.float64]
BLOCK = 1 << 24  # fields below 2 ** 27, so sums of them stay below 2 ** 51 and float64 holds them exactly


def exact_lanes(values: Values, mask: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:
    """The exact sum of `values` [N] (float32 or float64) where `mask` [N] is True, as canonical lanes."""
    layout = NARROW if values.dtype == np.float32 else WIDE
    if mask is not None:
        values = values[mask]
    total = ExactSum()
    for start in range(0, values.size, BLOCK):
        total += _block(values[start : start + BLOCK], layout)
    return total.to_lanes(layout)


def _block(values: Values, layout: Layout) -> ExactSum:
    if layout is NARROW:
        bits = values.view(np.uint32)
        exponents, fraction_bits, zero_shift = 256, 23, NARROW.base - WIDE.base
        halves = [(bits & np.uint32(0x7FFFFF), 0)]
        index = (bits >> np.uint32(23)).astype(np.int64)
    else:
        wide = values.view(np.uint64)
        exponents, fraction_bits, zero_shift = 2048, 52, -1074 - WIDE.base
        low = np.uint64((1 << 26) - 1)
        halves = [(wide & low, 0), ((wide >> np.uint64(26)) & low, 26)]
        index = (wide >> np.uint64(52)).astype(np.int64)
    counts = np.bincount(index, minlength=2 * exponents)
    fractions = [(np.bincount(index, weights=half, minlength=2 * exponents), shift) for half, shift in halves]
    top = exponents - 1
    scaled = 0
    for lane in np.flatnonzero(counts).tolist():
        exponent = lane & top
        if exponent == top:
            continue
        held = sum(int(sums[lane]) << shift for sums, shift in fractions)
        if exponent:
            held += int(counts[lane]) << fraction_bits  # the leading 1 that the format leaves out
        held <<= max(exponent - 1, 0) + zero_shift
        scaled += -held if lane > top else held
    nan = int(np.isnan(values).sum()) if counts[top] or counts[2 * exponents - 1] else 0
    pos_inf = int((values == np.inf).sum()) if counts[top] else 0
    return ExactSum(scaled, values.size, nan, pos_inf, int(counts[top] + counts[2 * exponents - 1]) - nan - pos_inf)

"""Exact sums with numpy alone: values are sorted into lanes by sign and exponent, fractions added as integers.

All values with one exponent are integers in the same unit, so their fractions can be added without rounding. numpy's
`bincount` does that in float64, which is exact below 2 ** 53: hence the limits on a block. Only bits are looked at,
never values, so a processor told to flush subnormals to zero changes nothing.

Values of a moderate range go a road ten times as fast, that of `with_numba` with two grids: see there.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.exact.layout import NARROW, WIDE, ExactSum, Layout

__all__ = ["exact_lanes", "windowed_sum"]

Values = npt.NDArray[np.float32] | npt.NDArray[np.float64]
BLOCK = 1 << 24  # fields below 2 ** 27, so sums of them stay below 2 ** 51 and float64 holds them exactly


WINDOW = 1 << 15  # values at a time, so that what is written is still in the cache; their sums stay below 2 ** 63
BITS = 47  # how much finer the second grid is
GRID_LIMIT = 900
_SUBNORMAL = np.array([1], dtype=np.uint64).view(np.float64)


class _Memory(threading.local):
    """Where windows are worked on, one for each thread: asking the system for it again and again takes longer."""

    def __init__(self) -> None:
        self.kept = np.empty(WINDOW)
        self.shifted = np.empty(WINDOW)
        self.sizes = np.empty(WINDOW, dtype=np.uint64)


_memory = _Memory()


def windowed_sum(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None = None) -> ExactSum | None:
    """The exact sum of `values` [N] where `mask` [N] is True.

    None where they are not float64, or don't fit two grids.
    """
    if (
        values.dtype != np.float64 or (_SUBNORMAL + _SUBNORMAL == 0).any()
    ):  # the processor flushes subnormals: floats would lose them unseen
        return None
    scaled = 0
    for start in range(0, values.size, WINDOW):
        window = values[start : start + WINDOW]
        if mask is not None:
            kept = _memory.kept[: window.size]
            kept.fill(0)
            np.copyto(kept, window, where=mask[start : start + WINDOW])
            window = kept
        found = _window(window)
        if found is None:
            return None
        scaled += found
    return ExactSum(scaled, values.size if mask is None else int(np.count_nonzero(mask)))


def _window(values: npt.NDArray[np.float64]) -> int | None:
    sizes = np.left_shift(values.view(np.uint64), np.uint64(1), out=_memory.sizes[: values.size])  # without the sign
    largest = int(sizes.max())
    sizes -= np.uint64(1)  # a zero becomes the largest number
    smallest = int(sizes.min()) + 1
    if largest == 0:
        return 0
    grid = (largest >> 53) - 1023 + 2 - BITS  # every value is below 2 ** 46 of it
    last = max(smallest >> 53, 1) - 1075  # the last place of the smallest: they are all multiples of that
    if abs(grid) > GRID_LIMIT or last < grid - BITS:
        return None
    coarse, fine = 1.5 * 2.0 ** (52 + grid), 1.5 * 2.0 ** (52 + grid - BITS)
    shifted = np.add(values, coarse, out=_memory.shifted[: values.size])
    first = _sum_above(shifted, coarse)
    shifted -= coarse
    rest = np.subtract(values, shifted, out=shifted)
    rest += fine
    return (first << (grid - WIDE.base)) + (_sum_above(rest, fine) << (grid - BITS - WIDE.base))


def _sum_above(shifted: npt.NDArray[np.float64], shift: float) -> int:
    """The sum of what `shifted` [N] holds in its low bits above `shift`, which wraps around only on the way."""
    bits = int(np.float64(shift).view(np.int64))
    total = int(shifted.view(np.int64).sum()) - shifted.size * bits
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)


def exact_lanes(values: Values, mask: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.int64]:
    """The exact sum of `values` [N] (float32 or float64) where `mask` [N] is True, as canonical lanes."""
    layout = NARROW if values.dtype == np.float32 else WIDE
    found = windowed_sum(values, mask)
    if found is not None:
        return found.to_lanes(layout)
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

"""Products of floats without rounding: what an exact weighted mean is made of.

Two float32 have 24 bits each, so their product fits into float64. For two float64, the product is taken twice: rounded,
and what the rounding lost (Dekker 1971, with Veltkamp's split). That is exact as long as nothing over- or underflows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.errors import InputError

__all__ = ["exact_products", "widen"]

SPLIT = float((1 << 27) + 1)
RANGE = 400  # exponents within this: no part of a product can leave float64


def exact_products(
    left: npt.NDArray[Any], right: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64] | None]:
    """`left` [N] * `right` [N] as one or two float64 arrays [N] whose sum is the product; `right` is finite.

    Raises:
        InputError: a float64 lies outside 2 ** -400 .. 2 ** 400.
    """
    narrow = left.dtype == np.float32 and right.dtype == np.float32
    first, second = widen(left), widen(right)
    if narrow:
        with np.errstate(invalid="ignore"):
            return first * second, None
    _within_range(first)
    _within_range(second)
    with np.errstate(invalid="ignore", over="ignore"):
        high = first * second
        first_high, first_low = _split(first)
        second_high, second_low = _split(second)
        low = first_low * second_low - (
            ((high - first_high * second_high) - first_low * second_high) - first_high * second_low
        )
    return high, np.where(np.isfinite(high), low, 0.0)


def widen(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """`values` [N] as float64; float32 subnormals survive even where the processor reads them as 0."""
    if values.dtype != np.float32:
        return values.astype(np.float64)
    wide = values.astype(np.float64)
    bits = values.view(np.uint32)
    subnormal = ((bits & np.uint32(0x7F800000)) == 0) & ((bits & np.uint32(0x7FFFFF)) != 0)
    if subnormal.any():
        tiny = (bits[subnormal] & np.uint32(0x7FFFFF)).astype(np.float64) * 2.0**-149
        wide[subnormal] = np.where(bits[subnormal] >> np.uint32(31), -tiny, tiny)
    return wide


def _split(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    scaled = SPLIT * values
    high = scaled - (scaled - values)
    return high, values - high


def _within_range(values: npt.NDArray[np.float64]) -> None:
    bits = values.view(np.uint64)
    exponent = ((bits >> np.uint64(52)) & np.uint64(2047)).astype(np.int64)
    nothing = (bits << np.uint64(1)) == 0
    outside = ~nothing & (exponent != 2047) & (np.abs(exponent - 1023) > RANGE)
    if outside.any():
        odd = values[outside][0]
        raise InputError(
            f"{odd} is among float64 values or weights of a weighted mean. Their products are exact between "
            "2 ** -400 and 2 ** 400. Rescale the values, or pass both as float32."
        )

"""Exact sums compiled by numba: the fast road on a CPU, with a slower one beside it that is always open.

The fast road takes 4,096 values at a time. Adding the right large constant to a value in float64 rounds it to a fixed
grid and leaves the grid's integer in the low 51 bits of the result, so the sum of the results' bit patterns is an
exact integer sum. Whether nothing was rounded away is seen from the block's largest and smallest value, which the same
loop collects; where that does not tell, what was rounded away is collected by OR, and has to be zero. The grid is that
of the block before, and if it doesn't fit, one set from the block's largest value. If nothing fits, the block goes to
tables of fractions by exponent, as in `with_numpy`; after that the next 1, 2, 4 ... 64 blocks go there directly.

The fast road computes with floats. Where the processor flushes subnormals to zero (`torch.set_flush_denormal`), it
would lose them and not notice: so each call looks at that first, and takes only the tables, which look at bits alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.exact.numba_limbs import NARROW_LIMBS, WIDE_LIMBS
from weighbridge.exact.numba_narrow import add32
from weighbridge.exact.numba_wide import add64

__all__ = ["add_exactly"]


_SMALLEST = float.fromhex("0x1p-1074")  # handed over at run time: no compiler can fold it away
_NO_MASK = np.zeros(0, dtype=np.uint8)


def add_exactly(
    values: npt.NDArray[np.float32] | npt.NDArray[np.float64],
    mask: npt.NDArray[np.bool_] | None,
    lanes: npt.NDArray[np.int64],
) -> None:
    """Add `values` [N] where `mask` [N] is True to `lanes` [13] (float32) or [70] (float64), in place and exactly.

    `values` must be contiguous. The lanes are canonical afterwards.
    """
    if not values.flags.writeable:
        values = _as_if_writable(values)
    narrow = values.dtype == np.float32
    counted = NARROW_LIMBS if narrow else WIDE_LIMBS
    if mask is None:
        lanes[counted] += values.size
        bytes_ = _NO_MASK
    else:
        lanes[counted] += np.count_nonzero(mask)
        bytes_ = (mask if mask.flags.writeable else mask.copy()).view(np.uint8)
    add = add32 if narrow else add64
    add(values, bytes_, mask is not None, lanes, _SMALLEST)


class _Described:
    """An array described by its memory; keeps the array that owns it alive."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.owner = array
        description = dict(array.__array_interface__)
        description["data"] = (description["data"][0], False)
        self.__array_interface__ = description


def _as_if_writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory without its read-only mark: numba would compile everything once more for that. Never written."""
    return np.asarray(_Described(array))

"""What the compiled producers share: adding to limbs, counting what is not finite, leaving out what is masked."""

from __future__ import annotations

import numpy as np
from numba import njit

from weighbridge.exact.layout import NARROW, WIDE

__all__ = ["BLOCK", "DRAIN", "LOW32", "NARROW_LIMBS", "START_GRID", "TABLES", "WIDE_LIMBS", "jit"]

BLOCK = 4096  # at most 8192: values below 2 ** 50 of a grid, and a sum below 2 ** 63
DRAIN = 1 << 20  # values in the tables before they are emptied: fields must not run into each other
TABLES = 4  # interleaved, so that values with one exponent don't wait for each other
NARROW_LIMBS, WIDE_LIMBS = NARROW.limbs, WIDE.limbs
NARROW_BASE, WIDE_BASE = -NARROW.base, -WIDE.base
LOW32 = 0xFFFFFFFF
START_GRID = -46  # a first guess that suits losses: up to 8, in steps of 2 ** -46

jit = njit(cache=True, nogil=True)


@jit
def put(lanes, limbs, integer, position):  # type: ignore[no-untyped-def]
    """Add `integer` * 2 ** `position` to the limbs."""
    limb = position >> 5
    offset = position & 31
    low = (integer & LOW32) << offset
    high = (integer >> 32) << offset
    first = low & LOW32
    second = ((low >> 32) & LOW32) + (high & LOW32)
    third = high >> 32
    lanes[limb] += first
    if limb + 2 < limbs:
        lanes[limb + 1] += second
        lanes[limb + 2] += third
    elif limb + 1 < limbs:
        lanes[limb + 1] += second + (third << 32)
    else:
        lanes[limb] += second << 32


@jit
def magic_bits(grid):  # type: ignore[no-untyped-def]
    """The bits of 1.5 * 2 ** (52 + grid): adding that rounds to multiples of 2 ** grid. A power would take longer."""
    return np.int64((np.int64(grid) + 52 + 1023) << 52 | 1 << 51)


@jit
def magic(grid):  # type: ignore[no-untyped-def]
    return np.int64(magic_bits(grid)).view(np.float64)


@jit
def carry(lanes, limbs):  # type: ignore[no-untyped-def]
    """Make the limbs canonical."""
    for k in range(limbs - 1):
        carry = lanes[k] >> 32
        lanes[k] &= LOW32
        lanes[k + 1] += carry


@jit
def count_nonfinite(values, lanes, limbs):  # type: ignore[no-untyped-def]
    for value in values:
        if value != value:
            lanes[limbs + 1] += 1
        elif value == np.inf:
            lanes[limbs + 2] += 1
        elif value == -np.inf:
            lanes[limbs + 3] += 1


@jit
def fill(bits, mask, scratch_bits):  # type: ignore[no-untyped-def]
    """Copy a block with 0 where the mask is 0."""
    for i in range(bits.size):
        held = bits[i]
        scratch_bits[i] = held if mask[i] != 0 else bits.dtype.type(0)

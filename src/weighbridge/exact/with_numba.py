"""Exact sums compiled by numba: the fast road on a CPU, with a slower one beside it that is always open.

The fast road takes 2,048 values at a time. Adding the right large constant to a value in float64 rounds it to a fixed
grid and leaves the grid's integer in the low 51 bits of the result, so the sum of the results' bit patterns is an
exact integer sum. What the rounding lost is collected by OR: if it is zero for the whole block (and no value was too
large for the grid), the block's sum is exact and goes to the limbs. Otherwise the grid is set from the block's largest
value and tried once more, and if that fails too, the block goes to tables of fractions by exponent, as in
`with_numpy`. After a failure the next 1, 2, 4 ... 64 blocks go to the tables directly.

The fast road computes with floats. Where the processor flushes subnormals to zero (`torch.set_flush_denormal`), it
would lose them and not notice: so each call looks at that first, and takes only the tables, which look at bits alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from weighbridge.exact.layout import NARROW, WIDE

__all__ = ["add_exactly"]

BLOCK = 2048
DRAIN = 1 << 20  # values in the tables before they are emptied: fields must not run into each other
TABLES = 4  # interleaved, so that values with one exponent don't wait for each other
NARROW_LIMBS, WIDE_LIMBS = NARROW.limbs, WIDE.limbs
NARROW_BASE, WIDE_BASE = -NARROW.base, -WIDE.base
LOW32 = 0xFFFFFFFF
START_GRID = -46  # a first guess that suits losses: up to 16, in steps of 2 ** -46
WIDE_GRID_LIMIT = 960

_jit = njit(cache=True, nogil=True)


@_jit
def _put(lanes, limbs, integer, position):  # type: ignore[no-untyped-def]
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


@_jit
def _carry(lanes, limbs):  # type: ignore[no-untyped-def]
    """Make the limbs canonical."""
    for k in range(limbs - 1):
        carry = lanes[k] >> 32
        lanes[k] &= LOW32
        lanes[k + 1] += carry


@_jit
def _add_to_tables32(bits, table):  # type: ignore[no-untyped-def]
    """table int64 [4, 512]: number of values << 43 | sum of their fractions, by sign and exponent."""
    one = np.int64(1) << 43
    fraction = np.uint32(0x7FFFFF)
    shift = np.uint32(23)
    fours = bits.size & ~3
    for i in range(0, fours, 4):
        for k in range(4):
            b = bits[i + k]
            table[k, b >> shift] += np.int64(b & fraction) | one
    for i in range(fours, bits.size):
        table[0, bits[i] >> shift] += np.int64(bits[i] & fraction) | one


@_jit
def _empty_tables32(table, lanes):  # type: ignore[no-untyped-def]
    for lane in range(512):
        exponent = lane & 255
        count = np.int64(0)
        held = np.int64(0)
        for k in range(TABLES):
            count += np.int64(np.uint64(table[k, lane]) >> np.uint64(43))
            held += table[k, lane] & ((np.int64(1) << 43) - 1)
        if exponent > 0:
            held += count << 23
        if count > 0 and exponent < 255:
            _put(lanes, NARROW_LIMBS, -held if lane > 255 else held, max(exponent - 1, 0))
    table[:] = 0


@_jit
def _add_to_tables64(bits, low_table, high_table):  # type: ignore[no-untyped-def]
    """As for float32, with the low 32 and the high 20 bits of the fraction in tables [4, 4096] of their own."""
    one = np.int64(1) << 40
    low = np.uint64(LOW32)
    high = np.uint64(0xFFFFF)
    fours = bits.size & ~3
    for i in range(0, fours, 4):
        for k in range(4):
            b = bits[i + k]
            lane = b >> np.uint64(52)
            low_table[k, lane] += np.int64(b & low)
            high_table[k, lane] += np.int64((b >> np.uint64(32)) & high) | one
    for i in range(fours, bits.size):
        b = bits[i]
        low_table[0, b >> np.uint64(52)] += np.int64(b & low)
        high_table[0, b >> np.uint64(52)] += np.int64((b >> np.uint64(32)) & high) | one


@_jit
def _empty_tables64(low_table, high_table, lanes):  # type: ignore[no-untyped-def]
    for lane in range(4096):
        exponent = lane & 2047
        count = np.int64(0)
        low = np.int64(0)
        high = np.int64(0)
        for k in range(TABLES):
            count += np.int64(np.uint64(high_table[k, lane]) >> np.uint64(40))
            high += high_table[k, lane] & ((np.int64(1) << 40) - 1)
            low += low_table[k, lane]
        if count > 0 and exponent < 2047:
            if exponent > 0:
                high += count << 20
            if lane > 2047:
                low = -low
                high = -high
            position = max(exponent - 1, 0) + WIDE_BASE - 1074
            _put(lanes, WIDE_LIMBS, low, position)
            _put(lanes, WIDE_LIMBS, high, position + 32)
    low_table[:] = 0
    high_table[:] = 0


@_jit
def _count_nonfinite(values, lanes, limbs):  # type: ignore[no-untyped-def]
    for value in values:
        if value != value:
            lanes[limbs + 1] += 1
        elif value == np.inf:
            lanes[limbs + 2] += 1
        elif value == -np.inf:
            lanes[limbs + 3] += 1


@_jit
def _one_grid(values, magic, magic_bits):  # type: ignore[no-untyped-def]
    """Sum of the shifted values' bits, what was lost by the shift, and which high bits changed."""
    total = np.int64(0)
    lost = np.int64(0)
    changed = np.int64(0)
    for i in range(values.size):
        value = np.float64(values[i])
        shifted = value + magic
        rest = (shifted - magic) - value
        pattern = np.float64(shifted).view(np.int64)
        lost |= np.float64(rest).view(np.int64)
        changed |= pattern ^ magic_bits
        total += pattern
    return total, lost, changed


@_jit
def _try_grid32(values, grid, lanes):  # type: ignore[no-untyped-def]
    """Add the block by the fast road; False, and nothing added, where the grid doesn't hold every value exactly."""
    magic = 1.5 * 2.0 ** (52 + grid)
    magic_bits = np.float64(magic).view(np.int64)
    total, lost, changed = _one_grid(values, magic, magic_bits)
    if (lost << 1) != 0 or (changed >> 52) != 0:
        return False
    _put(lanes, NARROW_LIMBS, total - values.size * magic_bits, grid + NARROW_BASE)
    return True


@_jit
def _grid_for32(bits):  # type: ignore[no-untyped-def]
    """The finest grid that holds the block's largest value, or a positive number where that is not finite."""
    largest = np.uint32(0)
    for i in range(bits.size):
        largest = max(largest, bits[i] & np.uint32(0x7FFFFFFF))
    if largest >= np.uint32(0x7F800000):
        return np.int64(1000)
    return max(np.int64(largest >> np.uint32(23)) - 127 + 1 - 51, np.int64(-149))


@_jit
def _three_grids(values, magic0, magic1, magic2, bits0):  # type: ignore[no-untyped-def]
    sum0 = np.int64(0)
    sum1 = np.int64(0)
    sum2 = np.int64(0)
    lost = np.int64(0)
    changed = np.int64(0)
    for i in range(values.size):
        shifted0 = values[i] + magic0
        rest = values[i] - (shifted0 - magic0)
        shifted1 = rest + magic1
        rest = rest - (shifted1 - magic1)
        shifted2 = rest + magic2
        rest = (shifted2 - magic2) - rest
        pattern = np.float64(shifted0).view(np.int64)
        sum0 += pattern
        sum1 += np.float64(shifted1).view(np.int64)
        sum2 += np.float64(shifted2).view(np.int64)
        lost |= np.float64(rest).view(np.int64)
        changed |= pattern ^ bits0
    return sum0, sum1, sum2, lost, changed


@_jit
def _try_grid64(values, grid, lanes):  # type: ignore[no-untyped-def]
    if grid < -WIDE_GRID_LIMIT or grid > WIDE_GRID_LIMIT:
        return False
    magic0 = 1.5 * 2.0 ** (52 + grid)
    magic1 = 1.5 * 2.0 ** (52 + grid - 50)
    magic2 = 1.5 * 2.0 ** (52 + grid - 100)
    bits0 = np.float64(magic0).view(np.int64)
    sum0, sum1, sum2, lost, changed = _three_grids(values, magic0, magic1, magic2, bits0)
    if (lost << 1) != 0 or (changed >> 52) != 0:
        return False
    size = values.size
    _put(lanes, WIDE_LIMBS, sum0 - size * bits0, grid + WIDE_BASE)
    _put(lanes, WIDE_LIMBS, sum1 - size * np.float64(magic1).view(np.int64), grid - 50 + WIDE_BASE)
    _put(lanes, WIDE_LIMBS, sum2 - size * np.float64(magic2).view(np.int64), grid - 100 + WIDE_BASE)
    return True


@_jit
def _grid_for64(bits):  # type: ignore[no-untyped-def]
    largest = np.uint64(0)
    for i in range(bits.size):
        largest = max(largest, bits[i] & np.uint64(0x7FFFFFFFFFFFFFFF))
    if largest >= np.uint64(0x7FF0000000000000):
        return np.int64(5000)
    return np.int64(largest >> np.uint64(52)) - 1023 + 1 - 51


@_jit
def _fill(bits, mask, scratch_bits):  # type: ignore[no-untyped-def]
    """Copy a block with 0 where the mask is 0; how many are 1. Without a branch, so that it runs in vectors."""
    counted = np.uint32(0)
    zero = bits.dtype.type(0)
    for i in range(bits.size):
        kept = bits.dtype.type(mask[i])
        scratch_bits[i] = bits[i] & (zero - kept)
        counted += np.uint32(mask[i])
    return np.int64(counted)


@_jit
def _add32(values, mask, masked, lanes, flushes):  # type: ignore[no-untyped-def]
    scratch = np.zeros(BLOCK, np.float32)
    table = np.zeros((TABLES, 512), np.int64)
    grid = np.int64(START_GRID)
    skip, wait, held = 0, 1, 0
    for start in range(0, values.size, BLOCK):
        stop = min(values.size, start + BLOCK)
        block = values[start:stop]
        if masked:
            lanes[NARROW_LIMBS] += _fill(block.view(np.uint32), mask[start:stop], scratch.view(np.uint32))
            block = scratch[: stop - start]
        else:
            lanes[NARROW_LIMBS] += stop - start
        if skip == 0 and not flushes:
            if _try_grid32(block, grid, lanes):
                wait = 1
                continue
            grid = _grid_for32(block.view(np.uint32))
            if grid < 1000 and _try_grid32(block, grid, lanes):
                wait = 1
                continue
            grid = np.int64(START_GRID)
            skip, wait = wait, min(wait * 2, 64)
        elif skip > 0:
            skip -= 1
        _count_nonfinite(block, lanes, NARROW_LIMBS)
        _add_to_tables32(block.view(np.uint32), table)
        held += stop - start
        if held >= DRAIN:
            _empty_tables32(table, lanes)
            held = 0
    _empty_tables32(table, lanes)
    _carry(lanes, NARROW_LIMBS)


@_jit
def _add64(values, mask, masked, lanes, flushes):  # type: ignore[no-untyped-def]
    scratch = np.zeros(BLOCK, np.float64)
    low_table = np.zeros((1, 1), np.int64)  # made when needed: they are large
    high_table = np.zeros((1, 1), np.int64)
    grid = np.int64(START_GRID)
    skip, wait, held = 0, 1, 0
    for start in range(0, values.size, BLOCK):
        stop = min(values.size, start + BLOCK)
        block = values[start:stop]
        if masked:
            lanes[WIDE_LIMBS] += _fill(block.view(np.uint64), mask[start:stop], scratch.view(np.uint64))
            block = scratch[: stop - start]
        else:
            lanes[WIDE_LIMBS] += stop - start
        if skip == 0 and not flushes:
            if _try_grid64(block, grid, lanes):
                wait = 1
                continue
            grid = _grid_for64(block.view(np.uint64))
            if grid < 5000 and _try_grid64(block, grid, lanes):
                wait = 1
                continue
            grid = np.int64(START_GRID)
            skip, wait = wait, min(wait * 2, 64)
        elif skip > 0:
            skip -= 1
        if low_table.size == 1:
            low_table = np.zeros((TABLES, 4096), np.int64)
            high_table = np.zeros((TABLES, 4096), np.int64)
        _count_nonfinite(block, lanes, WIDE_LIMBS)
        _add_to_tables64(block.view(np.uint64), low_table, high_table)
        held += stop - start
        if held >= DRAIN:
            _empty_tables64(low_table, high_table, lanes)
            held = 0
    if held > 0:
        _empty_tables64(low_table, high_table, lanes)
    _carry(lanes, WIDE_LIMBS)


@_jit
def _reads_as_zero(value):  # type: ignore[no-untyped-def]
    return value + value == 0.0


_SMALLEST = np.array([1], dtype=np.uint64).view(np.float64)  # handed over at run time: no compiler can fold it away
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
    if mask is not None and not mask.flags.writeable:
        mask = mask.copy()
    add = _add32 if values.dtype == np.float32 else _add64
    flushes = bool(_reads_as_zero(_SMALLEST[0]))
    add(values, _NO_MASK if mask is None else mask.view(np.uint8), mask is not None, lanes, flushes)


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

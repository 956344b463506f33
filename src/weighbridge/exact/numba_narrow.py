"""The compiled producer for float32; `with_numba` says how it works."""

from __future__ import annotations

import numpy as np

from weighbridge.exact.numba_limbs import (
    BLOCK,
    DRAIN,
    NARROW_BASE,
    NARROW_LIMBS,
    START_GRID,
    TABLES,
    carry,
    count_nonfinite,
    fill,
    jit,
    magic,
    magic_bits,
    put,
)

__all__ = ["add32"]

NO_GRID = 1000  # what `_grid32` says of a block with a NaN or an infinity


@jit
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


@jit
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
            put(lanes, NARROW_LIMBS, -held if lane > 255 else held, max(exponent - 1, 0))
    table[:] = 0


@jit
def _sum_and_limits(values, bits, shift):  # type: ignore[no-untyped-def]
    """Sum of the shifted bits; twice the bits of the largest |value|, and of the smallest but zero, less 1."""
    total = np.int64(0)
    largest = np.uint32(0)
    smallest = np.uint32(0xFFFFFFFF)
    for i in range(values.size):
        size = np.uint32(bits[i] + bits[i])  # without the sign
        largest = max(largest, size)
        smallest = min(smallest, np.uint32(size - np.uint32(1)))  # a zero becomes the largest number
        total += np.float64(np.float64(values[i]) + shift).view(np.int64)
    return total, largest, smallest


@jit
def _masked_sum_and_limits(bits, mask, shift):  # type: ignore[no-untyped-def]
    """The same, with 0 where the mask is 0; written so that it runs in vectors, without a branch."""
    total = np.int64(0)
    largest = np.uint32(0)
    smallest = np.uint32(0xFFFFFFFF)
    for i in range(bits.size):
        held = bits[i]
        pattern = np.uint32(held if mask[i] != 0 else np.uint32(0))
        size = np.uint32(pattern + pattern)
        largest = max(largest, size)
        smallest = min(smallest, np.uint32(size - np.uint32(1)))
        total += np.float64(np.float64(pattern.view(np.float32)) + shift).view(np.int64)
    return total, largest, smallest


@jit
def _grid32(largest):  # type: ignore[no-untyped-def]
    """The finest grid for a block, from twice the bits of its largest |value|."""
    exponent = np.int64(largest >> np.uint32(24))
    return np.int64(NO_GRID) if exponent == 255 else max(exponent - 127 - 49, np.int64(-149))


@jit
def _put_if_exact32(total, largest, smallest, size, grid, lanes):  # type: ignore[no-untyped-def]
    """Add a block's sum, if every value is a multiple of the grid and below 2 ** 50 of it; whether that is so.

    A float32 is a multiple of its last place, 2 ** (exponent - 150): so the smallest one tells for all.
    """
    top = np.int64(largest >> np.uint32(24)) - 127
    last = max(np.int64(np.uint32(smallest + np.uint32(1)) >> np.uint32(24)), np.int64(1)) - 150
    if top >= 50 + grid or (last < grid and largest != 0):
        return False
    put(lanes, NARROW_LIMBS, total - size * magic_bits(grid), grid + NARROW_BASE)
    return True


@jit
def _add_masked_block32(bits, mask, grid, lanes):  # type: ignore[no-untyped-def]
    """Add a block where the mask is 1 by the fast road; False, and nothing added, where the grid doesn't fit."""
    total, largest, smallest = _masked_sum_and_limits(bits, mask, magic(grid))
    return _put_if_exact32(total, largest, smallest, bits.size, grid, lanes)


@jit
def _add_block32(values, bits, grid, lanes):  # type: ignore[no-untyped-def]
    """Add a block by the fast road; whether it was added, and the grid to try next."""
    total, largest, smallest = _sum_and_limits(values, bits, magic(grid))
    if _put_if_exact32(total, largest, smallest, bits.size, grid, lanes):
        return True, grid
    return False, _grid32(largest)


@jit
def _sum_and_loss(values, shift, shift_bits):  # type: ignore[no-untyped-def]
    """Sum of the shifted values' bits, what was lost by the shift, and which high bits changed."""
    total = np.int64(0)
    lost = np.int64(0)
    changed = np.int64(0)
    for i in range(values.size):
        value = np.float64(values[i])
        shifted = value + shift
        rest = (shifted - shift) - value
        pattern = np.float64(shifted).view(np.int64)
        lost |= np.float64(rest).view(np.int64)
        changed |= pattern ^ shift_bits
        total += pattern
    return total, lost, changed


@jit
def _add_by_loss32(values, grid, lanes):  # type: ignore[no-untyped-def]
    """Add the block by the fast road; False, and nothing added, where the grid doesn't hold every value exactly."""
    total, lost, changed = _sum_and_loss(values, magic(grid), magic_bits(grid))
    if (lost << 1) != 0 or (changed >> 52) != 0:
        return False
    put(lanes, NARROW_LIMBS, total - values.size * magic_bits(grid), grid + NARROW_BASE)
    return True


@jit
def _fast32(values, bits, grid, lanes):  # type: ignore[no-untyped-def]
    """Three tries by the fast road: with the last block's grid, with its own, and by looking at what is lost."""
    added, next_grid = _add_block32(values, bits, grid, lanes)
    if added:
        return True, grid
    if next_grid == NO_GRID:
        return False, np.int64(START_GRID)
    added, _ = _add_block32(values, bits, next_grid, lanes)
    if added or _add_by_loss32(values, next_grid, lanes):
        return True, next_grid
    return False, np.int64(START_GRID)


@jit
def add32(values, mask, masked, lanes, smallest):  # type: ignore[no-untyped-def]
    """Add float32 `values` where `mask` is 1 to narrow `lanes`; the caller counts. `smallest` is a subnormal."""
    scratch = np.zeros(BLOCK, np.float32)
    table = np.zeros((TABLES, 512), np.int64)
    bits = values.view(np.uint32)
    grid = np.int64(START_GRID)
    flushes = smallest + smallest == 0.0
    skip, wait, held = 0, 1, 0
    for start in range(0, values.size, BLOCK):
        stop = min(values.size, start + BLOCK)
        block = values[start:stop]
        if masked:
            if skip == 0 and not flushes and _add_masked_block32(bits[start:stop], mask[start:stop], grid, lanes):
                wait = 1
                continue
            fill(bits[start:stop], mask[start:stop], scratch.view(np.uint32))
            block = scratch[: stop - start]
        if skip == 0 and not flushes:
            added, grid = _fast32(block, block.view(np.uint32), grid, lanes)
            if added:
                wait = 1
                continue
            skip, wait = wait, min(wait * 2, 64)
        elif skip > 0:
            skip -= 1
        count_nonfinite(block, lanes, NARROW_LIMBS)
        _add_to_tables32(block.view(np.uint32), table)
        held += stop - start
        if held >= DRAIN:
            _empty_tables32(table, lanes)
            held = 0
    if held > 0:
        _empty_tables32(table, lanes)
    carry(lanes, NARROW_LIMBS)

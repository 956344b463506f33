"""The compiled producer for float64; `with_numba` says how it works."""

from __future__ import annotations

import numpy as np

from weighbridge.exact.numba_limbs import (
    BLOCK,
    DRAIN,
    LOW32,
    START_GRID,
    TABLES,
    WIDE_BASE,
    WIDE_LIMBS,
    carry,
    count_nonfinite,
    fill,
    jit,
    magic,
    magic_bits,
    put,
)

__all__ = ["add64"]

GRID_LIMIT = 960
NO_GRID = 5000  # what `_grid64` says of a block with a NaN or an infinity


@jit
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


@jit
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
            put(lanes, WIDE_LIMBS, low, position)
            put(lanes, WIDE_LIMBS, high, position + 32)
    low_table[:] = 0
    high_table[:] = 0


@jit
def _two_sums_and_limits(values, bits, magic0, magic1):  # type: ignore[no-untyped-def]
    """As for float32, with what the first grid leaves of a value summed on a second one, 50 bits finer."""
    sum0 = np.int64(0)
    sum1 = np.int64(0)
    largest = np.uint64(0)
    smallest = np.uint64(0xFFFFFFFFFFFFFFFF)
    for i in range(values.size):
        size = bits[i] + bits[i]
        largest = max(largest, size)
        smallest = min(smallest, size - np.uint64(1))
        shifted = values[i] + magic0
        rest = values[i] - (shifted - magic0)
        sum0 += np.float64(shifted).view(np.int64)
        sum1 += np.float64(rest + magic1).view(np.int64)
    return sum0, sum1, largest, smallest


@jit
def _masked_sums_and_limits(bits, mask, magic0, magic1):  # type: ignore[no-untyped-def]
    """The same, with 0 where the mask is 0; written so that it runs in vectors, without a branch."""
    sum0 = np.int64(0)
    sum1 = np.int64(0)
    largest = np.uint64(0)
    smallest = np.uint64(0xFFFFFFFFFFFFFFFF)
    for i in range(bits.size):
        held = bits[i]
        pattern = np.uint64(held if mask[i] != 0 else np.uint64(0))
        size = pattern + pattern
        largest = max(largest, size)
        smallest = min(smallest, size - np.uint64(1))
        value = pattern.view(np.float64)
        shifted = value + magic0
        rest = value - (shifted - magic0)
        sum0 += np.float64(shifted).view(np.int64)
        sum1 += np.float64(rest + magic1).view(np.int64)
    return sum0, sum1, largest, smallest


@jit
def _grid64(largest):  # type: ignore[no-untyped-def]
    exponent = np.int64(largest >> np.uint64(53))
    return np.int64(NO_GRID) if exponent == 2047 else exponent - 1023 - 49


@jit
def _put_if_exact64(sum0, sum1, largest, smallest, size, grid, lanes):  # type: ignore[no-untyped-def]
    """Add a block's two sums, if every value is a multiple of the finer grid and below 2 ** 50 of the coarser."""
    top = np.int64(largest >> np.uint64(53)) - 1023
    last = max(np.int64((smallest + np.uint64(1)) >> np.uint64(53)), np.int64(1)) - 1075
    if top >= 50 + grid or (last < grid - 50 and largest != 0):
        return False
    put(lanes, WIDE_LIMBS, sum0 - size * magic_bits(grid), grid + WIDE_BASE)
    put(lanes, WIDE_LIMBS, sum1 - size * magic_bits(grid - 50), grid - 50 + WIDE_BASE)
    return True


@jit
def _add_masked_block64(bits, mask, grid, lanes):  # type: ignore[no-untyped-def]
    """Add a block where the mask is 1 by the fast road; False, and nothing added, where the grids don't fit."""
    if grid < -GRID_LIMIT or grid > GRID_LIMIT:
        return False
    magic0, magic1 = magic(grid), magic(grid - 50)
    sum0, sum1, largest, smallest = _masked_sums_and_limits(bits, mask, magic0, magic1)
    return _put_if_exact64(sum0, sum1, largest, smallest, bits.size, grid, lanes)


@jit
def _add_block64(values, bits, grid, lanes):  # type: ignore[no-untyped-def]
    """Add a block by the fast road; whether it was added, and the grid to try next."""
    if grid < -GRID_LIMIT or grid > GRID_LIMIT:
        return False, np.int64(START_GRID)
    magic0, magic1 = magic(grid), magic(grid - 50)
    sum0, sum1, largest, smallest = _two_sums_and_limits(values, bits, magic0, magic1)
    if _put_if_exact64(sum0, sum1, largest, smallest, bits.size, grid, lanes):
        return True, grid
    return False, _grid64(largest)


@jit
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


@jit
def _add_by_loss64(values, grid, lanes):  # type: ignore[no-untyped-def]
    if grid < -GRID_LIMIT or grid > GRID_LIMIT:
        return False
    sum0, sum1, sum2, lost, changed = _three_grids(
        values, magic(grid), magic(grid - 50), magic(grid - 100), magic_bits(grid)
    )
    if (lost << 1) != 0 or (changed >> 52) != 0:
        return False
    for held, each in ((sum0, grid), (sum1, grid - 50), (sum2, grid - 100)):
        put(lanes, WIDE_LIMBS, held - values.size * magic_bits(each), each + WIDE_BASE)
    return True


@jit
def _fast64(values, bits, grid, lanes):  # type: ignore[no-untyped-def]
    """Three tries by the fast road: with the last block's grid, with its own, and with three grids."""
    added, next_grid = _add_block64(values, bits, grid, lanes)
    if added:
        return True, grid
    if next_grid == NO_GRID:
        return False, np.int64(START_GRID)
    added, _ = _add_block64(values, bits, next_grid, lanes)
    if added or _add_by_loss64(values, next_grid, lanes):
        return True, next_grid
    return False, np.int64(START_GRID)


@jit
def add64(values, mask, masked, lanes, smallest):  # type: ignore[no-untyped-def]
    """Add float64 `values` where `mask` is 1 to wide `lanes`; the caller counts. `smallest` is a subnormal."""
    scratch = np.zeros(BLOCK, np.float64)
    low_table = np.zeros((1, 1), np.int64)  # made when needed: they are large
    high_table = np.zeros((1, 1), np.int64)
    bits = values.view(np.uint64)
    grid = np.int64(START_GRID)
    flushes = smallest + smallest == 0.0
    skip, wait, held = 0, 1, 0
    for start in range(0, values.size, BLOCK):
        stop = min(values.size, start + BLOCK)
        block = values[start:stop]
        if masked:
            if skip == 0 and not flushes and _add_masked_block64(bits[start:stop], mask[start:stop], grid, lanes):
                wait = 1
                continue
            fill(bits[start:stop], mask[start:stop], scratch.view(np.uint64))
            block = scratch[: stop - start]
        if skip == 0 and not flushes:
            added, grid = _fast64(block, block.view(np.uint64), grid, lanes)
            if added:
                wait = 1
                continue
            skip, wait = wait, min(wait * 2, 64)
        elif skip > 0:
            skip -= 1
        if low_table.size == 1:
            low_table = np.zeros((TABLES, 4096), np.int64)
            high_table = np.zeros((TABLES, 4096), np.int64)
        count_nonfinite(block, lanes, WIDE_LIMBS)
        _add_to_tables64(block.view(np.uint64), low_table, high_table)
        held += stop - start
        if held >= DRAIN:
            _empty_tables64(low_table, high_table, lanes)
            held = 0
    if held > 0:
        _empty_tables64(low_table, high_table, lanes)
    carry(lanes, WIDE_LIMBS)

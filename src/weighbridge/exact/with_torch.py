"""Exact sums with plain torch operations: on any device, without one step that depends on the data.

Values are sorted into lanes by sign and exponent, as in `with_numpy`; one `scatter_add_` of `1 << 43 | fraction` counts
and adds at once. Nothing is copied to the host and no shape depends on a value, so the work can be captured, compiled,
or run on meta tensors. Masked values are overwritten with 0; `values[mask]` would wait for the device.
"""

from __future__ import annotations

import functools

import torch

from weighbridge.exact.layout import FLAGS, LIMB_BITS, LIMB_MASK, NARROW, WIDE, Layout

__all__ = ["add_lanes_", "exact_lanes", "widen_lanes"]

BLOCK32 = 1 << 20  # fields of 23 bits: sums below 2 ** 43, counts in the 21 bits above
BLOCK64 = 1 << 17  # fields of 26 bits: the same
CHUNK = 1 << 15  # values at a time on a CPU, so that what is written is still in the cache when it is read
PACKED = (1 << 43) - 1
COUNT = (1 << 21) - 1


def exact_lanes(values: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The exact sum of `values` (float32 or float64, any shape) where `mask` (bool, same shape) is True.

    Returns:
        int64 [13] or [70] on the device of `values`; limbs within 2 ** 33 of zero, see `layout.carry_limbs`.
    """
    values = values.detach().reshape(-1)
    if mask is not None:
        mask = mask.reshape(-1)
        bits = torch.int32 if values.dtype == torch.float32 else torch.int64
        values = (values.view(bits) & mask.to(bits).neg_()).view(values.dtype)  # 0 where masked, whatever stood there
    layout = NARROW if values.dtype == torch.float32 else WIDE
    block = BLOCK32 if layout is NARROW else BLOCK64
    lanes = torch.zeros(layout.lanes, dtype=torch.int64, device=values.device)
    for start in range(0, values.numel(), block):
        part = values[start : start + block]
        lanes = _carry(lanes + (_narrow_block(part) if layout is NARROW else _wide_block(part)), layout)
    lanes[layout.limbs] = values.numel() if mask is None else mask.sum()
    return lanes


def add_lanes_(lanes: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """`lanes` + `more` with the carries moved on, so that this can be repeated without end."""
    layout = NARROW if lanes.shape[-1] == NARROW.lanes else WIDE
    return _carry(lanes.add_(more), layout)


def widen_lanes(lanes: torch.Tensor) -> torch.Tensor:
    """The same sum in the wide layout: int64 [13] -> [70]."""
    wide = torch.zeros(WIDE.lanes, dtype=torch.int64, device=lanes.device)
    first = (NARROW.base - WIDE.base) // LIMB_BITS
    wide[first : first + NARROW.limbs] = lanes[: NARROW.limbs]
    wide[WIDE.limbs :] = lanes[NARROW.limbs :]
    return wide


def _carry(lanes: torch.Tensor, layout: Layout) -> torch.Tensor:
    limbs = lanes[: layout.limbs]
    carry = limbs[:-1] >> LIMB_BITS
    limbs[:-1] &= LIMB_MASK
    limbs[1:] += carry
    return lanes


@functools.lru_cache(maxsize=16)
def _places(layout: Layout, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For every biased exponent: the limb of its unit, the bit in that limb, and 1 where a leading 1 is implied."""
    exponents, unit = (256, 0) if layout is NARROW else (2048, -1074 - WIDE.base)
    exponent = torch.arange(exponents, device=device)
    position = (exponent - 1).clamp(min=0) + unit
    position[-1] = 0  # NaN and infinity: their fractions are dropped
    return position >> 5, position & 31, (exponent > 0).long()


def _chunks(bits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return bits.split(CHUNK) if bits.device.type == "cpu" and bits.numel() else (bits,)


def _narrow_table(bits: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(512, dtype=torch.int64, device=bits.device)
    for chunk in _chunks(bits):
        packed = (chunk & 0x7FFFFF).long().bitwise_or_(1 << 43)
        table.scatter_add_(0, (chunk >> 23).bitwise_and_(511).long(), packed)
    return table


def _wide_tables(bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    low26 = (1 << 26) - 1
    high_table, low_table = torch.zeros(2, 4096, dtype=torch.int64, device=bits.device)
    for chunk in _chunks(bits):
        index = (chunk >> 52).bitwise_and_(4095)
        high_table.scatter_add_(0, index, ((chunk >> 26) & low26).bitwise_or_(1 << 43))
        low_table.scatter_add_(0, index, chunk & low26)
    return high_table, low_table


def _flags(values: torch.Tensor, held_nonfinite: torch.Tensor) -> torch.Tensor:
    """[count, NaN, +inf, -inf] of a block; the count is filled in by the caller."""
    if values.device.type == "cpu" and int(held_nonfinite) == 0:
        return torch.zeros(FLAGS, dtype=torch.int64)  # on a CPU a look at the value costs nothing
    zero = torch.zeros((), dtype=torch.int64, device=values.device)
    return torch.stack([zero, values.isnan().sum(), (values == torch.inf).sum(), (values == -torch.inf).sum()])


def _put(out: torch.Tensor, integers: torch.Tensor, limb: torch.Tensor, bit: torch.Tensor) -> None:
    """Add integers [E] (within 2 ** 62 of zero) times 2 ** (32 limb + bit) to the limbs `out`."""
    low = (integers & LIMB_MASK) << bit
    high = (integers >> LIMB_BITS) << bit
    out.scatter_add_(0, limb, low & LIMB_MASK)
    out.scatter_add_(0, limb + 1, ((low >> LIMB_BITS) & LIMB_MASK) + (high & LIMB_MASK))
    out.scatter_add_(0, limb + 2, high >> LIMB_BITS)


def _fold(out: torch.Tensor, flags: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Limbs [limbs + 2] and flags [4] as one state; what lies above the top limb goes into it."""
    limbs = out[: layout.limbs].clone()
    limbs[-1] += out[layout.limbs] << LIMB_BITS
    return torch.cat([limbs, flags])


def _narrow_block(values: torch.Tensor) -> torch.Tensor:
    table = _narrow_table(values.view(torch.int32))
    counts = ((table >> 43) & COUNT).view(2, 256)
    limb, bit, implied = _places(NARROW, values.device)
    held = (table & PACKED).view(2, 256) + (counts * implied << 23)
    signed = held[0] - held[1]
    signed[-1] = 0
    out = torch.zeros(NARROW.limbs + 2, dtype=torch.int64, device=values.device)
    _put(out, signed, limb, bit)
    return _fold(out, _flags(values, counts[:, -1].sum()), NARROW)


def _wide_block(values: torch.Tensor) -> torch.Tensor:
    high_table, low_table = _wide_tables(values.view(torch.int64))
    counts = ((high_table >> 43) & COUNT).view(2, 2048)
    limb, bit, implied = _places(WIDE, values.device)
    held_high = (high_table & PACKED).view(2, 2048) + (counts * implied << 26)
    held_low = low_table.view(2, 2048)
    out = torch.zeros(WIDE.limbs + 2, dtype=torch.int64, device=values.device)
    for held, shift in ((held_low, 0), (held_high, 26)):
        signed = held[0] - held[1]
        signed[-1] = 0
        moved = bit + shift
        _put(out, signed, limb + (moved >> 5), moved & 31)
    return _fold(out, _flags(values, counts[:, -1].sum()), WIDE)

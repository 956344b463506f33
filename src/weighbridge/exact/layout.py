"""How an exact sum is held: fixed-point limbs in int64 lanes, with counts riding along.

A float is an integer times a power of two, so a sum of floats is one large integer in units of the smallest power.
That integer is cut into limbs of 32 bits, one to an int64 lane. Each lane has 31 bits of headroom, so adding two states
is plain addition lane by lane: what an integer SUM all-reduce does. After the limbs come four lanes that count items:
all of them, the NaNs, the positive and the negative infinities. Those never touch the limbs.

| layout | inputs | lanes | weight of limb k |
|---|---|---|---|
| narrow | float16, bfloat16, float32 | 13 | 2 ** (-149 + 32 k), k in 0..8 |
| wide | float64, Python floats, products of two float32 | 70 | 2 ** (-1077 + 32 k), k in 0..65 |

Narrow limb k is wide limb k + 29. Canonical lanes (every limb but the last in [0, 2 ** 32), the last signed) are
unique, so equal multisets of values have equal bytes whichever way they were added up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["NARROW", "WIDE", "ExactSum", "Layout", "carry_limbs", "layout_of"]

LIMB_BITS = 32
LIMB_MASK = (1 << LIMB_BITS) - 1
FLAGS = 4  # count, NaN, +inf, -inf


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the limbs of a state lie: limb k weighs 2 ** (base + 32 k)."""

    name: str
    base: int
    limbs: int

    @property
    def lanes(self) -> int:
        """Number of int64 lanes: the limbs, then count, NaN, +inf and -inf."""
        return self.limbs + FLAGS


NARROW = Layout("narrow", -149, 9)
WIDE = Layout("wide", -1077, 66)


def layout_of(lanes: int) -> Layout:
    """The layout whose state has `lanes` lanes."""
    for layout in (NARROW, WIDE):
        if layout.lanes == lanes:
            return layout
    raise ValueError(f"A state has {NARROW.lanes} or {WIDE.lanes} lanes, not {lanes}.")


@dataclass(frozen=True, slots=True)
class ExactSum:
    """A sum of floats without any rounding, as Python integers: the form a state takes on the host.

    The law: `a + b` is associative and commutative, `ExactSum()` is its identity, and two sums of the same multiset of
    values are equal.

    Attributes:
        scaled: sum of the finite values in units of 2 ** -1077.
        count: number of items, non-finite ones included.
        nan: how many of them were NaN.
        pos_inf: how many of them were +inf.
        neg_inf: how many of them were -inf.
    """

    scaled: int = 0
    count: int = 0
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0

    def __add__(self, other: ExactSum) -> ExactSum:
        return ExactSum(
            self.scaled + other.scaled,
            self.count + other.count,
            self.nan + other.nan,
            self.pos_inf + other.pos_inf,
            self.neg_inf + other.neg_inf,
        )

    @property
    def nonfinite(self) -> int:
        """Number of items that were NaN or infinite."""
        return self.nan + self.pos_inf + self.neg_inf

    @classmethod
    def from_float(cls, value: float, *, count: int = 1) -> ExactSum:
        """`value` as one number that stands for `count` items."""
        if value != value:
            return cls(0, count, nan=count)
        if value in (float("inf"), float("-inf")):
            return cls(0, count, pos_inf=count if value > 0 else 0, neg_inf=count if value < 0 else 0)
        numerator, denominator = float(value).as_integer_ratio()  # denominator is a power of two, at most 2 ** 1074
        return cls((numerator << -WIDE.base) // denominator, count)

    @classmethod
    def from_lanes(cls, lanes: Sequence[int] | npt.NDArray[np.int64]) -> ExactSum:
        """The sum that `lanes` [13] or [70] holds; limbs need not be canonical."""
        layout = layout_of(len(lanes))
        values = lanes.tolist() if isinstance(lanes, np.ndarray) else lanes
        joined = 0
        for limb in values[layout.limbs - 1 :: -1]:
            joined = (joined << LIMB_BITS) + limb
        return cls(joined << (layout.base - WIDE.base), *values[layout.limbs :])

    def fits(self, layout: Layout) -> bool:
        """Whether `layout` can hold this sum without losing a bit."""
        shift = layout.base - WIDE.base
        rest = self.scaled & ((1 << shift) - 1)
        return rest == 0 and -1 << 31 <= (self.scaled >> shift) >> (LIMB_BITS * layout.limbs) < 1 << 31

    def to_lanes(self, layout: Layout = WIDE) -> npt.NDArray[np.int64]:
        """The canonical lanes, int64 [13] or [70]; raises ValueError where `layout` is too small."""
        if not self.fits(layout):
            raise ValueError(f"The {layout.name} layout can't hold this sum. Use the wide one.")
        rest = self.scaled >> (layout.base - WIDE.base)
        lanes = np.empty(layout.lanes, dtype=np.int64)
        for k in range(layout.limbs - 1):
            lanes[k] = rest & LIMB_MASK
            rest >>= LIMB_BITS
        lanes[layout.limbs - 1] = rest
        lanes[layout.limbs :] = (self.count, self.nan, self.pos_inf, self.neg_inf)
        return lanes

    def digest(self) -> str:
        """SHA-256 of the canonical wide lanes, in hexadecimal: equal for equal multisets of values."""
        return hashlib.sha256(self.to_lanes(WIDE).astype("<i8").tobytes()).hexdigest()


def carry_limbs(lanes: npt.NDArray[np.int64], layout: Layout) -> None:
    """Move what lies above 32 bits one limb up, in place, in one pass over `lanes` [..., 13 or 70].

    The sum stays what it was. Afterwards every limb but the last lies within 2 ** 32 + 2 ** 31 of zero, so that 2 ** 29
    such states can be added before a lane overflows.
    """
    limbs = lanes[..., : layout.limbs]
    carry = limbs[..., :-1] >> LIMB_BITS
    limbs[..., :-1] &= LIMB_MASK
    limbs[..., 1:] += carry

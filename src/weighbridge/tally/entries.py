"""What a tally holds under one name on one rank: the state of a mean, or the smallest or largest value.

Both add without looking at the values, so an entry may live on a device and is not copied from it until it is reduced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from weighbridge.errors import InputError
from weighbridge.exact import NARROW, WIDE, ExactSum, Lanes, add_lanes, exact_lanes, weighted_lanes, widen_lanes
from weighbridge.exact.producers import is_tensor
from weighbridge.mean import Exactness, Mean, NonFinite

__all__ = ["Extreme", "ExtremeEntry", "Kind", "MeanEntry", "row_lanes"]


class Kind(StrEnum):
    """What a name stands for; fixed by the first value added under it, on every rank."""

    MEAN = "mean"
    WEIGHTED = "weighted mean"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Extreme:
    """The smallest or largest of the values counted.

    Attributes:
        value: float64; None where nothing was counted, NaN where a NaN was.
        count: number of values.
    """

    value: float | None = None
    count: int = 0


class MeanEntry:
    """The lanes of a mean, exact; `weights` lanes too if it is weighted.

    Attributes:
        lanes: total, int64 [13] or [70].
        mass: sum of the weights, int64 [70], or None.
        rows: whether something in it was rounded before it came here.
    """

    def __init__(self, lanes: Lanes, mass: Lanes | None = None, rows: bool = False) -> None:
        self.lanes = lanes
        self.mass = mass
        self.rows = rows

    @property
    def kind(self) -> Kind:
        return Kind.MEAN if self.mass is None else Kind.WEIGHTED

    @property
    def wide(self) -> bool:
        return bool(self.lanes.shape[0] == WIDE.lanes)

    def merge(self, other: MeanEntry) -> None:
        """Take in another entry of the same kind."""
        wide = self.wide or other.wide
        mine, theirs = _alike(self.lanes, other.lanes, wide)
        self.lanes = add_lanes(mine, theirs)
        if self.mass is not None and other.mass is not None:
            self.mass = add_lanes(*_alike(self.mass, other.mass, True))
        self.rows = self.rows or other.rows

    def mean(self, nonfinite: NonFinite) -> Mean:
        """The mean of this rank alone; copies from the device."""
        exactness = Exactness.ROWS if self.rows else Exactness.TOKENS
        mass = None if self.mass is None else ExactSum.from_lanes(self.mass.tolist())
        return Mean(ExactSum.from_lanes(self.lanes.tolist()), mass, nonfinite, exactness)

    @classmethod
    def of(cls, values: Any, mask: Any, weights: Any) -> MeanEntry:
        """The entry that holds `values` where `mask` is true, with `weights` if there are some."""
        if weights is None:
            return cls(exact_lanes(values, mask))
        return cls(*weighted_lanes(values, weights, mask))

    @classmethod
    def from_mean(cls, mean: Mean) -> MeanEntry:
        """The entry that holds what `mean` holds."""
        layout = NARROW if mean.mass is None and mean.total.fits(NARROW) else WIDE
        mass = None if mean.mass is None else mean.mass.to_lanes(WIDE)
        return cls(mean.total.to_lanes(layout), mass, mean.exactness is Exactness.ROWS)


class ExtremeEntry:
    """The smallest (or largest) value so far and how many values that was; numpy or torch scalars.

    Attributes:
        kind: Kind.MIN or Kind.MAX.
        value: float64 []; +inf (or -inf) while nothing was counted.
        count: int64 [].
    """

    def __init__(self, kind: Kind, value: Any, count: Any) -> None:
        self.kind = kind
        self.value = value
        self.count = count

    def merge(self, other: ExtremeEntry) -> None:
        """Take in another entry of the same kind; a NaN in either stays."""
        mine, theirs = self.value, other.value
        if is_tensor(mine) or is_tensor(theirs):
            import torch

            device = mine.device if is_tensor(mine) else theirs.device
            pick = torch.minimum if self.kind is Kind.MIN else torch.maximum
            self.value = pick(torch.as_tensor(mine, device=device), torch.as_tensor(theirs, device=device))
            self.count = torch.as_tensor(self.count, device=device) + torch.as_tensor(other.count, device=device)
            return
        self.value = (np.minimum if self.kind is Kind.MIN else np.maximum)(mine, theirs)
        self.count = self.count + other.count

    def extreme(self) -> Extreme:
        """The value on this rank alone; copies from the device."""
        count = int(self.count)
        return Extreme(float(self.value) if count else None, count)

    @classmethod
    def of(cls, kind: Kind, values: Any, mask: Any) -> ExtremeEntry:
        """The entry that holds `values` where `mask` is true."""
        nothing = math.inf if kind is Kind.MIN else -math.inf
        counted = exact_lanes(values, mask)  # checks shapes and types, and counts, on host and device alike
        count = counted[NARROW.limbs if counted.shape[0] == NARROW.lanes else WIDE.limbs]
        if is_tensor(values) and values.device.type != "cpu":
            import torch

            kept = values.detach().double().reshape(-1)
            kept = kept if mask is None else torch.where(mask.reshape(-1), kept, nothing)
            kept = torch.cat([kept, kept.new_full((1,), nothing)])
            return cls(kind, kept.min() if kind is Kind.MIN else kept.max(), count)
        host = np.asarray(values.detach().double() if is_tensor(values) else values, dtype=np.float64).reshape(-1)
        kept = host if mask is None else host[np.asarray(mask, dtype=np.bool_).reshape(-1)]
        pick = np.min if kind is Kind.MIN else np.max
        return cls(kind, pick(kept, initial=nothing), np.int64(count))


def row_lanes(loss_sum: Any, count: Any) -> MeanEntry:
    """One row, a sum already taken and its count; a row on a device stays there."""
    if not (is_tensor(loss_sum) and loss_sum.device.type != "cpu"):
        return MeanEntry.from_mean(Mean.from_row(loss_sum, count))
    import torch

    if loss_sum.numel() != 1:
        raise InputError(
            f"loss_sum has shape {list(loss_sum.shape)}. A row holds one sum. Use add for the values of a batch."
        )
    items = torch.as_tensor(count, device=loss_sum.device).to(torch.int64).reshape(1)
    lanes = exact_lanes(loss_sum.reshape(1), items > 0)
    limbs = (NARROW if lanes.shape[0] == NARROW.lanes else WIDE).limbs
    lanes[limbs:] *= items
    return MeanEntry(lanes, rows=True)


def _alike(mine: Lanes, theirs: Lanes, wide: bool) -> tuple[Lanes, Lanes]:
    """Both in one layout and in one place."""
    if wide:
        mine, theirs = (lanes if lanes.shape[0] == WIDE.lanes else widen_lanes(lanes) for lanes in (mine, theirs))
    if is_tensor(mine) == is_tensor(theirs):
        return mine, theirs
    import torch

    device = (mine if is_tensor(mine) else theirs).device
    return torch.as_tensor(mine, device=device), torch.as_tensor(theirs, device=device)

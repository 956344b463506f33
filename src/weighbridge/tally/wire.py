"""How a tally goes over the wire: one int64 vector that an ordinary SUM merges, and that says if it should have.

    header [16] | entries in the order of their names

Ranks that hold the same names send the same schema, and their entries lie in the same places. Whether they do is seen
in the sum itself: the header holds a digest d of the schema in four parts and the square of each, and by Cauchy and
Schwarz W * sum(d * d) equals (sum d) * (sum d) only if all W digests are equal. So agreement costs no message, and
every rank sees disagreement in the same sum and takes the same way out.

A mean is its lanes, how many ranks brought it, and how many of those had rounded sums in it. An extreme is W slots, of
which each rank fills its own, so that a SUM gathers them; and a count.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.exact import NARROW, WIDE, ExactSum, widen_lanes
from weighbridge.exact.producers import is_tensor
from weighbridge.mean import Exactness, Mean, NonFinite
from weighbridge.tally.entries import Extreme, ExtremeEntry, Kind, MeanEntry

__all__ = ["FIRST", "HEADER", "Field", "Schema", "agreed", "header", "pack", "unpack"]

HEADER = 16
FIRST = 1280  # lanes (10 KB) of the first collective, the same on every rank whatever it holds
PARTS, PART_BITS = 4, 24  # squares of 48 bits: no overflow up to 32,768 ranks

Entry = MeanEntry | ExtremeEntry
Vector = Any  # int64 [N], a numpy array or a tensor on a device


@dataclass(frozen=True, slots=True, order=True)
class Field:
    """One name and what stands under it."""

    name: str
    kind: Kind
    wide: bool

    def lanes(self, world_size: int) -> int:
        """How many lanes it takes on the wire."""
        if self.kind in (Kind.MIN, Kind.MAX):
            return world_size + 2
        total = (WIDE if self.wide else NARROW).lanes
        return total + (WIDE.lanes if self.kind is Kind.WEIGHTED else 0) + 2


Schema = tuple[Field, ...]


def header(schema: Schema, occasion: tuple[int, int]) -> npt.NDArray[np.int64]:
    """The header [16] of a rank that sends `schema` in the `occasion`-th reduce (which tally, how many before)."""
    text = json.dumps([occasion, [(field.name, field.kind.value, field.wide) for field in schema]])
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[: PARTS * PART_BITS // 8], "big")
    lanes = np.zeros(HEADER, dtype=np.int64)
    for part in range(PARTS):
        lanes[part] = (digest >> (part * PART_BITS)) & ((1 << PART_BITS) - 1)
        lanes[PARTS + part] = lanes[part] ** 2
    lanes[2 * PARTS] = 1  # adds up to the world size
    return lanes


def agreed(summed: npt.NDArray[np.int64], world_size: int) -> bool:
    """Whether all ranks sent the same header, seen from its sum over ranks [16]."""
    same = all(world_size * int(summed[PARTS + part]) == int(summed[part]) ** 2 for part in range(PARTS))
    return same and int(summed[2 * PARTS]) == world_size


def pack(schema: Schema, entries: dict[str, Entry], rank: int, world_size: int) -> Vector:
    """The entries [sum of lanes] in the order of `schema`; zeros for a name that this rank does not have."""
    parts = [_pack_one(field, entries.get(field.name), rank, world_size) for field in schema]
    device = next((part.device for part in parts if is_tensor(part) and part.device.type != "cpu"), None)
    if device is None:
        return np.concatenate([np.asarray(part) for part in parts]) if parts else np.zeros(0, dtype=np.int64)
    import torch

    return torch.cat([torch.as_tensor(part, device=device) for part in parts])


def _pack_one(field: Field, entry: Entry | None, rank: int, world_size: int) -> Vector:
    if entry is None:
        vector = np.zeros(field.lanes(world_size), dtype=np.int64)
        if field.kind in (Kind.MIN, Kind.MAX):
            vector[rank] = _bits(math.inf if field.kind is Kind.MIN else -math.inf)
        return vector
    if isinstance(entry, ExtremeEntry):
        return _pack_extreme(entry, rank, world_size)
    lanes = widen_lanes(entry.lanes) if field.wide and not entry.wide else entry.lanes
    parts = [lanes] if entry.mass is None else [lanes, entry.mass]
    marks = np.array([1, int(entry.rows)], dtype=np.int64)
    if not any(is_tensor(part) for part in parts):
        return np.concatenate([*parts, marks])
    import torch

    device = next(part.device for part in parts if is_tensor(part))
    return torch.cat([torch.as_tensor(part, device=device) for part in (*parts, marks)])


def _pack_extreme(entry: ExtremeEntry, rank: int, world_size: int) -> Vector:
    if is_tensor(entry.value):
        import torch

        vector = torch.zeros(world_size + 2, dtype=torch.int64, device=entry.value.device)
        vector[rank] = entry.value.reshape(1).view(torch.int64)[0]
        vector[world_size] = entry.count
        vector[world_size + 1] = 1
        return vector
    host = np.zeros(world_size + 2, dtype=np.int64)
    host[rank], host[world_size], host[world_size + 1] = _bits(float(entry.value)), int(entry.count), 1
    return host


def unpack(
    schema: Schema, vector: npt.NDArray[np.int64], world_size: int, nonfinite: NonFinite
) -> dict[str, tuple[Mean | Extreme, int]]:
    """From the summed entries: every name's result, and how many ranks brought something under it."""
    made: dict[str, tuple[Mean | Extreme, int]] = {}
    start = 0
    for field in schema:
        lanes = vector[start : start + field.lanes(world_size)]
        start += lanes.size
        if field.kind in (Kind.MIN, Kind.MAX):
            made[field.name] = _extreme(field.kind, lanes, world_size), int(lanes[-1])
        else:
            made[field.name] = _mean(field, lanes, nonfinite), int(lanes[-2])
    return made


def _mean(field: Field, lanes: npt.NDArray[np.int64], nonfinite: NonFinite) -> Mean:
    size = (WIDE if field.wide else NARROW).lanes
    total = ExactSum.from_lanes(lanes[:size])
    mass = ExactSum.from_lanes(lanes[size : size + WIDE.lanes]) if field.kind is Kind.WEIGHTED else None
    return Mean(total, mass, nonfinite, Exactness.ROWS if lanes[-1] else Exactness.TOKENS)


def _extreme(kind: Kind, lanes: npt.NDArray[np.int64], world_size: int) -> Extreme:
    count = int(lanes[world_size])
    values = lanes[:world_size].view(np.float64)
    return Extreme(float(values.min() if kind is Kind.MIN else values.max()) if count else None, count)


def _bits(value: float) -> int:
    return int(np.array([value], dtype=np.float64).view(np.int64)[0])

"""How a tally goes over the wire: one int64 vector that an ordinary SUM merges, and that says if it should have.

    header [16] | entries in the order of their names

Ranks that hold the same names send the same schema, and their entries lie in the same places. Whether they do is seen
in the sum itself: the header holds a digest of the schema in four parts, which reduce of which tally this is, and the
square of each of these numbers. By Cauchy and Schwarz W * sum(d * d) equals (sum d) * (sum d) only if d is the same on
all W ranks. So agreement costs no message, and every rank sees disagreement in the same sum and takes the same way out.

A mean is its lanes, how many ranks brought it, and how many of those had rounded sums in it. An extreme is W slots, of
which each rank fills its own, so that a SUM gathers them; and a count.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.exact import NARROW, WIDE, ExactSum, widen_lanes
from weighbridge.exact.producers import is_tensor
from weighbridge.mean import Exactness, Mean, NonFinite
from weighbridge.tally.entries import Extreme, ExtremeEntry, Kind, MeanEntry

__all__ = ["FIRST", "HEADER", "Field", "Schema", "agreed", "contributors", "pack", "unpack"]

HEADER = 16
FIRST = 1280  # lanes (10 KB) of the first collective, the same on every rank whatever it holds
DIGEST, PARTS = 4, 6  # parts of the digest; with the two numbers of the occasion
PART_BYTES, PART = 3, 1 << 24  # squares of 48 bits: no overflow up to 32,768 ranks

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

    def holds(self, entry: Entry) -> bool:
        """Whether `entry` can be sent as this."""
        if isinstance(entry, ExtremeEntry):
            return self.kind is entry.kind
        return (self.kind is Kind.WEIGHTED) is (entry.mass is not None) and (self.wide or not entry.wide)


class Schema(Mapping[str, Field]):
    """The fields in the order of their names. Made once for many reduces: nothing is worked out twice."""

    def __init__(self, fields: Iterable[Field] = ()) -> None:
        self._fields = {field.name: field for field in sorted(fields)}
        self._places: dict[str, tuple[int, int]] | None = None

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def with_entries(self, entries: Mapping[str, Entry]) -> Schema:
        """This schema where it can hold all `entries`; else one that can, with the names of both."""
        fields = self._fields
        if all(name in fields and fields[name].holds(entry) for name, entry in entries.items()):
            return self
        added = {}
        for name, entry in entries.items():
            known = fields.get(name)
            wide = (isinstance(entry, MeanEntry) and entry.wide) or (known is not None and known.wide)
            added[name] = Field(name, entry.kind, wide)
        return Schema({**fields, **added}.values())

    @cached_property
    def digest(self) -> npt.NDArray[np.int64]:
        """A digest of the fields in parts of 24 bits [4]: equal on all ranks that send the same."""
        text = json.dumps([(field.name, field.kind.value, field.wide) for field in self.values()])
        digest = hashlib.sha256(text.encode()).digest()[: DIGEST * PART_BYTES]
        parts = [digest[start : start + PART_BYTES] for start in range(0, len(digest), PART_BYTES)]
        return np.array([int.from_bytes(part, "big") for part in parts], dtype=np.int64)

    @cached_property
    def has_weights(self) -> bool:
        """Whether one of the means is weighted."""
        return any(field.kind is Kind.WEIGHTED for field in self._fields.values())

    def places(self, world_size: int) -> dict[str, tuple[int, int]]:
        """By name, where its lanes begin and end on the wire, after the header."""
        if self._places is None:
            ends = [*itertools.accumulate((field.lanes(world_size) for field in self.values()), initial=HEADER)]
            self._places = dict(zip(self, itertools.pairwise(ends), strict=True))
        return self._places


def agreed(summed: npt.NDArray[np.int64], world_size: int) -> bool:
    """Whether all ranks sent the same header, seen from its sum over ranks [16]."""
    lanes = summed.tolist()
    same = all(world_size * lanes[PARTS + part] == lanes[part] ** 2 for part in range(PARTS))
    return same and bool(lanes[2 * PARTS] == world_size)


def pack(schema: Schema, entries: dict[str, Entry], rank: int, world_size: int, *, occasion: tuple[int, int]) -> Vector:
    """The header and the entries [FIRST or more]; zeros for a name that this rank does not have.

    Args:
        schema: what to send, in this order.
        entries: what this rank holds.
        rank: this rank.
        world_size: number of ranks.
        occasion: which tally it is, and how often it was reduced before.
    """
    places = schema.places(world_size)
    size = max([FIRST, *(stop for _, stop in places.values())])
    device = _device(entries)
    vector, place = (np.zeros(size, dtype=np.int64), np.asarray) if device is None else _on(device, size)
    vector[:HEADER] = place(_header(schema, occasion))
    for name, (start, stop) in places.items():
        _write(vector[start:stop], schema[name], entries.get(name), rank, place)
    return vector


def _header(schema: Schema, occasion: tuple[int, int]) -> npt.NDArray[np.int64]:
    lanes = np.zeros(HEADER, dtype=np.int64)
    lanes[:DIGEST] = schema.digest
    lanes[DIGEST:PARTS] = [number % PART for number in occasion]
    lanes[PARTS : 2 * PARTS] = lanes[:PARTS] * lanes[:PARTS]
    lanes[2 * PARTS] = 1  # adds up to the world size
    return lanes


def _device(entries: dict[str, Entry]) -> Any:
    """The device that one of the entries is on; None where all are on the host."""
    for entry in entries.values():
        held: Any = entry.value if isinstance(entry, ExtremeEntry) else entry.lanes
        if is_tensor(held) and held.device.type != "cpu":
            return held.device
    return None


def _on(device: Any, size: int) -> tuple[Vector, Callable[[Any], Any]]:
    import torch

    return torch.zeros(size, dtype=torch.int64, device=device), lambda part: torch.as_tensor(part, device=device)


def _write(out: Vector, field: Field, entry: Entry | None, rank: int, place: Callable[[Any], Any]) -> None:
    """Write one field to its lanes `out`, which hold zeros; `place` brings a part to where they are."""
    if field.kind in (Kind.MIN, Kind.MAX):
        nothing = np.float64(math.inf if field.kind is Kind.MIN else -math.inf)
        held = entry if isinstance(entry, ExtremeEntry) else ExtremeEntry(field.kind, nothing, 0)
        out[rank] = place(_bits(held.value))
        out[-2] = place(held.count)
        out[-1] = int(entry is not None)
    elif isinstance(entry, MeanEntry):
        lanes = widen_lanes(entry.lanes) if field.wide and not entry.wide else entry.lanes
        size = lanes.shape[0]
        out[:size] = place(lanes)
        if entry.mass is not None:
            out[size:-2] = place(entry.mass)
        out[-2] = 1
        out[-1] = int(entry.rows)


def _bits(value: Any) -> Any:
    """A float64 [] as its bits, int64 []."""
    if not is_tensor(value):
        return value.view(np.int64)
    import torch

    return value.view(torch.int64)


def unpack(field: Field, lanes: npt.NDArray[np.int64], world_size: int, nonfinite: NonFinite) -> Mean | Extreme:
    """What one field's summed lanes hold."""
    if field.kind in (Kind.MIN, Kind.MAX):
        count = int(lanes[world_size])
        values = lanes[:world_size].view(np.float64)
        return Extreme(float(values.min() if field.kind is Kind.MIN else values.max()) if count else None, count)
    size = (WIDE if field.wide else NARROW).lanes
    total = ExactSum.from_lanes(lanes[:size])
    mass = ExactSum.from_lanes(lanes[size:-2]) if field.kind is Kind.WEIGHTED else None
    return Mean(total, mass, nonfinite, Exactness.ROWS if lanes[-1] else Exactness.TOKENS)


def contributors(field: Field, lanes: npt.NDArray[np.int64]) -> int:
    """How many ranks brought something under the field."""
    return int(lanes[-1] if field.kind in (Kind.MIN, Kind.MAX) else lanes[-2])

"""What a tally looks like in a checkpoint: plain dicts, lists, numbers and strings, for torch.save as for JSON.

A state says whether it is one rank's part ("local") or what all ranks held together ("global"). That decides who takes
it on resuming, so that nothing is counted twice at any world size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weighbridge.collectives import say_ranks
from weighbridge.errors import InputError
from weighbridge.exact import NARROW, WIDE, ExactSum
from weighbridge.mean import Mean
from weighbridge.tally.entries import Extreme, ExtremeEntry, Kind, MeanEntry

__all__ = ["FORMAT", "entry_of", "load", "save"]

FORMAT = "weighbridge.tally/1"
Entry = MeanEntry | ExtremeEntry


def entry_of(result: Mean | Extreme, kind: Kind) -> Entry:
    """The entry that holds a reduced result."""
    if isinstance(result, Mean):
        return MeanEntry.from_mean(result)
    nothing = np.inf if kind is Kind.MIN else -np.inf
    return ExtremeEntry(kind, np.float64(nothing if result.value is None else result.value), np.int64(result.count))


def save(entries: Mapping[str, Entry], scope: str, rank: int | None, world_size: int) -> dict[str, Any]:
    """The state of `entries`; canonical, so equal contents give equal states."""
    return {
        "format": FORMAT,
        "scope": scope,
        "rank": rank,
        "world_size": world_size,
        "entries": {name: _save_one(entry) for name, entry in sorted(entries.items())},
    }


def load(saved: Any, rank: int, world_size: int) -> dict[str, Entry]:
    """The entries that fall to `rank` of `world_size`."""
    states = [saved] if isinstance(saved, Mapping) else list(saved)
    for each in states:
        if not isinstance(each, Mapping) or each.get("format") != FORMAT:
            found = each.get("format") if isinstance(each, Mapping) else type(each).__name__
            raise InputError(f"The state is {found!r}. A tally loads {FORMAT!r}. Pass what state_dict gave.")
    if len(states) == 1 and states[0]["scope"] == "global":
        return _entries(states[0]) if rank == 0 else {}
    if any(each["scope"] == "global" for each in states):
        raise InputError(
            f"{len(states)} states were given and one holds all ranks together. Its values would be counted twice. "
            "Load it alone."
        )
    if isinstance(saved, Mapping):
        return _own(states[0], rank, world_size)
    return _dealt(states, rank, world_size)


def _own(saved: Mapping[str, Any], rank: int, world_size: int) -> dict[str, Entry]:
    if (saved["rank"], saved["world_size"]) != (rank, world_size):
        raise InputError(
            f"The state is that of rank {saved['rank']} of {saved['world_size']}, and this is rank {rank} of "
            f"{world_size}. A rank's own state goes back to that rank. Pass the list of all ranks' states, or save "
            "with state_dict."
        )
    return _entries(saved)


def _dealt(states: Sequence[Mapping[str, Any]], rank: int, world_size: int) -> dict[str, Entry]:
    sizes = {each["world_size"] for each in states}
    ranks = sorted(each["rank"] for each in states)
    if len(sizes) != 1 or ranks != list(range(len(states))) or sizes != {len(states)}:
        expected = max(sizes, default=0)
        lacking = sorted(set(range(expected)) - set(ranks))
        gap = f" {say_ranks(lacking).capitalize()} of {expected} is not among them." if lacking else ""
        raise InputError(
            f"The states are those of {say_ranks(ranks) if ranks else 'no rank'}.{gap} A set of states holds each rank "
            "of one save once. Pass all of them."
        )
    merged: dict[str, Entry] = {}
    for each in sorted(states, key=lambda state: int(state["rank"])):
        if each["rank"] % world_size == rank:
            for name, entry in _entries(each).items():
                if name in merged:
                    merged[name].merge(entry)  # type: ignore[arg-type]
                else:
                    merged[name] = entry
    return merged


def _save_one(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, ExtremeEntry):
        held = entry.extreme()
        return {
            "kind": entry.kind.value,
            "value": None if held.value is None else held.value.hex(),
            "count": held.count,
        }
    saved = {"kind": entry.kind.value, "rows": entry.rows, "lanes": _canonical(entry.lanes)}
    return saved if entry.mass is None else {**saved, "mass": _canonical(entry.mass)}


def _canonical(lanes: Any) -> list[int]:
    """Narrow lanes where they hold it, wide ones otherwise: the same for equal sums."""
    total = ExactSum.from_lanes(lanes.tolist())
    held: list[int] = total.to_lanes(NARROW if total.fits(NARROW) else WIDE).tolist()
    return held


def _entries(saved: Mapping[str, Any]) -> dict[str, Entry]:
    return {name: _load_one(each) for name, each in saved["entries"].items()}


def _load_one(saved: Mapping[str, Any]) -> Entry:
    kind = Kind(saved["kind"])
    if kind in (Kind.MIN, Kind.MAX):
        value = None if saved["value"] is None else float.fromhex(saved["value"])
        return entry_of(Extreme(value, saved["count"]), kind)
    mass = saved.get("mass")
    wide_mass = None if mass is None else ExactSum.from_lanes(mass).to_lanes(WIDE)
    return MeanEntry(np.array(saved["lanes"], dtype=np.int64), wide_mass, saved["rows"])

"""The tally itself: add on a rank, reduce over ranks, save and resume at any world size."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from weighbridge.collectives import DEFAULT_LIMIT, Collective, collective_for, say_ranks
from weighbridge.errors import CollectiveError, InputError
from weighbridge.mean import Mean, NonFinite
from weighbridge.tally import state, wire
from weighbridge.tally.entries import Extreme, ExtremeEntry, Kind, MeanEntry, row_lanes
from weighbridge.tally.wire import Entry, Field, Schema

__all__ = ["GlobalMeans", "LocalMeans", "Tally"]

Result = Mean | Extreme
_reduced: Counter[object] = Counter()  # by group, how many of its tallies were reduced in this process


class LocalMeans(Mapping[str, Result]):
    """What one rank holds by itself, by name. Never the answer over ranks: that is `GlobalMeans`."""

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = dict(results)

    def __getitem__(self, name: str) -> Result:
        if name not in self._results:
            known = ", ".join(sorted(self)) or "none"
            raise KeyError(f"{name!r} was not added by any rank. Known names: {known}.")
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"


class GlobalMeans(LocalMeans):
    """What all ranks hold together, by name; the same on every rank. A result is made when it is first read.

    Attributes:
        world_size: number of ranks.
    """

    def __init__(self, schema: Schema, summed: Any, world_size: int, nonfinite: NonFinite) -> None:
        super().__init__({})
        self.world_size = world_size
        self._schema = schema
        self._summed = summed
        self._nonfinite = nonfinite

    def __getitem__(self, name: str) -> Result:
        if name not in self._results and name in self._schema:
            self._results[name] = wire.unpack(self._schema[name], self._lanes(name), self.world_size, self._nonfinite)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema)

    def __len__(self) -> int:
        return len(self._schema)

    @property
    def contributors(self) -> dict[str, int]:
        """By name, how many ranks had added something under it."""
        return {name: wire.contributors(field, self._lanes(name)) for name, field in self._schema.items()}

    def _lanes(self, name: str) -> Any:
        start, stop = self._schema.places(self.world_size)[name]
        return self._summed[start:stop]


class Tally:
    """Named means, sums, counts, minima and maxima, added up on each rank and reduced together.

    A name belongs to every rank: one that added nothing under it contributes nothing to it, whichever names the others
    used. Values are exact, so the result has the same bits for every split over microbatches and ranks.

    Args:
        group: a torch process group, a DeviceMesh (one axis or several), an mpi4py communicator, a `Collective`; None
            is the default process group where there is one, and this process alone otherwise.
        nonfinite: what NaN and infinite values do: "propagate", "raise" (in `reduce`, on every rank) or "skip".
        everywhere: what a name means that some ranks lack: "any" takes what there is, "all" raises on every rank.
        limit: seconds that a reduce waits for other ranks.

    >>> tally = Tally()
    >>> tally.add("loss", [1.0, 2.0, 6.0], [True, False, True])
    >>> tally.add_max("longest", [7, 12])
    >>> means = tally.reduce()
    >>> means["loss"].value, means["loss"].count, means["loss"].sum, means["longest"].value
    (3.5, 2, 7.0, 12.0)
    """

    def __init__(
        self, group: Any = None, *, nonfinite: str = "propagate", everywhere: str = "any", limit: float = DEFAULT_LIMIT
    ) -> None:
        if everywhere not in ("any", "all"):
            raise InputError(f"everywhere is {everywhere!r}. It is 'any' or 'all'. Pass one of these.")
        self._group: Collective = collective_for(group, limit=limit)
        self._nonfinite = NonFinite(nonfinite)
        self._everywhere = everywhere
        self._entries: dict[str, Entry] = {}
        self._known = Schema()  # what every rank is known to know, so that names seldom used cost no second message
        self._number = -1  # which of the group's tallies this is, in the order of their first reduce
        self._reduces = 0

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return self._group.world_size

    def add(self, name: str, values: Any, mask: Any = None, *, weights: Any = None) -> None:
        """Count `values` where `mask` is true under `name`. No collective, and no copy from a device to the host.

        Args:
            name: what the mean is called; the same on every rank.
            values: per-token values of any shape, float or integer or bool (hits), on any device.
            mask: bool (or 0 and 1, on the host) of the same shape; None counts every value.
            weights: at least 0, of the same shape, for a weighted mean.

        Raises:
            InputError: shapes or types don't fit, or `name` already stands for something of another kind.
        """
        self._merge(name, lambda: MeanEntry.of(values, mask, weights))

    def add_row(self, name: str, loss_sum: Any, count: Any) -> None:
        """Count a sum that was already taken. It was rounded before it came here: exact across ranks only.

        Raises:
            InputError: the count is negative, fractional or not finite (seen where it is on the host).
        """
        self._merge(name, lambda: row_lanes(loss_sum, count))

    def add_mean(self, name: str, mean: Mean) -> None:
        """Count what `mean` holds."""
        self._merge(name, lambda: MeanEntry.from_mean(mean))

    def add_min(self, name: str, values: Any, mask: Any = None) -> None:
        """Keep the smallest of `values` where `mask` is true; a NaN among them is the answer."""
        self._merge(name, lambda: ExtremeEntry.of(Kind.MIN, values, mask))

    def add_max(self, name: str, values: Any, mask: Any = None) -> None:
        """Keep the largest of `values` where `mask` is true; a NaN among them is the answer."""
        self._merge(name, lambda: ExtremeEntry.of(Kind.MAX, values, mask))

    def local(self) -> LocalMeans:
        """What this rank holds by itself; copies from the device."""
        return LocalMeans({name: _result(entry, self._nonfinite) for name, entry in sorted(self._entries.items())})

    def clear(self) -> None:
        """Forget everything added, to begin the next window. Known names stay known: they cost no message again."""
        self._entries = {}

    def reduce(self) -> GlobalMeans:
        """What all ranks hold together. Changes nothing here: repeat it, add more, reduce again.

        One collective; a second one for what exceeds 10 KB (some 90 means). Where ranks have added different names for
        the first time, they also exchange their names, once.

        Raises:
            CollectiveError: a rank did not take part within the limit, is in another reduce, uses a name for another
                kind of thing, or lacks a name under `everywhere="all"`. Raised on every rank that is alive, and what
                was added is still there.
            NonFiniteError: under `nonfinite="raise"`, on every rank.
        """
        if self._number < 0:
            group = getattr(self._group, "identity", id(self._group))
            self._number = _reduced[group]
            _reduced[group] += 1
        self._reduces += 1
        schema = self._known.with_entries(self._entries)
        summed = self._send(schema)
        if summed is None:
            schema = self._agree(schema)
            summed = self._send(schema)
            if summed is None:
                raise CollectiveError(
                    "The ranks exchanged their names and still disagree. This is a fault of weighbridge."
                )
        self._known = schema
        means = GlobalMeans(schema, summed, self.world_size, self._nonfinite)
        if self._nonfinite is NonFinite.RAISE or schema.has_weights:
            for name, result in means.items():
                if isinstance(result, Mean):
                    result.check(f"{name!r} over {self.world_size} ranks")
        if self._everywhere == "all" and any(0 < ranks < self.world_size for ranks in means.contributors.values()):
            self._refuse_gaps()
        return means

    def local_state_dict(self) -> dict[str, Any]:
        """What this rank holds, as plain dicts, lists, numbers and strings. No collective. Every rank saves its own."""
        return state.save(self._entries, "local", self._group.rank, self._group.world_size)

    def state_dict(self) -> dict[str, Any]:
        """What all ranks hold together, the same on every rank: save it once. Collective, as `reduce`."""
        policy, self._nonfinite = self._nonfinite, NonFinite.PROPAGATE
        try:
            means = self.reduce()
        finally:
            self._nonfinite = policy
        entries = {name: state.entry_of(result, self._known[name].kind) for name, result in means.items()}
        return state.save(entries, "global", None, self.world_size)

    def load_state_dict(self, saved: Any) -> None:
        """Take the place of everything added, so that over all ranks nothing is counted twice. No collective.

        Args:
            saved: on every rank, either what `state_dict` gave (one rank takes it, the others start empty), at any
                world size; or this rank's `local_state_dict` at the old world size; or the list of all ranks'
                `local_state_dict`, in any order, at any world size (they are dealt out).

        Raises:
            InputError: the states are no complete set, or belong to another world size or rank.
        """
        self._entries = state.load(saved, self._group.rank, self._group.world_size)
        self._known = Schema()

    def _merge(self, name: str, make: Callable[[], Entry]) -> None:
        if not isinstance(name, str) or not name:
            raise InputError(f"The name is {name!r}. A name is a string that is not empty. Pass one.")
        entry = make()
        held = self._entries.get(name)
        if held is None:
            self._entries[name] = entry
        elif held.kind is not entry.kind:
            raise InputError(
                f"{name!r} stands for a {held.kind.value}, and a {entry.kind.value} was added under it. A name stands "
                "for one thing. Use another name."
            )
        else:
            held.merge(entry)  # type: ignore[arg-type]

    def _send(self, schema: Schema) -> Any:
        """The entries summed over ranks [lanes], or None where not all ranks sent this schema."""
        occasion = (self._number, self._reduces)
        sent = wire.pack(schema, self._entries, self.rank, self.world_size, occasion=occasion)
        summed = self._group.sum(sent[: wire.FIRST])
        if not wire.agreed(summed[: wire.HEADER], self.world_size):
            return None
        if sent.shape[0] == wire.FIRST:
            return summed
        return np.concatenate([summed, self._group.sum(sent[wire.FIRST :])])

    def _agree(self, schema: Schema) -> Schema:
        """The schema that holds every rank's names, worked out alike on every rank from all ranks' schemas."""
        mine = [self._number, self._reduces, [(field.name, field.kind.value, field.wide) for field in schema.values()]]
        rows = [json.loads(text) for text in self._group.gather(json.dumps(mine))]
        calls = [(number, reduces) for number, reduces, _ in rows]
        if len(set(calls)) > 1:
            told = "; ".join(
                f"rank {rank} is in reduce {reduces} of its tally {number}"
                for rank, (number, reduces) in enumerate(calls)
            )
            raise CollectiveError(
                f"{told}. All ranks reduce the same tally the same number of times. Reduce on every rank or on none."
            )
        fields: dict[str, Field] = {}
        for _, _, names in rows:
            for name, kind, wide in names:
                known = fields.get(name, Field(name, Kind(kind), wide))
                if known.kind is not Kind(kind):
                    raise _two_kinds(name, rows)
                fields[name] = Field(name, known.kind, known.wide or wide)
        return Schema(fields.values())

    def _refuse_gaps(self) -> None:
        rows = [set(json.loads(text)) for text in self._group.gather(json.dumps(sorted(self._entries)))]
        lacking = {
            name: [rank for rank, names in enumerate(rows) if name not in names] for name in sorted(set().union(*rows))
        }
        gaps = [f"{say_ranks(ranks)} of {len(rows)} added no {name!r}" for name, ranks in lacking.items() if ranks]
        raise CollectiveError(
            f"{'; '.join(gaps)}. Under everywhere='all' each name is added on every rank. Add it there too (an empty "
            "batch counts), or pass everywhere='any'."
        )


def _two_kinds(name: str, rows: list[Any]) -> CollectiveError:
    held: dict[str, list[int]] = {}
    for rank, (_, _, names) in enumerate(rows):
        for each, kind, _ in names:
            if each == name:
                held.setdefault(kind, []).append(rank)
    told = " and ".join(f"a {kind} on {say_ranks(ranks)}" for kind, ranks in held.items())
    return CollectiveError(f"{name!r} stands for {told}. A name stands for one thing on all ranks. Use another name.")


def _result(entry: Entry, nonfinite: NonFinite) -> Result:
    return entry.mean(nonfinite) if isinstance(entry, MeanEntry) else entry.extreme()

"""Items that were fed more than once in a step, found by their content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from weighbridge.pieces import Row, Table

__all__ = ["duplicated_items", "replicated_ranks"]


def _known(table: Table) -> list[Row]:
    return [row for row in table.rows if row.content is not None and row.mass > 0]


def duplicated_items(tables: Iterable[Table]) -> list[str]:
    """Where a minority of items was fed in several pieces of one step, in words; [] if nowhere.

    Data that is the same everywhere (a synthetic batch) or that is the same on every rank is no such fault.
    """
    places: list[str] = []
    for table in tables:
        rows = _known(table)
        pieces: dict[str | None, set[tuple[int, int]]] = {}
        for row in rows:
            pieces.setdefault(row.content, set()).add((row.rank, row.microbatch))
        repeated = [row for row in rows if len(pieces[row.content]) > 1]
        if not repeated or 2 * len(repeated) >= len(rows) or _replicated(table):
            continue
        places += [
            f"step {table.step} rank {row.rank} microbatch {row.microbatch} sequence {row.sequence}" for row in repeated
        ]
    return places


def replicated_ranks(tables: Iterable[Table]) -> bool:
    """Whether every rank held exactly the same items in every step, and these were not all one item."""
    tables = [table for table in tables if _known(table)]
    return bool(tables) and all(_replicated(table) for table in tables)


def _replicated(table: Table) -> bool:
    by_rank: dict[int, Counter[str | None]] = {}
    rows = _known(table)
    for row in rows:
        by_rank.setdefault(row.rank, Counter())[row.content] += 1
    first = next(iter(by_rank.values()), Counter())
    return (
        table.world_size > 1
        and len(by_rank) == table.world_size
        and len({row.content for row in rows}) > 1
        and all(counter == first for counter in by_rank.values())
    )

"""The entries that there are, and how one is named on the command line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from weighbridge.cases.entry import Entry, load_entry
from weighbridge.errors import InputError

__all__ = ["MECHANISMS", "find_entries", "load_catalogue"]

MECHANISMS = Path(__file__).parent / "mechanisms"


def load_catalogue(root: Path = MECHANISMS) -> list[Entry]:
    """Every entry under `root`, by id. Raises InputError if two entries share an id or a related entry is unknown."""
    entries = [load_entry(folder) for folder in sorted(root.iterdir()) if (folder / "case.toml").exists()]
    entries.sort(key=lambda entry: entry.facts.id)
    for earlier, later in pairwise(entries):
        if earlier.facts.id == later.facts.id:
            raise InputError(
                f"{earlier.name} and {later.name} both have the id {later.facts.id}. An id belongs to one entry. "
                "Give the newer one the next free id."
            )
    names = {entry.name for entry in entries}
    for entry in entries:
        if unknown := sorted(set(entry.facts.related) - names):
            raise InputError(f"{entry.name} is related to {unknown}, which the catalogue does not have. Correct it.")
    return entries


def find_entries(entries: list[Entry], wanted: tuple[str, ...]) -> list[Entry]:
    """The entries named by `wanted` (name, id or reference), in that order; all of them if nothing is named."""
    if not wanted:
        return entries
    by_word = {
        word.lower(): entry
        for entry in entries
        for word in (entry.facts.reference, entry.facts.id, entry.name)
        if word is not None
    }
    for word in wanted:
        if word.lower() not in by_word:
            raise InputError(f"{word!r} is no entry. An entry is named by its id or name; `cases list` shows them.")
    return [by_word[word.lower()] for word in wanted]

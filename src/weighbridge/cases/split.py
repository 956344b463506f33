"""Evaluation splits that never separate an evaluation group.

Entries of one group share a contract, so whoever has seen one has seen the answer to the others. Groups are dealt
whole, the largest first, each to the part that is furthest below its share; the seed decides between equals.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from weighbridge.cases.entry import Entry
from weighbridge.errors import InputError

__all__ = ["parse_ratios", "split_entries"]

_NAMES = {2: ("train", "test"), 3: ("train", "validation", "test")}


def parse_ratios(text: str) -> list[int]:
    """`80/10/10` as whole numbers. Raises InputError unless they are at least two positive numbers that sum to 100."""
    parts = text.split("/")
    ratios = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if len(ratios) != len(parts) or len(ratios) < 2 or min(ratios) < 1 or sum(ratios) != 100:
        raise InputError(f"The ratios are {text!r}. They are whole percentages that sum to 100, such as 80/10/10.")
    return ratios


def split_entries(entries: Sequence[Entry], *, ratios: Sequence[int], seed: int) -> dict[str, list[str]]:
    """The names of the entries of each part, in the order of the ratios."""
    groups: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        groups[entry.facts.group].append(entry.name)
    labels = _NAMES.get(len(ratios), tuple(f"part-{index + 1}" for index in range(len(ratios))))
    parts: dict[str, list[str]] = {label: [] for label in labels}
    shares = {label: len(entries) * ratio / 100 for label, ratio in zip(labels, ratios, strict=True)}

    def order(group: str) -> tuple[int, str]:
        return -len(groups[group]), hashlib.sha256(f"{seed}:{group}".encode()).hexdigest()

    for group in sorted(groups, key=order):
        neediest = max(labels, key=lambda label: (shares[label] - len(parts[label])) / shares[label])
        parts[neediest] += groups[group]
    return {label: sorted(names) for label, names in parts.items()}

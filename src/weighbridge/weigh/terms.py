"""Names for the terms of a loss: which loss calls belong together.

A call is known by its function (or the name a user gave it) and its place in the code. Calls of one function at two
places are one term where no microbatch has both, as in the two branches of an `if`; where one microbatch has both,
each place is a term of its own, named by file and line.
"""

from __future__ import annotations

import os

from weighbridge.weigh.records import Line, Records

__all__ = ["TermNames"]

LABEL_LOSSES = ("cross_entropy", "nll_loss")


class TermNames:
    """The terms of a run. `ordered`: names, first seen first. `first_line`: a line of each."""

    def __init__(self, records: Records, steps: list[int]) -> None:
        self.ordered: list[str] = []
        self.first_line: dict[str, Line] = {}
        self.notes: list[str] = []
        self._split = _functions_with_places_that_meet(records)
        for record in records.ranks.values():
            for line in record.microbatches:
                if line["step"] in steps:
                    self._see(self.of(line), line)
        self.ordered.sort(key=self._rank)

    def _rank(self, name: str) -> tuple[bool, bool]:
        """The first term is judged as the main one: a loss of labels before a distance to a teacher that was computed
        before it, and a scalar term only where there is no other."""
        line = self.first_line[name]
        return line["scalar"], not line["marked"] and line["term"] not in LABEL_LOSSES

    def leave_out(self, name: str) -> None:
        """Leave out a term that was computed and not trained on."""
        self.ordered.remove(name)
        self.notes.append(f"The loss {name} was computed and no gradient came from it: it was left out.")

    def _see(self, name: str, line: Line) -> None:
        if name not in self.first_line:
            self.ordered.append(name)
            self.first_line[name] = line

    def of(self, line: Line, *, evaluation: bool = False) -> str:
        """The name of the term that a microbatch line belongs to."""
        term: str = line["term"]
        if term in self._split and not evaluation:
            path, _, number = line["site"].rpartition(":")
            return f"{term} ({os.path.basename(path)}:{number})"
        if evaluation and self.ordered and self.ordered[0].split(" ")[0] == term:
            return self.ordered[0]  # evaluation code calls the main loss from a place of its own
        return term


def _functions_with_places_that_meet(records: Records) -> set[str]:
    places: dict[tuple[int, int, int, str], set[str]] = {}
    for rank, record in records.ranks.items():
        for line in record.microbatches:
            if not line["marked"]:
                places.setdefault((rank, line["step"], line["microbatch"], line["term"]), set()).add(line["site"])
    return {term for (_, _, _, term), sites in places.items() if len(sites) > 1}

"""What each tier shows, and the lines by which a leak of the other is found.

The open tier holds back every repair: its program, its records and digests, the prose about it, and the source of the
exhibit, which can run it. A leak is looked
for line by line, and not every line of a repair tells something. Two kinds are left out of the search:

* a line that stands in the entry's own failing or unsuccessful program: the reader has it already;
* a line that computes nothing: no arithmetic, no comparison, no call and no index, such as `return None`, `else:`,
  `total, count = 0.0, 0` or `for loss_sum, count in rows:`. Such lines are grammar, and occur in any program.

Every other line of every repair must be absent from every file of the open tier, also where it would stand in another
entry's program.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterable
from enum import StrEnum

from weighbridge.cases.entry import Entry, Implementation

__all__ = ["Tier", "exhibit_lines", "shown_in", "telling_lines"]

_COMPUTES = {*"+-*/%<>|&^@", "//", "**", "<=", ">=", "==", "!=", "+=", "-=", "*=", "/=", "//="}


class Tier(StrEnum):
    """Who reads: everyone, or members."""

    OPEN = "open"
    MEMBER = "member"


def shown_in(tier: Tier) -> list[Implementation]:
    """The implementations that a tier shows."""
    every = list(Implementation)
    return every if tier is Tier.MEMBER else [which for which in every if which is not Implementation.REPAIR]


def telling_lines(entry: Entry) -> list[str]:
    """The lines of the entry's repair that would give it away, with single blanks and no indentation."""
    known = "\n".join(
        "".join(source.split()) for which, source in entry.sources.items() if which is not Implementation.REPAIR
    )
    lines = _lines(entry.sources[Implementation.REPAIR])
    return [line for line in lines if "".join(line.split()) not in known and _computes(line)]


def exhibit_lines(entry: Entry) -> list[str]:
    """The lines that would give an exhibit's source away, which is held back whole, since it holds its repair."""
    return [line for line in _lines(entry.exhibit or "") if _computes(line)]


def _lines(source: str) -> Iterable[str]:
    return (" ".join(line.split()) for line in source.splitlines() if line.strip())


def _computes(line: str) -> bool:
    """Whether a line holds arithmetic, a comparison, a call or an index; comments and definitions don't count."""
    before = ""
    for text, kind in _tokens(line):
        if kind == tokenize.OP and (text in _COMPUTES or (text in "([" and before.isidentifier())):
            return not line.startswith(("def ", "import ", "from "))
        before = text
    return False


def _tokens(line: str) -> list[tuple[str, int]]:
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(line + "\n").readline):
            if token.type != tokenize.COMMENT:
                found.append((token.string, token.type))
    except (tokenize.TokenError, IndentationError):  # an open bracket: the rest is on the next line
        pass
    return found

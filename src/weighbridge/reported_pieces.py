"""The weights of pieces in a logged number: read off one traced window each, or inferred from the rule that fits."""

from __future__ import annotations

import numpy as np

from weighbridge.outcome import PieceWeight
from weighbridge.piece_weights import piece_weights
from weighbridge.predictions import Family, Prediction
from weighbridge.sums import Floats

__all__ = ["reported_pieces"]

_Key = tuple[int, int]


def reported_pieces(family: Family, matched: Prediction, observed: Floats, *, infer: bool = True) -> list[PieceWeight]:
    """One record a piece (rank, microbatch).

    A window in which only one piece was traced shows that piece's weight: what the number moved by, divided by what
    it would have moved by under the objective. Pieces never traced alone follow from the matched rule, if `infer`.
    """
    pieces = _inferred(family, matched, infer)
    windows = family.windows
    table_pieces = [
        (int(t), int(r), int(m))
        for t, r, m in zip(windows.sums.table, windows.sums.rank, windows.sums.microbatch, strict=True)
    ]
    asked = family.objective.formula.of(windows.sums) * windows.shift
    by_window = [
        np.flatnonzero((windows.window[windows.sums.table] == v) & (windows.shift != 0))
        for v in range(len(windows.values))
    ]
    for value, rows in enumerate(by_window):
        places = {table_pieces[row] for row in rows}
        if len(places) != 1 or not windows.usable[value]:
            continue
        table, rank, microbatch = next(iter(places))
        share = float(matched.reach_matrix[table, value])
        expected = float(asked[rows].sum()) * share
        if expected == 0:
            continue
        base = float(matched.values[value] - matched.shift[value])
        weight = (float(observed[value]) - base) / expected
        pieces[rank, microbatch] = _read(family, table, (rank, microbatch), weight)
    return [pieces[key] for key in sorted(pieces)]


def _inferred(family: Family, matched: Prediction, infer: bool) -> dict[_Key, PieceWeight]:
    """The weight of every piece under the matched rule, in the last table that holds it."""
    windows = family.windows
    right = family.objective.formula.of(windows.sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(windows.sums.n > 0, matched.weights / right, np.nan)
    if not infer:
        relative = np.full_like(relative, np.nan)
    found: dict[_Key, PieceWeight] = {}
    parts = np.split(relative, np.cumsum([len(table.rows) for table in windows.tables])[:-1])
    known: set[_Key] = set()
    for table, part in reversed(list(zip(windows.tables, parts, strict=True))):
        if known.issuperset((row.rank, row.microbatch) for row in table.rows):
            continue
        for piece in piece_weights(table, part, inferred=True):
            key = piece.rank, piece.microbatch
            if key not in known and (piece.relative_weight is not None or key not in found):
                found[key] = piece
            if piece.relative_weight is not None or not infer:
                known.add(key)
    return found


def _read(family: Family, table: int, key: _Key, weight: float) -> PieceWeight:
    source = family.windows.tables[table]
    rows = [row for row in source.rows if (row.rank, row.microbatch) == key]
    return PieceWeight(
        step=source.step,
        rank=key[0],
        microbatch=key[1],
        tokens=sum(row.tokens for row in rows),
        loss_sum=sum(row.loss_sum for row in rows if row.mass > 0),
        relative_weight=weight,
    )

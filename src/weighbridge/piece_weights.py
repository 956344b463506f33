"""From relative weights of rows to the records of pieces that a report shows."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from weighbridge.outcome import PieceWeight
from weighbridge.pieces import Row, Table
from weighbridge.sums import Floats

__all__ = ["piece_weights"]


def piece_weights(
    table: Table, relative: Floats, *, inferred: bool = False, massless: bool = False
) -> list[PieceWeight]:
    """One record a piece, from the relative weight of every row [rows]; NaN where it was not read.

    A piece's weight is the mean over its tokens. Rows without tokens have none, unless they are `massless` items of a
    term that has no tokens.
    """
    entries = sorted(zip(table.rows, relative.tolist(), strict=True), key=lambda entry: entry[0].rank)
    pieces = []
    for (rank, microbatch), group in groupby(entries, key=lambda entry: (entry[0].rank, entry[0].microbatch)):
        rows = list(group)
        singles = [_record(table.step, [row], [value], inferred, massless) for row, value in rows]
        whole = _record(table.step, [row for row, _ in rows], [value for _, value in rows], inferred, massless)
        assert (whole.rank, whole.microbatch) == (rank, microbatch)
        pieces.append(whole.model_copy(update={"sequences": singles}) if len(rows) > 1 else whole)
    return pieces


def _record(step: int, rows: list[Row], values: list[float], inferred: bool, massless: bool) -> PieceWeight:
    read = [
        (1.0 if massless else row.mass, value)
        for row, value in zip(rows, values, strict=True)
        if (row.mass > 0 or massless) and np.isfinite(value)
    ]
    mass = sum(share for share, _ in read)
    loss = sum(row.loss_sum for row in rows if row.mass > 0)
    return PieceWeight(
        step=step,
        rank=rows[0].rank,
        microbatch=rows[0].microbatch,
        tokens=sum(row.tokens for row in rows),
        loss_sum=loss,
        relative_weight=sum(share * value for share, value in read) / mass if read else None,
        inferred=inferred and bool(read),
    )

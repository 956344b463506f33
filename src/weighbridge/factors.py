"""Factors that have a name: the numbers by which weights are off when a division happens twice, never or wrongly.

A name has to fit in every weighed step. Token counts differ from step to step, so a factor such as N/W can't be
mistaken for a constant once two steps were weighed. Simple names come first and win where several fit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weighbridge.sums import Floats, Totals

__all__ = ["FACTORS", "factor_table", "joined_names"]

FACTORS: tuple[tuple[str, Callable[[Totals], Floats]], ...] = (
    ("W", lambda t: t.W),
    ("1/W", lambda t: 1 / t.W),
    ("M", lambda t: t.M),
    ("1/M", lambda t: 1 / t.M),
    ("W*M", lambda t: t.W * t.M),
    ("1/(W*M)", lambda t: 1 / (t.W * t.M)),
    ("N", lambda t: t.N),
    ("1/N", lambda t: 1 / t.N),
    ("N/W", lambda t: t.N / t.W),
    ("W/N", lambda t: t.W / t.N),
    ("N/M", lambda t: t.N / t.M),
    ("M/N", lambda t: t.M / t.N),
    ("N/(W*M)", lambda t: t.N / (t.W * t.M)),
    ("W*M/N", lambda t: t.W * t.M / t.N),
    ("W*W", lambda t: t.W * t.W),
    ("1/(W*W)", lambda t: 1 / (t.W * t.W)),
    ("N/B", lambda t: t.N / t.B),
    ("B", lambda t: t.B),
    ("1/B", lambda t: 1 / t.B),
    ("N/sum T", lambda t: t.N / t.T),
    ("W/W+", lambda t: t.W / t.W_plus),
    ("W+/W", lambda t: t.W_plus / t.W),
    ("W+", lambda t: t.W_plus),
    ("1/W+", lambda t: 1 / t.W_plus),
    ("N/W+", lambda t: t.N / t.W_plus),
    ("M/M+", lambda t: t.M / t.M_plus),
    ("M+/M", lambda t: t.M_plus / t.M),
    ("M+", lambda t: t.M_plus),
    ("1/M+", lambda t: 1 / t.M_plus),
    ("M/largest M", lambda t: t.M / t.M.max(initial=1)),  # a last, short accumulation divided by the full length
    ("N/n_0", lambda t: t.N / t.n_first_rank),
    ("N/(W*n_0)", lambda t: t.N / (t.W * t.n_first_rank)),
    ("N/(W*max n_r)", lambda t: t.N / (t.W * t.n_largest_rank)),
    ("N/n_last", lambda t: t.N / t.n_last_microbatch),
    ("N/(M*n_last)", lambda t: t.N / (t.M * t.n_last_microbatch)),
    ("N/(N+W-W+)", lambda t: t.N / (t.N + t.W - t.W_plus)),
    ("N/(W*floor(N/W))", lambda t: t.N / (t.W * np.floor(t.N / t.W))),
    ("N/(W*ceil(N/W))", lambda t: t.N / (t.W * np.ceil(t.N / t.W))),
)


def factor_table(totals: Totals) -> tuple[list[str], Floats]:
    """The names, and the factors themselves [names, tables]; NaN or inf where one can't apply."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.stack([np.broadcast_to(value(totals), totals.N.shape) for _, value in FACTORS])
    return [name for name, _ in FACTORS], np.where(np.isfinite(values), values, np.nan)


def joined_names(names: list[str]) -> str | None:
    """The simplest name, and up to two others that fit as well: "W, or M"; None where no name fits.

    "W+" (ranks with tokens) is not mentioned beside "W": where both fit, no rank was empty.
    """
    chosen = [name for name in names if "+" not in name or name.replace("+", "") not in names]
    return ", or ".join(chosen[:3]) if chosen else None

"""What every rule predicts for a logged number.

A logged value covers a window of one or more steps (or evaluation passes). Under a rule it is

    mean over the window's tables of  sum over rows of  weight of a token * (loss_sum + constant * mass)

and some programs log only the last step of the window, only what one rank saw, or only the last microbatch. All of
these are linear in the losses, so that a whole family of predictions is one product of small matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weighbridge.factors import factor_table
from weighbridge.matching import Tier, bases_for
from weighbridge.objectives import Objective
from weighbridge.readings import LoggedValue
from weighbridge.sums import Flags, Floats, Integers, Sums

__all__ = ["LAST", "MEAN", "POOLED", "Block", "Family", "Prediction", "Windows"]

MEAN = "the mean over the window's steps"
LAST = "only the last step of the window"
POOLED = "all tokens of the window together"


class Windows:
    """The rows behind the values of one logged number, all tables one after the other."""

    def __init__(self, values: Sequence[LoggedValue]) -> None:
        self.values = np.array([value.value for value in values], dtype=np.float64)
        self.tables = [table for value in values for table in value.tables]
        self.window = np.repeat(np.arange(len(values)), [len(value.tables) for value in values])
        columns = [table.columns for table in self.tables]
        self.sums = Sums(columns)
        counted = self.sums.n > 0
        losses = np.concatenate([np.zeros(0), *[column.loss_sum for column in columns]])
        constants = np.concatenate([np.zeros(0), *[column.constant for column in columns]])
        self.shift: Floats = np.where(counted, constants * self.sums.n, 0.0)
        self.loss: Floats = np.where(counted, losses, 0.0)
        self.broken = ~np.isfinite(self.loss)
        self.loss[self.broken] = 0.0

    @cached_property
    def by_table(self) -> Floats:
        """Adds rows up to tables [rows, tables]."""
        return np.asarray(self.sums.table[:, None] == np.arange(len(self.tables)), dtype=np.float64)

    @cached_property
    def by_window(self) -> Floats:
        """Which tables belong to which value [tables, values], tables without any token left out."""
        member = (self.window[:, None] == np.arange(len(self.values))).astype(np.float64)
        return np.asarray(member * (self.sums.totals.N > 0)[:, None])

    @cached_property
    def usable(self) -> Flags:
        """The values that a prediction can be compared with [values]: finite, and so are the losses behind them."""
        broken = np.zeros(len(self.tables), dtype=bool)
        broken[self.sums.table[self.broken]] = True
        touched = (self.by_window * broken[:, None]).sum(axis=0) > 0
        return np.asarray(np.isfinite(self.values) & (self.by_window.sum(axis=0) > 0) & ~touched)

    @cached_property
    def sizes(self) -> Floats:
        """Tables with tokens in each window [values], at least 1."""
        return np.asarray(np.maximum(self.by_window.sum(axis=0), 1))

    def reaches(self) -> list[tuple[str, Floats]]:
        """The ways to get from steps to a value, as matrices [tables, values]."""
        found = [(MEAN, self.by_window / self.sizes)]
        if np.any(self.sizes > 1):
            reverse = np.cumsum(self.by_window[::-1], axis=0)[::-1]
            found.append((LAST, self.by_window * (reverse == 1)))
        return found

    def pooled(self, counts: Floats) -> Floats:
        """The way that divides once over the whole window, by `counts` [tables]; a matrix [tables, values]."""
        weights = self.by_window * counts[:, None]
        return np.asarray(weights / np.maximum(weights.sum(axis=0), 1e-300))


@dataclass(frozen=True)
class Prediction:
    """One rule's prediction.

    Attributes:
        rule: id of the rule; `base` that of the formula that a mask or a factor is combined with.
        tier: how much it assumes.
        scope: which part of the data it covers, in words; "" for all.
        reach: how steps become a value, in words.
        factor_name: name of the factor; "" for none.
        values: what it predicts [values]; `shift` is the tracer's part of that.
        size: sum of the absolute values of what is added up [values], for rounding.
        weights: weight of one token in its own step's value [rows], factor included.
        reach_matrix: from steps to values [tables, values].
    """

    rule: str
    base: str
    tier: Tier
    scope: str
    reach: str
    factor_name: str
    values: Floats
    shift: Floats
    size: Floats
    weights: Floats
    reach_matrix: Floats
    factors: Floats

    @property
    def factor(self) -> float | None:
        """The factor (its median where it differs by step), or None where none is needed."""
        return float(np.median(self.factors)) if self.factor_name else None


@dataclass(frozen=True)
class _Scope:
    rule: str | None
    words: str
    rows: Flags
    sums: Sums  # of the rows alone, or of the whole table where `own` is False
    own: bool


@dataclass(frozen=True)
class Block:
    """The predictions of one scope and one reach: arrays [bases, factors, values]."""

    scope: _Scope
    reach: str
    reach_matrix: Floats
    rules: list[str]
    labels: list[str]
    factors: Floats  # [factors, tables]
    stack: Floats  # weights without factor [bases, rows]
    loss: Floats
    shift: Floats
    size: Floats

    @cached_property
    def values(self) -> Floats:
        """What is predicted [bases, factors, values]."""
        return self.loss + self.shift

    def tiers(self, objective: str) -> Integers:
        """How much each prediction assumes [bases, factors], as numbers of `Tier`."""
        if self.scope.rule is not None:
            plain, times = [Tier.PARTIAL] * len(self.rules), [Tier.PARTIAL_TIMES] * len(self.rules)
        else:
            own = [rule == objective for rule in self.rules]
            plain = [Tier.OBJECTIVE if right else Tier.EXACT for right in own]
            times = [Tier.SCALED if right else Tier.TIMES for right in own]
        columns = [times if label else plain for label in self.labels]
        return np.array(columns, dtype=np.int64).T

    def prediction(self, base: int, factor: int, windows: Windows, objective: str) -> Prediction:
        """One entry as a record."""
        label, rule = self.labels[factor], self.rules[base]
        named = self.scope.rule or ("scaled" if label and rule == objective else rule)
        return Prediction(
            rule=named,
            base=rule,
            tier=Tier(int(self.tiers(objective)[base, factor])),
            scope=self.scope.words,
            reach=self.reach,
            factor_name=label,
            values=self.values[base, factor],
            shift=self.shift[base, factor],
            size=self.size[base, factor],
            weights=self.stack[base] * self.factors[factor][windows.sums.table],
            reach_matrix=self.reach_matrix,
            factors=self.factors[factor],
        )


class Family:
    """All predictions for one logged number."""

    def __init__(self, windows: Windows, objective: Objective, rank: int) -> None:
        self.windows, self.objective = windows, objective
        self.blocks = [block for scope in self._scopes(rank) for block in self._of(scope)]

    @cached_property
    def right(self) -> Prediction:
        """The objective's own prediction."""
        return self.blocks[0].prediction(0, 0, self.windows, self.objective.rule)

    def _scopes(self, rank: int) -> Iterator[_Scope]:
        sums = self.windows.sums
        last, everything = sums.microbatch == sums.M - 1, np.ones(len(sums.n), dtype=bool)
        yield _Scope(None, "", everything, sums, False)
        many, several = bool(np.any(sums.M > 1)), bool(np.any(sums.W > 1))
        masks: list[tuple[str, str, Flags, bool, bool]] = []
        for one in dict.fromkeys((rank, 0)) if several else ():
            masks.append(("single-rank-only", f"the tokens of rank {one}", sums.rank == one, True, False))
        if many:
            masks.append(("last-microbatch-only", "the last microbatch", last, False, True))
            masks.append(
                ("first-microbatch-dropped", "all microbatches but the first", sums.microbatch > 0, False, False)
            )
        if many and several:
            masks.append(
                ("last-microbatch-only", f"the last microbatch of rank {rank}", last & (sums.rank == rank), True, True)
            )
        for rule, words, rows, world, microbatches in masks:
            yield _Scope(rule, words, rows, sums.restricted(rows, world=world, microbatches=microbatches), True)
        for rule, words, rows, _, _ in masks:
            yield _Scope(rule, f"{words}, divided as if all were there", rows, sums, False)

    def _of(self, scope: _Scope) -> Iterator[Block]:
        """The blocks of one scope, one for each way to get from steps to a value."""
        windows = self.windows
        bases = bases_for(self.objective, scope.sums)
        bases = bases if scope.own or scope.rule is None else bases[:1]
        stack = np.zeros((len(bases), len(windows.sums.n)))
        for index, (_, _, weights) in enumerate(bases):
            stack[index, scope.rows] = weights if scope.own else weights[scope.rows]
        labels, factors = self._factors()
        parts = [windows.loss, windows.shift, np.abs(windows.loss) + np.abs(windows.shift)]
        steps = [(stack * part) @ windows.by_table for part in parts]
        for reach, matrix in self._reaches(scope):
            kept = 1 if reach == POOLED else len(bases)
            loss, shift, size = ((step[:kept, None, :] * np.abs(factors)) @ matrix for step in steps)
            yield Block(
                scope, reach, matrix, [rule for rule, _, _ in bases[:kept]], labels, factors, stack, loss, shift, size
            )

    def _reaches(self, scope: _Scope) -> list[tuple[str, Floats]]:
        windows, reaches = self.windows, self.windows.reaches()
        counts = {"token-mean": windows.sums.totals.N, "sequence-mean": windows.sums.totals.B}
        if scope.rule is None and len(reaches) > 1 and self.objective.rule in counts:
            reaches.append((POOLED, windows.pooled(counts[self.objective.rule])))
        return reaches

    def _factors(self) -> tuple[list[str], Floats]:
        """No factor (""), then every named one that applies to all tables [factors, tables]."""
        totals = self.windows.sums.totals
        names, values = factor_table(totals)
        values = np.where(totals.N > 0, values, 1.0)
        one, window = np.ones((1, values.shape[1])), self.windows.sizes[self.windows.window][None]
        labels, table = ["", *names, "steps per window"], np.concatenate([one, values, window])
        applies = np.isfinite(table).all(axis=1) & np.any(table != 1, axis=1)
        applies[0] = True
        return [label for label, ok in zip(labels, applies, strict=True) if ok], table[applies]

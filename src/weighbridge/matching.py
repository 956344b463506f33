"""Which rule gives the weights that were read.

Every candidate (mask, drift and base formula) predicts the weight of one token in every row. The ratio of what was
read to what was predicted has to be one number a step: exactly 1, or a factor that has a name in every step, or at
least one constant over all steps. Fits are ordered by how much they assume (`Tier`): a rule that needs no factor is
preferred to one that does, and a named factor to a number that just happens to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from weighbridge.factors import factor_table, joined_names
from weighbridge.objectives import Objective
from weighbridge.rules import BASES, DRIFTS
from weighbridge.sums import Flags, Floats, Sums

__all__ = ["Drift", "Explanation", "Tier", "bases_for", "match"]

Drift = tuple[str, str, Callable[[Sums], Floats]]  # rule, text, factor of every row


class Tier(IntEnum):
    """How much an explanation assumes; less is better."""

    OBJECTIVE = 0
    EXACT = 1
    SCALED = 2  # the objective times a named factor
    PARTIAL = 3  # some pieces lost, or a drift; no factor
    TIMES = 4  # another base times a named factor
    PARTIAL_TIMES = 5
    DUPLICATED = 6  # whole multiples on some rows
    CONSTANT = 7  # the objective times a constant without a name
    TIMES_CONSTANT = 8
    PARTIAL_CONSTANT = 9


@dataclass(frozen=True)
class Explanation:
    """One rule that fits.

    Attributes:
        rule: id of the rule.
        base: id of the base formula that a mask, a drift or a factor is combined with.
        text: the formula of the whole.
        tier: how much it assumes.
        factors: the factor of every step [steps]; all 1 where none is needed.
        factor_name: name of the factor, or None.
        multiples: how often every compared row counts [rows], for duplicated items.
    """

    rule: str
    base: str
    text: str
    tier: Tier
    factors: Floats
    factor_name: str | None = None
    multiples: Floats | None = None

    @property
    def factor(self) -> float | None:
        """The factor (its median where it differs by step), or None where none is needed."""
        bare = self.tier in (Tier.OBJECTIVE, Tier.EXACT, Tier.PARTIAL, Tier.DUPLICATED)
        return None if bare else float(np.median(self.factors))

    def steady(self, tolerance: float) -> bool:
        """Whether the factor is the same in all steps."""
        return bool(np.ptp(self.factors) <= 2 * tolerance * abs(float(np.mean(self.factors))))


@dataclass(frozen=True)
class _Candidate:
    rule: str
    base: str
    text: str
    partial: bool
    weights: Floats


def bases_for(objective: Objective, sums: Sums) -> list[tuple[str, str, Floats]]:
    """Rule, formula text and weights [rows] of every base that applies, the objective's first."""
    found = [(objective.rule, objective.formula.text, objective.formula.of(sums))]
    for rule in BASES.values():
        if rule.id != objective.rule:
            found += [(rule.id, formula.text, formula.of(sums)) for formula in rule.formulas]
    counted = sums.n > 0
    return [entry for entry in found if np.all(np.isfinite(entry[2][counted])) and np.all(entry[2][counted] > 0)]


def match(
    observed: Floats,
    sums: Sums,
    *,
    objective: Objective,
    read: Flags,
    tolerance: float,
    floor: float,
    drifts: Sequence[Drift] = (),
) -> list[Explanation]:
    """All explanations of the observed weights of one token [rows], the one that assumes least first.

    Only rows flagged in `read` are compared. A weight counts as zero up to `floor` times the step's largest.
    """
    size = np.abs(np.where(read, observed, 0.0))
    largest = np.zeros(sums.tables)
    np.maximum.at(largest, sums.table, size)
    live = read & (size > floor * largest[sums.table])
    if not live.any():
        nothing = np.ones(sums.tables)
        return [Explanation("dropped-pieces", objective.rule, "0 everywhere", Tier.PARTIAL, nothing)]
    candidates = list(_candidates(sums, objective, live, read, drifts))
    fits = _fits(observed, sums, candidates, live, tolerance, objective.rule)
    if np.array_equal(live, read):
        fits += _duplicated(observed, sums, objective, live, tolerance)
    return sorted(fits, key=lambda fit: fit.tier)


def _masks(sums: Sums, live: Flags, read: Flags) -> list[tuple[str, Flags]]:
    """The named masks that leave exactly the rows in `live`."""
    last = sums.microbatch == sums.M - 1
    lowest = np.full(sums.tables, np.iinfo(np.int64).max)
    np.minimum.at(lowest, sums.table[live], sums.rank[live])
    named = [
        ("last-microbatch-only", last & (sums.M > 1)),
        ("first-microbatch-dropped", (sums.microbatch > 0) & (sums.M > 1)),
        ("single-rank-only", (sums.rank == lowest[sums.table]) & (sums.W > 1)),
    ]
    return [(rule, rows) for rule, rows in named if np.array_equal(rows & read, live)]


def _candidates(
    sums: Sums, objective: Objective, live: Flags, read: Flags, drifts: Sequence[Drift]
) -> Iterator[_Candidate]:
    bases, whole, masks = bases_for(objective, sums), np.array_equal(live, read), _masks(sums, live, read)
    powers: list[Drift] = [*drifts]
    if np.any(sums.M > 1) and np.any(sums.W > 1):
        powers += [(rule.id, formula.text, formula.weigh) for rule in DRIFTS.values() for formula in rule.formulas]
    if whole:
        yield from (_Candidate(rule, rule, text, False, weights) for rule, text, weights in bases)
        for drift, power, weigh in powers:
            scale = weigh(sums)
            yield from (
                _Candidate(drift, rule, f"{power} * {text}", True, scale * weights) for rule, text, weights in bases
            )
        bases = bases[:1]
    for mask, _ in masks if masks or whole else [("dropped-pieces", live)]:
        yield from (_Candidate(mask, rule, text, True, weights) for rule, text, weights in bases)
        if not whole:
            yield from (
                _Candidate(mask, objective.rule, f"{power} * {bases[0][1]}", True, weigh(sums) * bases[0][2])
                for _, power, weigh in powers
            )


def _fits(
    observed: Floats, sums: Sums, candidates: list[_Candidate], live: Flags, tolerance: float, right: str
) -> list[Explanation]:
    table = sums.table[live]
    starts = np.flatnonzero(np.diff(table, prepend=-1))
    steps = table[starts]
    ratios = observed[live] / np.stack([candidate.weights[live] for candidate in candidates])
    low, high = np.minimum.reduceat(ratios, starts, axis=1), np.maximum.reduceat(ratios, starts, axis=1)
    middle = (low + high) / 2
    exact = np.maximum(np.abs(low - 1), np.abs(high - 1)).max(axis=1) <= tolerance
    uniform = (high - low <= 2 * tolerance * np.abs(middle)).all(axis=1)
    names, values = factor_table(sums.totals)
    kept = np.bincount(table, weights=sums.n[live], minlength=sums.tables)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.concatenate([values, (sums.totals.N / kept)[None]])[:, steps]
    names = [*names, "N/n kept"]
    found: list[Explanation] = []
    for index in np.flatnonzero(uniform | exact):
        candidate, factors = candidates[index], middle[index]
        if exact[index]:
            found.append(_explanation(candidate, _EXACT, right, np.ones_like(factors), None))
            continue
        fitting = (np.abs(factors / values - 1) <= tolerance).all(axis=1)
        name = joined_names([names[i] for i in np.flatnonzero(fitting)])
        if name is not None:
            found.append(_explanation(candidate, _NAMED, right, factors, name))
        elif np.ptp(factors) <= 2 * tolerance * abs(float(factors.mean())):
            found.append(_explanation(candidate, _CONSTANT, right, factors, None))
    return found


# tier of the objective, of another base, of a mask or drift
_EXACT = (Tier.OBJECTIVE, Tier.EXACT, Tier.PARTIAL)
_NAMED = (Tier.SCALED, Tier.TIMES, Tier.PARTIAL_TIMES)
_CONSTANT = (Tier.CONSTANT, Tier.TIMES_CONSTANT, Tier.PARTIAL_CONSTANT)


def _explanation(
    candidate: _Candidate, tiers: tuple[Tier, Tier, Tier], right: str, factors: Floats, name: str | None
) -> Explanation:
    if candidate.partial:
        return Explanation(candidate.rule, candidate.base, candidate.text, tiers[2], factors, name)
    if candidate.rule != right:
        return Explanation(candidate.rule, candidate.base, candidate.text, tiers[1], factors, name)
    rule = right if tiers is _EXACT else "scaled"
    return Explanation(rule, candidate.base, candidate.text, tiers[0], factors, name)


def _duplicated(observed: Floats, sums: Sums, objective: Objective, live: Flags, tolerance: float) -> list[Explanation]:
    """Rules under which some rows count two or three times and all others once."""
    table = sums.table[live]
    starts = np.flatnonzero(np.diff(table, prepend=-1))
    position = np.cumsum(np.diff(table, prepend=-1) != 0) - 1
    found: list[Explanation] = []
    for rule, text, weights in bases_for(objective, sums):
        ratio = observed[live] / weights[live]
        once = np.minimum.reduceat(ratio, starts)
        if np.any(once <= 0):
            continue
        multiples = np.round(ratio / once[position])
        off = np.abs(ratio / (multiples * once[position]) - 1)
        if off.max() > 2 * tolerance or multiples.max() not in (2, 3) or np.mean(multiples > 1) > 0.5:
            continue
        mass = sums.n[live]
        counted = np.add.reduceat(mass, starts) / np.add.reduceat(mass * multiples, starts)
        own_count = rule == objective.rule and np.all(np.abs(once / counted - 1) <= 2 * tolerance)
        if own_count or np.all(np.abs(once - 1) <= 2 * tolerance):
            times = np.ones(len(observed))
            times[live] = multiples
            found.append(Explanation("duplicated-items", rule, text, Tier.DUPLICATED, once, None, times))
    return found

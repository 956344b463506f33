"""Explain: from rows of sums and counts and a value that somebody reported, the rules that give that value.

A reported value says how precise it is by its digits: 2.50 is right to half a hundredth. Every rule predicts a value
for the rows; those within that distance fit, all others are ruled out. Several may fit where the rows are too even or
the digits too few, and then none of them can be told from the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

import numpy as np

from weighbridge.errors import InputError
from weighbridge.matching import Tier
from weighbridge.mean import Mean
from weighbridge.objectives import parse_objective
from weighbridge.pieces import Row, Table
from weighbridge.predictions import Family, Windows
from weighbridge.readings import LoggedValue
from weighbridge.rows import Batch
from weighbridge.rules import rule_of

__all__ = ["Explanation", "RuleValue", "explain", "half_digit", "tables_from"]

MOST_ROWS = 1_000_000
ROUNDING = 2.0**-20  # relative: what summing in float32 may have done to a value that was printed in full


@dataclass(frozen=True)
class RuleValue:
    """What one rule gives for the rows.

    Attributes:
        rule: id in `weighbridge.rules`.
        value: the value it gives.
        scope: which part of the rows it covers, in words; "" for all.
        reach: how steps became one value, in words; "" where there is one step.
        factor: name of the factor that it is multiplied by; "" for none.
        tier: how much it assumes; less is better.
    """

    rule: str
    value: float
    scope: str = ""
    reach: str = ""
    factor: str = ""
    tier: Tier = Tier.EXACT


@dataclass(frozen=True)
class Explanation:
    """Which rules give a reported value, and which don't.

    Attributes:
        reported: the value, and `within` the distance up to which a rule gives it.
        right: what the objective gives, None where nothing was counted.
        fits: the rules that give it, the one that assumes least first.
        ruled_out: the plain rules that don't, with what they give; nearest first.
    """

    reported: float
    within: float
    objective: str
    right: float | None
    fits: list[RuleValue] = field(default_factory=list)
    ruled_out: list[RuleValue] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether the objective gives the reported value."""
        return self.right is not None and abs(self.right - self.reported) <= self.within


def half_digit(text: str) -> tuple[float, float]:
    """The value of `text` and half of its last printed digit.

    >>> half_digit("2.50")
    (2.5, 0.005)
    """
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        raise InputError(
            f"The reported value is {text!r}. It is one finite number, as it was printed. Pass it as such."
        )
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return float(number), float(Decimal(5).scaleb(exponent - 1))


def tables_from(batches: Iterable[Batch], keys: Sequence[str]) -> list[Table]:
    """One table a step. Without a `rank` column each row is a rank; without a `microbatch` one, its microbatches.

    Raises:
        InputError: there are too many rows, or a step, rank or microbatch is no whole number.
    """
    steps: dict[int, list[tuple[int, int, int, float]]] = {}
    total = 0
    for batch in batches:
        total += batch.count.size
        if total > MOST_ROWS:
            raise InputError(
                f"There are more than {MOST_ROWS:,} rows. A reported value covers the rows of one or a few steps. "
                "Pass those alone."
            )
        columns = {key: [_whole(value, key) for value in batch.keys[key]] for key in keys}
        for index, (loss_sum, count) in enumerate(zip(batch.loss_sum.tolist(), batch.count.tolist(), strict=True)):
            step = columns["step"][index] if "step" in keys else 0
            held = steps.setdefault(step, [])
            rank = columns["rank"][index] if "rank" in keys else len(held)
            microbatch = columns["microbatch"][index] if "microbatch" in keys else -1
            held.append((rank, microbatch, count, loss_sum))
    return [_table(step, rows) for step, rows in sorted(steps.items())]


def _whole(value: object, key: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise InputError(f"A row has {key} {value!r}. A {key} is a whole number of at least 0. Correct the row.")
    return number


def _table(step: int, held: list[tuple[int, int, int, float]]) -> Table:
    """Rows of one step; those of a rank that name no microbatch are its microbatches, in their order."""
    seen: dict[tuple[int, int], int] = {}
    rows = []
    for rank, given, count, loss_sum in held:
        if given < 0:
            microbatch, sequence = seen.setdefault((rank, -1), 0), 0
            seen[rank, -1] += 1
        else:
            microbatch, sequence = given, seen.setdefault((rank, given), 0)
            seen[rank, given] += 1
        rows.append(Row(rank, microbatch, sequence, count, float(count), loss_sum if count else 0.0))
    rows.sort(key=lambda row: (row.rank, row.microbatch, row.sequence))
    world_size = max(row.rank for row in rows) + 1
    return Table(tuple(rows), world_size, max(row.microbatch for row in rows) + 1, step=step)


def explain(tables: Sequence[Table], reported: str, *, objective: str = "token-mean") -> Explanation:
    """Which rules give `reported` for the rows in `tables`.

    Args:
        tables: the rows of the steps that the value covers.
        reported: the value as it was printed; its digits say how precise it is.
        objective: what the value should be: token-mean, sequence-mean, sum or constant:X.

    Raises:
        InputError: `reported` is no number, `objective` names none, or a loss sum is not finite.

    >>> found = explain([Table.from_counts([[[1]], [[3]]])], "0.0")
    >>> found.is_right
    True
    """
    value, within = half_digit(reported)
    goal = parse_objective(objective)
    bad = next((row for table in tables for row in table.rows if row.tokens and not math.isfinite(row.loss_sum)), None)
    if bad is not None:
        raise InputError(
            f"loss_sum is {bad.loss_sum} on rank {bad.rank}, microbatch {bad.microbatch}. Rules can't be told apart by "
            "a value that is not finite. Leave that step out."
        )
    if not any(row.tokens for table in tables for row in table.rows):
        return Explanation(value, within, objective, None)
    windows = Windows([LoggedValue(value, tuple(tables))])
    predictions = list(_predictions(Family(windows, goal, 0), len(tables) > 1))
    right = _right(tables, goal.rule, predictions[0].value)
    within += ROUNDING * abs(right)
    fits = sorted((each for each in predictions if abs(each.value - value) <= within), key=lambda each: each.tier)
    named = {each.rule for each in fits}
    plain = [each for each in predictions if each.tier <= Tier.EXACT and each.rule not in named]
    nearest = sorted(plain, key=lambda each: abs(each.value - value))
    return Explanation(value, within, objective, right, _first_of_each(fits), _first_of_each(nearest))


def _right(tables: Sequence[Table], rule: str, predicted: float) -> float:
    """What the objective gives: exact for the token mean, which over several steps is the mean of all their tokens."""
    if rule != "token-mean" or len(tables) > 1:
        return predicted
    value = Mean.from_rows((row.loss_sum, row.tokens) for table in tables for row in table.rows).value
    assert value is not None
    return value


def _predictions(family: Family, several: bool) -> Iterable[RuleValue]:
    """Every prediction for the one value; products with a named factor only of the objective itself."""
    for block in family.blocks:
        tiers = block.tiers(family.objective.rule)
        for base, rule in enumerate(block.rules):
            for factor, label in enumerate(block.labels):
                tier = Tier(int(tiers[base, factor]))
                if tier > Tier.PARTIAL or not np.isfinite(block.values[base, factor, 0]):
                    continue
                named = block.scope.rule or ("scaled" if label and rule == family.objective.rule else rule)
                yield RuleValue(
                    named, float(block.values[base, factor, 0]), block.scope.words, block.reach if several else "",
                    label, tier,
                )  # fmt: skip


def _first_of_each(values: Iterable[RuleValue]) -> list[RuleValue]:
    """The first entry of every rule, in its order."""
    found: dict[str, RuleValue] = {}
    for each in values:
        found.setdefault(each.rule, each)
    return list(found.values())


def story_of(rule: str) -> tuple[str, str]:
    """What a rule does, and what to change."""
    known = rule_of(rule)
    return known.story, known.remedy

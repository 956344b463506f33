"""Mean: a loss sum and a count that belong together, and the one place where the first is divided by the second.

A step is fed by pieces with different numbers of tokens, so a mean of their means is not the mean. What can be merged
is the pair: add the sums, add the counts, divide once, at the end. The sum is exact (`weighbridge.exact`), so the mean
has the same bits for every order, every grouping and every number of workers.

    >>> a = Mean.of([1.0, 1.0, 4.0])          # three tokens on one worker
    >>> b = Mean.of([10.0])                   # one token on another
    >>> (a + b).value, (a + b).count
    (4.0, 4)
    >>> Mean().value is None                  # nothing counted: no mean, neither 0.0 nor NaN
    True
    >>> token_mean([[1, 0], [6, 2]])          # a row that counted nothing contributes nothing
    3.0
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.errors import InputError, NonFiniteError
from weighbridge.exact import WIDE, ExactSum, exact_lanes, weighted_lanes, windowed_sum

__all__ = ["Exactness", "Mean", "NonFinite", "token_mean"]


class NonFinite(StrEnum):
    """What a NaN or an infinity among the values does.

    propagate: the mean is NaN or infinite, as in ordinary arithmetic.
    raise: `NonFiniteError`, with how many there were.
    skip: the mean is that of the finite values; `Mean.skipped` says how many were left out.
    """

    PROPAGATE = "propagate"
    RAISE = "raise"
    SKIP = "skip"


class Exactness(StrEnum):
    """What the bits of a mean don't depend on.

    tokens: the order and grouping of the single values; any split over microbatches and ranks gives the same bits.
    rows: the order and grouping of sums that were rounded before they got here; exact across ranks only.
    """

    TOKENS = "tokens"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Mean:
    """The pair (loss sum, count) of a mean, exactly.

    The law: `a + b` is associative and commutative and `Mean()` is its identity; equal multisets of values give equal
    means, equal digests and equal bits of `value`. Build one with `of`, `from_row` or `from_rows`.

    Attributes:
        total: the exact sum of the values (times their weights), and how many items it is made of.
        mass: for a weighted mean, the exact sum of the weights; None otherwise.
        nonfinite: what a NaN or an infinity does.
        exactness: what the bits don't depend on.
    """

    total: ExactSum = field(default_factory=ExactSum)
    mass: ExactSum | None = None
    nonfinite: NonFinite = NonFinite.PROPAGATE
    exactness: Exactness = Exactness.TOKENS

    @classmethod
    def of(cls, values: Any, mask: Any = None, *, weights: Any = None, nonfinite: str = "propagate") -> Mean:
        """The mean of `values` where `mask` is true.

        Args:
            values: per-token values of any shape: a torch tensor, a numpy array or a list; float16, bfloat16, float32,
                float64, integers or booleans. They are copied from their device if they are on one.
            mask: bool, or 0 and 1, of the same shape; None counts every value.
            weights: at least 0, of the same shape, for a weighted mean; an item that weighs 0 contributes nothing.
            nonfinite: "propagate", "raise" or "skip".

        Raises:
            InputError: shapes differ, the mask isn't 0 and 1, a weight is negative or not finite.
            NonFiniteError: a value is NaN or infinite, and `nonfinite` is "raise".

        >>> Mean.of([2.0, 9.0, 4.0], [True, False, True]).value
        3.0
        >>> Mean.of([2.0, 8.0], weights=[3.0, 1.0]).value
        3.5
        """
        policy = NonFinite(nonfinite)
        if weights is None:
            made = cls(_host_sum(exact_lanes(values, mask)), nonfinite=policy)
        else:
            total, mass = weighted_lanes(values, weights, mask)
            made = cls(_host_sum(total), _host_sum(mass), nonfinite=policy)
        made.check()
        return made

    @classmethod
    def from_row(cls, loss_sum: Any, count: Any, *, nonfinite: str = "propagate", where: str = "") -> Mean:
        """One row: a sum that was already taken, and the number of items in it. Its mark is `Exactness.ROWS`.

        Args:
            loss_sum: a number; what it holds does not matter where `count` is 0.
            count: a whole number of at least 0.
            nonfinite: as for `of`.
            where: what an error calls the row, such as "row 17 of rows.jsonl".

        Raises:
            InputError: the count is negative, fractional or not finite, or one of the two is no number.

        >>> Mean.from_row(float("nan"), 0).value is None
        True
        """
        items = _whole_count(count, where)
        policy = NonFinite(nonfinite)
        if items == 0:
            return cls(nonfinite=policy, exactness=Exactness.ROWS)
        made = cls(_number_sum(loss_sum, items, where), nonfinite=policy, exactness=Exactness.ROWS)
        made.check(where)
        return made

    @classmethod
    def from_rows(cls, rows: Iterable[Any], *, nonfinite: str = "propagate") -> Mean:
        """The merged rows `[[loss_sum, count], ...]`; an error names the row by its index."""
        merged = cls(nonfinite=NonFinite(nonfinite), exactness=Exactness.ROWS)
        for index, row in enumerate(rows):
            try:
                loss_sum, count = row
            except (TypeError, ValueError):
                message = f"Row {index} is {row!r}. A row is a pair (loss_sum, count). Correct the row."
                raise InputError(message) from None
            merged = merged + cls.from_row(loss_sum, count, nonfinite=nonfinite, where=f"row {index}")
        return merged

    @classmethod
    def from_columns(cls, loss_sums: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> Mean:
        """The merged rows of two columns [N]; `counts` are int64 of at least 0. Fast: one pass, no Python loop."""
        if counts.dtype != np.int64 or counts.shape != loss_sums.shape or loss_sums.ndim != 1:
            raise InputError(
                f"The columns are {loss_sums.dtype} {list(loss_sums.shape)} and {counts.dtype} {list(counts.shape)}. "
                "They are two flat arrays of one length, the counts int64. Convert them."
            )
        largest = int(counts.view(np.uint64).max(initial=0))
        if largest >= 1 << 63:
            index = int(np.argmin(counts))
            raise _bad_count(int(counts[index]), f"row {index}")
        counted = counts > 0
        total = _once(loss_sums, counted)
        items = int(counts.sum()) if largest * counts.size < 1 << 63 else _long_sum(counts)
        if total.nonfinite:
            values = loss_sums.astype(np.float64)
            kinds = (np.isnan(values), values == np.inf, values == -np.inf)
            total = ExactSum(total.scaled, items, *(_long_sum(counts[kind & counted]) for kind in kinds))
        else:
            total = replace(total, count=items)
        return cls(total, exactness=Exactness.ROWS)

    def __add__(self, other: Mean) -> Mean:
        """Both together. A mean with weights and one without don't merge, nor do two policies for non-finite values."""
        if not isinstance(other, Mean):
            return NotImplemented
        if self.nonfinite is not other.nonfinite:
            raise InputError(
                f"One mean says nonfinite={self.nonfinite.value!r} and the other {other.nonfinite.value!r}. "
                "Merged means have one policy. Give both the same."
            )
        if (self.mass is None) != (other.mass is None) and self.total.count and other.total.count:
            raise InputError("One mean is weighted, the other is not. Their sums mean different things. Weight both.")
        mass = self.mass if other.mass is None else other.mass if self.mass is None else self.mass + other.mass
        rows = Exactness.ROWS in (self.exactness, other.exactness)
        return Mean(self.total + other.total, mass, self.nonfinite, Exactness.ROWS if rows else Exactness.TOKENS)

    @property
    def count(self) -> int:
        """Number of items in the denominator (of a weighted mean: items that weigh more than 0)."""
        return self.total.count - self.skipped

    @property
    def skipped(self) -> int:
        """How many NaN and infinite items `nonfinite="skip"` left out."""
        return self.total.nonfinite if self.nonfinite is NonFinite.SKIP else 0

    @property
    def value(self) -> float | None:
        """The mean, correctly rounded to float64; None where nothing was counted.

        Raises:
            NonFiniteError: something was NaN or infinite, and the policy is "raise".
            InputError: a weight was negative or not finite.
        """
        return self._ratio(_divide)

    @property
    def value_float32(self) -> float | None:
        """The mean, correctly rounded to float32 in one step (rounding `value` again would round twice)."""
        return self._ratio(_divide_float32)

    @property
    def sum(self) -> float:
        """The sum itself, correctly rounded to float64; 0.0 where nothing was counted."""
        self.check()
        special = self._special()
        return _divide(self.total.scaled, 1 << -WIDE.base) if special is None else special

    @property
    def perplexity(self) -> float | None:
        """exp of the mean, taken at the very end; None where nothing was counted, inf where it is too large."""
        value = self.value
        if value is None:
            return None
        try:
            return math.exp(value)
        except OverflowError:
            return math.inf

    def digest(self) -> str:
        """SHA-256 of the canonical state: equal for every split, order, world size and producer."""
        digest = self.total.digest()
        return digest if self.mass is None else hashlib.sha256((digest + self.mass.digest()).encode()).hexdigest()

    def check(self, where: str = "") -> None:
        """Raise what the policy asks for; `where` names the values in the message."""
        if self.mass is not None and self.mass.nonfinite:
            raise InputError(
                f"{self.mass.nonfinite} of {self.mass.count} weights are negative, NaN or infinite. A weight is a "
                "finite number of at least 0. Correct the weights."
            )
        if self.nonfinite is NonFinite.RAISE and self.total.nonfinite:
            total = self.total
            of = f" in {where}" if where else ""
            raise NonFiniteError(
                f"{total.nonfinite} of {total.count} values{of} are not finite: {total.nan} NaN, {total.pos_inf} +inf, "
                f"{total.neg_inf} -inf. nonfinite='raise' asks for finite values. Look for what made them, or pass "
                "nonfinite='skip' to leave them out and count them."
            )

    def _special(self) -> float | None:
        """What NaNs and infinities make of the sum, or None where there are none (or they are left out)."""
        total = self.total
        if not total.nonfinite or self.nonfinite is NonFinite.SKIP:
            return None
        if total.nan or (total.pos_inf and total.neg_inf):
            return math.nan
        return math.inf if total.pos_inf else -math.inf

    def _ratio(self, divide: Any) -> float | None:
        self.check()
        if self.count == 0:
            return None
        special = self._special()
        if special is not None:
            return special
        if self.mass is None:
            return float(divide(self.total.scaled, self.count << -WIDE.base))
        return float(divide(self.total.scaled, self.mass.scaled))

    def __repr__(self) -> str:
        try:
            value: object = self.value
        except (InputError, NonFiniteError) as error:
            value = type(error).__name__
        marks = "" if self.exactness is Exactness.TOKENS else ", exact across ranks only"
        return f"Mean({value}, count={self.count}{marks})"


def token_mean(rows: Iterable[Any]) -> float | None:
    """The mean over all tokens of rows `[[loss_sum, count], ...]`, or None where nothing was counted.

    Raises:
        InputError: a count is negative, fractional or not finite; the message names the row.

    >>> token_mean([[1, 1], [9, 3]])
    2.5
    >>> token_mean([[5.0, 0]]) is None
    True
    """
    return Mean.from_rows(rows).value


def _host_sum(lanes: Any) -> ExactSum:
    return ExactSum.from_lanes(lanes.tolist())


def _once(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> ExactSum:
    """The exact sum, without loading numba for values that are seen once: that takes longer than the sum."""
    found = windowed_sum(values, mask)
    return _host_sum(exact_lanes(values, mask)) if found is None else found


def _long_sum(counts: npt.NDArray[np.int64]) -> int:
    """Sum of counts [N] without overflow of int64."""
    return (int((counts >> 32).sum()) << 32) + int((counts & 0xFFFFFFFF).sum())


def _bad_count(count: object, where: str) -> InputError:
    of = f" in {where}" if where else ""
    return InputError(f"count is {count}{of}. A count is a whole number of at least 0. Correct the row.")


def _whole_count(count: Any, where: str) -> int:
    plain = count.item() if hasattr(count, "item") else count
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    try:
        items = operator.index(plain)
    except TypeError:
        raise _bad_count(count, where) from None
    if items < 0 or isinstance(plain, bool):
        raise _bad_count(plain, where)
    return items


def _number_sum(loss_sum: Any, items: int, where: str) -> ExactSum:
    plain = loss_sum.item() if hasattr(loss_sum, "item") else loss_sum
    if isinstance(plain, int) and not isinstance(plain, bool):
        return ExactSum(plain << -WIDE.base, items)
    if not isinstance(plain, float):
        of = f" in {where}" if where else ""
        raise InputError(f"loss_sum is {loss_sum!r}{of}. A loss sum is one number. Correct the row.")
    return ExactSum.from_float(plain, count=items)


def _divide(numerator: int, denominator: int) -> float:
    """The quotient of two integers, correctly rounded as CPython's true division is; inf for what is too large."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def _divide_float32(numerator: int, denominator: int) -> float:
    """The quotient of two integers, correctly rounded to float32 (nearest, ties to even), as a Python float."""
    if numerator == 0:
        return 0.0
    size = abs(numerator)
    exponent = size.bit_length() - denominator.bit_length()  # 2 ** (exponent - 1) < quotient < 2 ** (exponent + 1)
    if size << max(0, -exponent) < denominator << max(0, exponent):
        exponent -= 1
    unit = max(exponent - 23, -149)  # the last bit that float32 keeps
    quotient, rest = divmod(size << max(0, -unit), denominator << max(0, unit))
    twice = 2 * rest - (denominator << max(0, unit))
    quotient += twice > 0 or (twice == 0 and quotient & 1)
    rounded = math.inf if quotient.bit_length() + unit > 128 else math.ldexp(quotient, unit)
    return rounded if numerator > 0 else -rounded

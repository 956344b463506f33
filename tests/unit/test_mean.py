"""The contract of a mean (DESIGN section 3), row by row and value by value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import weighbridge
from weighbridge.errors import InputError, NonFiniteError
from weighbridge.mean import Exactness, Mean, token_mean


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1, 0], [6, 2]], 3.0),
        ([[1, 1], [9, 3]], 2.5),
        ([[math.nan, 0], [6, 2]], 3.0),
        ([[math.inf, 0], [-math.inf, 0]], None),
        ([], None),
        ([[0.0, 5]], 0.0),
        ([[-0.0, 5]], 0.0),
        ([[1e308, 1], [1e308, 1], [-1e308, 1], [-1e308, 1], [4.0, 1]], 0.8),
        ([[10**400, 10**400]], 1.0),
        ([[np.float32(1.5), np.int64(3)], [torch.tensor(1.5), torch.tensor(3.0)]], 0.5),
    ],
)
def test_token_mean(rows: list[list[float]], expected: float | None) -> None:
    assert token_mean(rows) == expected
    assert weighbridge.token_mean(reversed(rows)) == expected


def test_a_zero_is_plus_zero() -> None:
    assert math.copysign(1, Mean.of([-0.0, -0.0]).value) == 1.0


@pytest.mark.parametrize("count", [-3, 1.5, math.nan, math.inf, "2", None, True])
def test_a_bad_count_names_its_row(count: object) -> None:
    with pytest.raises(
        InputError, match=r"count is .* in row 1\. A count is a whole number of at least 0\. Correct the row"
    ):
        token_mean([[1.0, 1], [1.0, count]])


def test_a_bad_row_is_named() -> None:
    with pytest.raises(InputError, match="Row 1 is 3"):
        token_mean([[1.0, 1], 3])
    with pytest.raises(InputError, match=r"loss_sum is 'x' in row 0\."):
        token_mean([["x", 1]])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([math.nan, 1.0], math.nan),
        ([math.inf, 1.0], math.inf),
        ([-math.inf], -math.inf),
        ([math.inf, -math.inf], math.nan),
    ],
)
def test_nonfinite_values(values: list[float], expected: float) -> None:
    assert Mean.of(values).value == pytest.approx(expected, nan_ok=True)
    assert Mean.of(values).sum == pytest.approx(expected, nan_ok=True)
    with pytest.raises(NonFiniteError, match=f"of {len(values)} values are not finite"):
        Mean.of(values, nonfinite="raise")
    skipping = Mean.of([*values, 5.0], nonfinite="skip")
    finite = [value for value in [*values, 5.0] if math.isfinite(value)]
    assert (skipping.value, skipping.count) == (sum(finite) / len(finite), len(finite))
    assert skipping.skipped == len(values) + 1 - len(finite)


def test_a_nonfinite_row_counts_its_tokens() -> None:
    mean = Mean.from_rows([[math.nan, 5], [6.0, 2]], nonfinite="skip")
    assert (mean.value, mean.count, mean.skipped) == (3.0, 2, 5)
    with pytest.raises(NonFiniteError, match="values in row 0 are not finite: 5 NaN"):
        Mean.from_rows([[math.nan, 5]], nonfinite="raise")


def test_columns_are_the_rows() -> None:
    sums = np.array([1.0, math.nan, math.inf, 6.0, math.nan])
    counts = np.array([3, 0, 4, 2, 1])
    assert Mean.from_columns(sums, counts) == Mean.from_rows(zip(sums, counts, strict=True))
    assert Mean.from_columns(sums[:1], counts[:1]) == Mean.from_rows([(1.0, 3)])
    with pytest.raises(InputError, match="count is -1 in row 1"):
        Mean.from_columns(sums[:2], np.array([1, -1]))
    huge = np.full(3, 2**62)
    assert Mean.from_columns(np.ones(3), huge).count == 3 * 2**62


def test_exactness_is_marked() -> None:
    assert Mean.of([1.0]).exactness is Exactness.TOKENS
    assert Mean.from_row(1.0, 1).exactness is Exactness.ROWS
    assert (Mean.of([1.0]) + Mean.from_row(1.0, 1)).exactness is Exactness.ROWS
    assert repr(Mean.from_row(3.0, 2)) == "Mean(1.5, count=2, exact across ranks only)"


def test_weighted() -> None:
    mean = Mean.of([1.0, 5.0, math.nan], weights=[1.0, 3.0, 0.0])
    assert (mean.value, mean.count) == (4.0, 2)
    assert (mean + Mean.of([9.0], weights=[4.0])).value == 6.5
    assert (mean + Mean()).value == 4.0
    assert mean.digest() != Mean.of([1.0, 15.0]).digest()
    with pytest.raises(InputError, match="1 of 2 weights are negative"):
        Mean.of([1.0, 2.0], weights=[1.0, -1.0])
    with pytest.raises(InputError, match="One mean is weighted"):
        _ = mean + Mean.of([1.0])


def test_policies_do_not_mix() -> None:
    with pytest.raises(InputError, match="one policy"):
        _ = Mean.of([1.0]) + Mean.of([1.0], nonfinite="skip")


def test_shapes_and_masks_are_checked() -> None:
    with pytest.raises(InputError, match=r"mask has shape \[1\] and the values have shape \[2\]"):
        Mean.of([1.0, 2.0], [True])
    with pytest.raises(InputError, match=r"The mask holds 0\.5"):
        Mean.of([1.0, 2.0], [1, 0.5])
    with pytest.raises(InputError, match="of type complex128"):
        Mean.of(np.array([1j]))
    with pytest.raises(InputError, match="on meta"):
        Mean.of(torch.empty(2, device="meta"), torch.empty(2, device="meta"))
    assert Mean.of(torch.ones(2, 3, requires_grad=True), torch.eye(2, 3)).count == 2
    assert Mean.of(torch.arange(6.0).reshape(2, 3).T, torch.tensor([[1, 0], [0, 0], [0, 1]])).value == 2.5


def test_rounding_once_to_float32() -> None:
    midway = 1.0 + 2.0**-24  # exactly between two float32
    assert Mean.of([midway]).value_float32 == 1.0
    just_above = Mean.from_row(2**80 + 2**56 + 1, 1)  # float64 rounds it to the midpoint, float32 must go up
    assert just_above.value_float32 == 2.0**80 + 2.0**57
    assert float(np.float32(just_above.value)) == 2.0**80
    assert Mean.from_row(2**200, 1).value_float32 == math.inf
    assert Mean.of([5e-324]).value_float32 == 0.0


def test_perplexity() -> None:
    assert Mean.of([0.0, 2.0]).perplexity == math.exp(1.0)
    assert Mean().perplexity is None
    assert Mean.of([1e6]).perplexity == math.inf

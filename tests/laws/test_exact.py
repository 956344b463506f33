"""Exact sums against `fractions.Fraction`: for every producer, order, grouping and kind of number."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from operator import add
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from weighbridge.exact import NARROW, WIDE, ExactSum, exact_lanes, weighted_lanes, widen_lanes, windowed_sum
from weighbridge.mean import Mean

PRODUCERS = ("numba", "torch", "numpy")
QUICK = settings(max_examples=60, deadline=None)


def finite(width: int) -> st.SearchStrategy[float]:
    """Floats of all magnitudes; plain ones twice, so that sums with a result worth rounding are common."""
    plain = st.floats(-100, 100, width=width)
    return st.one_of(plain, plain, st.floats(allow_nan=False, allow_infinity=False, width=width))


def batches(width: int, elements: st.SearchStrategy[float] | None = None) -> st.SearchStrategy[np.ndarray]:
    dtype = np.float32 if width == 32 else np.float64
    return arrays(dtype, st.integers(0, 60), elements=finite(width) if elements is None else elements)


def exactly(values: np.ndarray) -> Fraction:
    return sum((Fraction(float(value)) for value in values), Fraction())


def rational(total: ExactSum) -> Fraction:
    return Fraction(total.scaled, 1 << -WIDE.base)


def as_sum(lanes: object) -> ExactSum:
    return ExactSum.from_lanes(lanes.tolist())  # type: ignore[attr-defined]


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("width", [32, 64])
def test_the_sum_is_that_of_fractions(producer: str, width: int) -> None:
    @QUICK
    @given(batches(width), st.randoms())
    def check(values: np.ndarray, random: Random) -> None:
        mask = np.array([random.random() < 0.7 for _ in values], dtype=bool)
        total = as_sum(exact_lanes(values, mask, producer=producer))
        assert rational(total) == exactly(values[mask])
        assert total.count == int(mask.sum())
        assert total.nonfinite == 0

    check()


@pytest.mark.parametrize("width", [32, 64])
def test_any_permutation_merge_tree_and_mix_of_producers_gives_the_same_bytes(width: int) -> None:
    @QUICK
    @given(batches(width), st.randoms())
    def check(values: np.ndarray, random: Random) -> None:
        whole = as_sum(exact_lanes(values)).to_lanes(WIDE).tobytes()
        shuffled = values.copy()
        random.shuffle(shuffled)
        cuts = sorted(random.randrange(len(values) + 1) for _ in range(4))
        parts = [as_sum(exact_lanes(part, producer=random.choice(PRODUCERS))) for part in np.split(shuffled, cuts)]
        while len(parts) > 1:
            left = parts.pop(random.randrange(len(parts)))
            right = parts.pop(random.randrange(len(parts)))
            parts.append(left + right)
        assert parts[0].to_lanes(WIDE).tobytes() == whole

    check()


@QUICK
@given(batches(64), st.integers(1, 4), st.integers(1, 3), st.randoms())
def test_any_split_over_ranks_and_microbatches_gives_the_same_mean(
    values: np.ndarray, world_size: int, microbatches: int, random: Random
) -> None:
    pieces: list[list[float]] = [[] for _ in range(world_size * microbatches)]
    for value in values:
        random.choice(pieces).append(value)
    merged = reduce(add, (Mean.of(piece) for piece in pieces), Mean())
    whole = Mean.of(values)
    assert merged == whole
    assert merged.digest() == whole.digest()
    if len(values):
        assert merged.value == float(exactly(values) / len(values))
    else:
        assert merged.value is None


@QUICK
@given(batches(32), batches(32))
def test_the_mean_is_correctly_rounded(values: np.ndarray, more: np.ndarray) -> None:
    mean = Mean.of(values) + Mean.of(more)
    if mean.count:
        exact = (exactly(values) + exactly(more)) / mean.count
        assert mean.value == exact.numerator / exact.denominator
        nearest = np.float32(float(exact))
        around = (nearest, np.nextafter(nearest, np.float32(np.inf)), np.nextafter(nearest, np.float32(-np.inf)))
        finite_ones = [Fraction(float(near)) for near in around if np.isfinite(near)]
        if math.isfinite(mean.value_float32):
            assert abs(Fraction(mean.value_float32) - exact) == min(abs(near - exact) for near in finite_ones)


@QUICK
@given(batches(32), st.randoms())
def test_weighted_means_of_float32_are_exact(values: np.ndarray, random: Random) -> None:
    weights = np.array([random.choice([0.0, 1e-45, 0.1, 3.0, 1e30]) for _ in values], dtype=np.float32)
    total, mass = (as_sum(lanes) for lanes in weighted_lanes(values, weights))
    products = sum((Fraction(float(v)) * Fraction(float(w)) for v, w in zip(values, weights, strict=True)), Fraction())
    assert rational(total) == products
    assert rational(mass) == exactly(weights)
    assert total.count == mass.count == int((weights > 0).sum())


@QUICK
@given(batches(64, st.floats(-1e100, 1e100).filter(lambda value: value == 0 or abs(value) > 1e-100)), st.randoms())
def test_weighted_means_of_float64_are_exact(values: np.ndarray, random: Random) -> None:
    weights = np.array([round(random.uniform(0, 1e6), 3) for _ in values])
    total, _ = (as_sum(lanes) for lanes in weighted_lanes(values, weights))
    products = sum((Fraction(float(v)) * Fraction(float(w)) for v, w in zip(values, weights, strict=True)), Fraction())
    assert rational(total) == products


HARD = {
    "subnormals": [5e-324] * 3 + [-5e-324, 2.2e-308, 1e-320],
    "cancellation of the largest": [1e308] * 20 + [-1e308] * 20 + [3.5],
    "largest": [1.7976931348623157e308] * 3000,
    "largest, negative": [-1.7976931348623157e308] * 3000,
    "minus zero": [-0.0, -0.0],
    "wide range": [1e300, 1.0, -1e300, 1e-300, 2.0**-1074],
    "long and tame": list(np.random.default_rng(0).gamma(2, 1.5, 10_000)),
    "long with one misfit a block": [*np.random.default_rng(1).gamma(2, 1.5, 9_000), 1e-310, 1e300, -1e300],
}


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hard_inputs(producer: str, name: str, dtype: type) -> None:
    with np.errstate(over="ignore"):
        values = np.array(HARD[name], dtype=np.float64).astype(dtype)
    if dtype == np.float32:  # what the name says, in float32's range
        values = np.where(np.isinf(values), np.copysign(np.finfo(np.float32).max, values), values).astype(np.float32)
        values = np.concatenate([values, np.full(3, 1e-45, np.float32)])
    total = as_sum(exact_lanes(values, producer=producer))
    assert rational(total) == exactly(values)
    assert math.copysign(1.0, Mean(total).value or 0.0) == (1.0 if exactly(values) >= 0 else -1.0)


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("repeats", [1, 2_500])
def test_nan_and_infinities_are_counted_and_touch_no_limb(producer: str, dtype: type, repeats: int) -> None:
    values = np.array([1.0, np.nan, -np.nan, np.inf, np.inf, -np.inf, 2.0] * repeats, dtype=dtype)
    total = as_sum(exact_lanes(values, producer=producer))
    assert total == ExactSum((3 * repeats) << -WIDE.base, 7 * repeats, 2 * repeats, 2 * repeats, repeats)


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("flush", [False, True])
def test_flushing_subnormals_changes_nothing(producer: str, flush: bool) -> None:
    if not torch.set_flush_denormal(flush):
        pytest.skip("this processor can't flush subnormals")
    try:
        for bits, view, unit in ((np.uint32, np.float32, -149), (np.uint64, np.float64, -1074)):
            patterns = np.array([1, 5, 123456], dtype=bits).repeat(2_000)
            values = np.concatenate([patterns.view(view), np.ones(4, dtype=view)])
            total = as_sum(exact_lanes(values, producer=producer))
            assert rational(total) == Fraction(2_000 * 123462) * Fraction(2) ** unit + 4
        halves = torch.tensor([1, 3], dtype=torch.int16)
        for half, unit in ((halves.view(torch.float16), -24), (halves.view(torch.bfloat16), -133)):
            assert rational(as_sum(exact_lanes(half, producer=producer))) == Fraction(4) * Fraction(2) ** unit
        tiny = np.array([1, 7], dtype=np.uint32).view(np.float32)
        total, mass = (as_sum(lanes) for lanes in weighted_lanes(tiny, tiny))
        assert rational(total) == Fraction(50) * Fraction(2) ** -298
        assert rational(mass) == Fraction(8) * Fraction(2) ** -149
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.bool])
def test_every_type_gives_the_digest_of_its_values(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 0.0, 1.0, 1.0]).to(dtype)
    assert Mean.of(values).digest() == Mean.of([1.0, 0.0, 1.0, 1.0]).digest()
    assert Mean.of(values.numpy() if dtype != torch.bfloat16 else values).value == 0.75


def test_a_narrow_state_widens_to_the_wide_one() -> None:
    values = np.array([1.5, -(2.0**-149), 3e38], dtype=np.float32)
    narrow = exact_lanes(values)
    assert narrow.shape == (NARROW.lanes,)
    assert as_sum(widen_lanes(narrow)) == as_sum(exact_lanes(values.astype(np.float64)))
    assert as_sum(widen_lanes(torch.from_numpy(narrow))) == as_sum(narrow)


def test_big_integers_are_exact() -> None:
    assert rational(as_sum(exact_lanes([2**62 + 1, 1, -5]))) == 2**62 - 3


def test_the_torch_producer_depends_on_no_data() -> None:
    lanes = exact_lanes(torch.empty(7, device="meta"), torch.empty(7, dtype=torch.bool, device="meta"))
    assert lanes.device.type == "meta"
    assert lanes.shape == (NARROW.lanes,)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_read_only_memory_is_fine(producer: str) -> None:
    values, mask = np.arange(5_000, dtype=np.float64), np.arange(5_000) % 2 == 0
    expected = as_sum(exact_lanes(values, mask))
    for array in (values, mask):
        array.flags.writeable = False
    assert as_sum(exact_lanes(values, mask, producer=producer)) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("span", [0, 20, 30, 45, 60, 110])
def test_long_inputs_of_every_range_agree(dtype: type, span: int) -> None:
    """Blocks that fit one grid, two, three or none, and their mixtures."""
    generator = np.random.default_rng(span)
    for centre in (-60, 0, 60):
        exponents = generator.integers(centre - span // 2, centre + span // 2 + 1, 9_001)
        values = np.ldexp(generator.standard_normal(9_001), exponents).astype(dtype)
        values[generator.random(9_001) < 0.1] = 0
        for mask in (None, generator.random(9_001) < 0.8, np.zeros(9_001, dtype=bool)):
            expected = as_sum(exact_lanes(values, mask, producer="numpy"))
            for producer in ("numba", "torch"):
                assert as_sum(exact_lanes(values, mask, producer=producer)) == expected


@pytest.mark.parametrize("odd", [None, math.nan, math.inf, 1e300, 5e-324])
def test_windows_are_exact_or_refuse(odd: float | None) -> None:
    """Several windows, the last one short; a value that fits no two grids is refused wherever it stands."""
    generator = np.random.default_rng(3)
    values = np.ldexp(generator.uniform(1, 2, 70_001), generator.integers(-15, 15, 70_001))
    values *= generator.choice([-1.0, 0.0, 1.0], 70_001)
    mask = generator.random(70_001) < 0.8
    mask[-5] = True
    for kept in (None, mask, np.zeros(70_001, dtype=bool)):
        assert windowed_sum(values, kept) == as_sum(exact_lanes(values, kept, producer="torch"))
    if odd is not None:
        values[-5] = odd
        assert windowed_sum(values, mask) is None
        mask[-5] = False
        assert windowed_sum(values, mask) == as_sum(exact_lanes(values, mask, producer="torch"))

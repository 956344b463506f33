"""Verdicts on planted logged numbers: named through rounding, windows, offsets and logarithms, or left alone."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from planted import Weigh, logged, lossy, rounds, tables, traced, value_of
from weighbridge.outcome import Reported, Verdict
from weighbridge.pieces import Table
from weighbridge.readings import LoggedNumber, LoggedValue
from weighbridge.rules import BASES, Formula
from weighbridge.sums import Sums
from weighbridge.verdict import judge_reported


def right(sums: Sums) -> np.ndarray:
    return 1 / sums.N


def base(rule: str, index: int = 0) -> Weigh:
    return BASES[rule].formulas[index].of


def singles(steps: list[Table]) -> list[list[Table]]:
    return [[table] for table in steps]


def judged(number: LoggedNumber, objective: str = "token-mean") -> Reported:
    found = judge_reported(number, objective)
    assert found is not None
    return found


def test_the_right_number_is_right() -> None:
    steps = rounds()
    found = judged(logged([value_of(t, right) for t in steps], singles(steps)))
    assert (found.verdict, found.rule, found.window, found.rank) == (Verdict.RIGHT, "token-mean", 1, 0)
    assert found.indistinguishable == []
    assert found.values == pytest.approx(found.right_values)
    assert [p.relative_weight for p in found.pieces] == pytest.approx([1.0] * 4)
    assert not any(p.inferred for p in found.pieces)


CASES = [(rule.id, f) for rule in BASES.values() for f in rule.formulas]


@pytest.mark.parametrize("digits", [None, 4])
@pytest.mark.parametrize(("rule", "formula"), CASES, ids=[f"{r}/{f.name}" for r, f in CASES])
def test_every_base_is_named_even_rounded(rule: str, formula: Formula, digits: int | None) -> None:
    steps = rounds()
    values = [value_of(t, formula.of) for t in steps]
    found = judged(logged(values if digits is None else [round(v, digits) for v in values], singles(steps)))
    assert rule in {found.rule, *found.indistinguishable}
    assert found.verdict is (Verdict.RIGHT if rule == "token-mean" else Verdict.WRONG)
    if "non-empty" not in rule and "rank-microbatch" not in rule:  # these coincide where no piece is empty
        assert found.rule == rule


def test_weights_are_measured_not_inferred() -> None:
    steps = rounds()
    values = [round(value_of(t, base("mean-of-rank-means")), 4) for t in steps]
    found = judged(logged(values, singles(steps)))
    last = {(p.rank, p.microbatch): p for p in found.pieces}
    traced_step = next(t for t in reversed(steps) if t.step == last[1, 0].step)
    rank = sum(row.mass for row in traced_step.rows if row.rank == 1)
    asked = traced_step.columns.mass.sum() / (2 * rank)
    assert last[1, 0].relative_weight == pytest.approx(asked, rel=1e-2)
    assert not last[1, 0].inferred


@pytest.mark.parametrize(("name", "factor"), [("W, or M", 2.0), ("1/W, or 1/M", 0.5)])
def test_a_factor_is_named(name: str, factor: float) -> None:
    steps = rounds()
    found = judged(logged([factor * value_of(t, right) for t in steps], singles(steps)))
    assert (found.rule, found.verdict, found.factor) == ("scaled", Verdict.WRONG, factor)
    assert found.factor_name is not None
    assert found.factor_name.startswith(name)


def test_a_window_of_two_steps() -> None:
    steps = rounds(16)
    windows = [steps[i : i + 2] for i in range(0, 16, 2)]
    for rule in ("token-mean", "mean-of-microbatch-means"):
        values = [round(float(np.mean([value_of(t, base(rule)) for t in w])), 4) for w in windows]
        found = judged(logged(values, windows))
        assert (found.rule, found.window) == (rule, 2)


def test_only_the_last_step_of_a_window() -> None:
    steps = rounds(16)
    windows = [steps[i : i + 2] for i in range(0, 16, 2)]
    found = judged(logged([value_of(w[-1], right) for w in windows], windows))
    assert (found.verdict, found.rule) == (Verdict.RIGHT, "token-mean")
    assert "only the last step of the window" in found.reason


def test_a_window_that_was_added_up() -> None:
    steps = rounds(18)
    windows = [steps[i : i + 3] for i in range(0, 18, 3)]
    found = judged(logged([sum(value_of(t, right) for t in w) for w in windows], windows))
    assert (found.rule, found.factor, found.factor_name) == ("scaled", 3.0, "steps per window")


def on(rank: int | None, last: bool = False) -> Weigh:
    """The mean over what one rank saw, or over the last microbatch."""

    def weigh(sums: Sums) -> np.ndarray:
        rows = np.ones(len(sums.n), dtype=bool) if rank is None else sums.rank == rank
        if last:
            rows &= sums.microbatch == sums.M - 1
        return rows / (sums.n * rows).sum()

    return weigh


@pytest.mark.parametrize(
    ("rule", "weigh", "words"),
    [
        ("single-rank-only", on(1), "only the tokens of rank 1"),
        ("last-microbatch-only", on(None, last=True), "only the last microbatch"),
        ("last-microbatch-only", on(1, last=True), "only the last microbatch of rank 1"),
    ],
)
def test_a_part_of_the_data(rule: str, weigh: Weigh, words: str) -> None:
    steps = rounds(15)
    found = judged(logged([value_of(t, weigh) for t in steps], singles(steps), rank=1))
    assert (found.rule, found.verdict) == (rule, Verdict.WRONG)
    assert words in found.reason


def test_a_rank_that_averages_its_microbatches() -> None:
    def weigh(sums: Sums) -> np.ndarray:
        return (sums.rank == 0) / (sums.M * sums.n_rm)

    steps = rounds(15)
    found = judged(logged([value_of(t, weigh) for t in steps], singles(steps)))
    assert found.rule == "single-rank-only"
    assert "combined with mean-of-microbatch-means" in found.reason


def test_a_running_step_shows_its_last_microbatch() -> None:
    windows, values = [], []
    for table in rounds(10):
        for done in (1, 2):
            part = Table(tuple(r for r in table.rows if r.microbatch < done), 2, done, step=table.step)
            windows.append([part])
            values.append(value_of(part, on(0, last=True)))
    found = judged(logged(values, windows, running=True))
    assert (found.rule, found.verdict) == ("last-microbatch-only", Verdict.WRONG)
    assert "rank 0" in found.reason


@pytest.mark.parametrize(("rule", "verdict"), [("token-mean", Verdict.RIGHT), ("mean-of-rank-means", Verdict.WRONG)])
def test_a_total_with_another_term_in_it(rule: str, verdict: Verdict) -> None:
    steps = rounds(12)
    random = np.random.default_rng(3)
    values = [value_of(t, base(rule)) + 0.0831 + 1e-4 * random.normal() for t in steps]
    found = judged(logged(values, singles(steps)))
    assert (found.rule, found.verdict) == (rule, verdict)
    assert "other terms that add 0.083" in found.reason


@pytest.mark.parametrize(("rule", "verdict"), [("token-mean", Verdict.RIGHT), ("mean-of-rank-means", Verdict.WRONG)])
def test_a_perplexity(rule: str, verdict: Verdict) -> None:
    steps = rounds(12, constant=1.0)
    found = judged(logged([round(math.exp(value_of(t, base(rule))), 3) for t in steps], singles(steps), name="ppl"))
    assert (found.rule, found.verdict) == (rule, verdict)
    assert "exponential" in found.reason


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lr", [5e-5] * 12),
        ("lr", [5e-5 * (1 - i / 12) for i in range(12)]),
        ("epoch", [0.5 * (i + 1) for i in range(12)]),
        ("epoch", [float(i + 1) for i in range(12)]),
        ("step", [float(10 * i) for i in range(12)]),
        ("grad_norm", [1.2, 0.9, 1.7, 1.1, 0.8, 1.25, 1.4, 0.7, 1.9, 1.3, 1.21, 0.6]),
        (
            "tokens_per_second",
            [10234.1, 10100.7, 9988.2, 10301.9, 10111.3, 10220.4, 10190.2, 9877.1, 10222.2, 10009.3, 10123.8, 10087.6],
        ),
    ],
)
def test_unrelated_numbers_are_left_alone(name: str, values: list[float]) -> None:
    assert judge_reported(logged(values, singles(rounds(12)), name=name), "token-mean") is None


@pytest.mark.parametrize("seed", range(8))
def test_a_gradient_norm_is_unrelated(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.round(np.exp(random.normal(0, 0.5, 12)), 4).tolist()
    assert judge_reported(logged(values, singles(rounds(12)), name="grad_norm"), "token-mean") is None


def test_a_number_that_moves_by_no_known_rule() -> None:
    def odd(sums: Sums) -> np.ndarray:
        return (1 + 0.4 * np.sin(1 + 2 * sums.rank + 3 * sums.microbatch)) / sums.N

    steps = [
        replace(t, rows=tuple(replace(r, loss_sum=2.5 * r.mass) for r in t.rows)) for t in rounds(15, constant=40.0)
    ]
    found = judged(logged([value_of(t, odd) for t in steps], singles(steps), name="train/loss"))
    assert (found.rule, found.verdict) == ("unexplained", Verdict.WRONG)
    assert all(p.relative_weight is not None for p in found.pieces)


def test_values_alone_decide_where_nothing_was_traced() -> None:
    steps = [lossy(t) for t in tables()]
    found = judged(logged([value_of(t, base("mean-of-rank-means")) for t in steps], singles(steps)))
    assert (found.rule, found.verdict) == ("mean-of-rank-means", Verdict.WRONG)
    assert "by its values alone" in found.reason
    assert all(p.inferred for p in found.pieces if p.relative_weight is not None)


def test_values_that_cannot_tell_say_what_they_could_not_tell() -> None:
    even = [lossy(Table.from_counts([[[8]], [[8]]], step=step)) for step in range(3)]
    found = judged(logged([value_of(t, right) for t in even], singles(even)))
    assert found.verdict is Verdict.RIGHT
    assert {"mean-of-rank-means", "sequence-mean"} <= set(found.indistinguishable)


@pytest.mark.parametrize(
    ("rule", "index"),
    [("token-mean", 0), ("mean-of-microbatch-means", 0), ("weighted-by-sequences", 1), ("sequence-mean", 0)],
)
def test_an_evaluation_pass_with_constants_everywhere(rule: str, index: int) -> None:
    passes = []
    for step in range(3):
        counts = [[[3 + step], [14, 9]], [[6, 2 + step, 21], [11]]]
        table = lossy(Table.from_counts(counts, length=24, step=step))
        rows = tuple(replace(row, constant=step * (1.0 + 0.7 * row.rank + 1.9 * row.microbatch)) for row in table.rows)
        passes.append(replace(table, rows=rows))
    values = [round(value_of(t, base(rule, index)), 4) for t in passes]
    found = judged(logged(values, singles(passes), name="eval_loss", phase="evaluation"))
    assert (found.rule, found.phase) == (rule, "evaluation")
    assert all(p.inferred for p in found.pieces)


def test_evaluation_weighted_by_sequences_that_have_no_label_left() -> None:
    table = lossy(Table.from_counts([[[3, 0], [14, 9, 0, 0]], [[6, 2, 21], [11]]], length=24))
    found = judged(logged([round(value_of(table, base("weighted-by-sequences", 3)), 4)], [[table]], name="eval_loss"))
    assert (found.rule, found.verdict) == ("weighted-by-sequences", Verdict.WRONG)


def test_a_single_evaluation_value_rounded_to_four_digits() -> None:
    table = lossy(tables()[0])
    found = judged(logged([round(value_of(table, base("mean-of-microbatch-means")), 4)], [[table]], name="eval_loss"))
    assert found.rule == "mean-of-microbatch-means"


def test_nan_values_are_passed_over() -> None:
    steps = rounds(12)
    values = [value_of(t, right) for t in steps]
    values[3], values[7] = math.nan, math.inf
    found = judged(logged(values, singles(steps)))
    assert (found.verdict, found.rule) == (Verdict.RIGHT, "token-mean")


def test_only_nan_values_are_a_reason_not_a_crash() -> None:
    found = judged(logged([math.nan] * 5, singles(rounds(5))))
    assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, "every value that was logged is NaN or infinite")
    assert judge_reported(logged([math.nan] * 5, singles(rounds(5)), name="lr"), "token-mean") is None


def test_nan_losses_and_masked_steps() -> None:
    steps = rounds(6)
    broken = replace(steps[2], rows=tuple(replace(r, loss_sum=math.nan) for r in steps[2].rows))
    empty = replace(steps[3], rows=tuple(replace(r, mass=0.0, tokens=0, loss_sum=math.nan) for r in steps[3].rows))
    values = [value_of(t, right) for t in steps]
    values[2], values[3] = math.nan, 0.0
    found = judged(logged(values, singles([*steps[:2], broken, empty, *steps[4:]])))
    assert (found.verdict, found.rule) == (Verdict.RIGHT, "token-mean")
    assert found.right_values[2] is None
    assert found.right_values[3] is None


def test_nothing_to_compare_with() -> None:
    assert judge_reported(logged([], []), "token-mean") is None
    assert judge_reported(LoggedNumber("loss", "x", "training", 0, (LoggedValue(1.0, ()),), 1e-7), "token-mean") is None


@pytest.mark.parametrize("objective", ["sequence-mean", "sum", "constant:40"])
def test_other_objectives(objective: str) -> None:
    weigh = {
        "sequence-mean": base("sequence-mean"),
        "sum": lambda s: np.ones_like(s.n),
        "constant:40": lambda s: np.full_like(s.n, 1 / 40),
    }[objective]
    steps = rounds(12)
    assert judged(logged([value_of(t, weigh) for t in steps], singles(steps)), objective).verdict is Verdict.RIGHT
    other = judged(logged([value_of(t, right) for t in steps], singles(steps)), objective)
    assert (other.verdict, other.rule) == (Verdict.WRONG, "token-mean")


def test_a_total_in_which_the_weighed_loss_is_scaled() -> None:
    steps = rounds(12)
    found = judged(logged([2 * value_of(t, right) + 0.31 for t in steps], singles(steps)))
    assert (found.rule, found.verdict, found.factor) == ("scaled", Verdict.WRONG, 2.0)
    assert "other terms that add 0.31" in found.reason


@pytest.mark.parametrize(("rule", "verdict"), [("token-mean", Verdict.RIGHT), ("mean-of-rank-means", Verdict.WRONG)])
def test_losses_in_bfloat16(rule: str, verdict: Verdict) -> None:
    steps = rounds(15)
    random = np.random.default_rng(0)
    values = [value_of(t, base(rule)) * (1 + 2.0**-8 * random.uniform(-1, 1)) for t in steps]
    found = judged(logged(values, singles(steps), epsilon=2.0**-7))
    assert (found.rule, found.verdict) == (rule, verdict)
    assert found.precision is not None
    assert found.precision.right_within == pytest.approx(2.0**-5)


def test_a_small_difference_in_bfloat16_is_inconclusive() -> None:
    steps = rounds(15)
    found = judged(logged([1.04 * value_of(t, right) for t in steps], singles(steps), epsilon=2.0**-7))
    assert found.verdict is not Verdict.RIGHT
    assert found.verdict is Verdict.INCONCLUSIVE or found.rule == "unexplained"


def test_rank_means_are_named_before_rarer_rules_with_the_same_weights() -> None:
    steps = [lossy(Table.from_counts([[[5 + step]], [[19]]], step=step)) for step in range(3)]
    found = judged(logged([value_of(t, base("mean-of-rank-means")) for t in steps], singles(steps)))
    assert found.rule == "mean-of-rank-means"
    assert "sequence-mean" in found.indistinguishable


def test_a_large_number_is_judged_in_no_time() -> None:
    steps = []
    random = np.random.default_rng(1)
    for step in range(32):
        counts = [[[int(n) for n in random.integers(1, 500, 2)] for _ in range(8)] for _ in range(4)]
        table = lossy(Table.from_counts(counts, length=512, step=step))
        steps.append(traced(table, step % 4, step % 8, 2.0))
    number = logged([value_of(t, base("mean-of-rank-means")) for t in steps], singles(steps))
    start = time.process_time()
    assert judged(number).rule == "mean-of-rank-means"
    assert time.process_time() - start < 1.0  # some 50 ms on an idle core

"""Verdicts on planted gradients: every rule is named, the right one is never called wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planted import BFLOAT16, CELLS, FLOAT32, Weigh, planted, reading, sequence, tables, weighed
from weighbridge.band import band_of
from weighbridge.outcome import Verdict
from weighbridge.pieces import Table
from weighbridge.readings import Clip, WeighedTerm
from weighbridge.rules import BASES, DRIFTS, Formula
from weighbridge.sums import Sums
from weighbridge.verdict import judge_gradient


def right(sums: Sums) -> np.ndarray:
    return 1 / sums.N


def rank_means(sums: Sums) -> np.ndarray:
    return BASES["mean-of-rank-means"].formulas[0].of(sums)


BASE_CASES = [(rule.id, f) for rule in BASES.values() for f in rule.formulas if rule.id != "token-mean"]
ONE_STEP, THREE_STEPS = tables([CELLS]), tables()


def test_the_right_weights_are_right() -> None:
    found = judge_gradient(planted(right), "token-mean")
    assert (found.verdict, found.rule, found.factor, found.remedy) == (Verdict.RIGHT, "token-mean", None, "")
    assert found.indistinguishable == []
    assert {round(p.relative_weight, 5) for p in found.pieces if p.relative_weight is not None} == {1.0}
    assert found.terms[0].name == "cross_entropy"


@pytest.mark.parametrize("steps", [ONE_STEP, THREE_STEPS], ids=["one step", "three steps"])
@pytest.mark.parametrize(("rule", "formula"), BASE_CASES, ids=[f"{r}/{f.name}" for r, f in BASE_CASES])
def test_every_base_is_named(rule: str, formula: Formula, steps: list[Table]) -> None:
    if formula.name == "per microbatch" and rule == "count-shifted-twice":
        steps = [table for table in steps if np.isfinite(formula(table.columns)).all()]
    found = judge_gradient(planted(formula.of, steps), "token-mean")
    assert (found.verdict, found.rule, found.factor) == (Verdict.WRONG, rule, None)
    same_here = ("masked ones too", "repeats cut off")  # no sequence is masked or repeated in these tables
    assert formula.text in found.reason or any(part in formula.name for part in same_here)
    if len(steps) > 1:
        assert found.indistinguishable == []


@pytest.mark.parametrize(("rule", "formula"), [(r.id, f) for r in DRIFTS.values() for f in r.formulas])
def test_every_drift_is_named(rule: str, formula: Formula) -> None:
    found = judge_gradient(planted(lambda s: formula.weigh(s) / s.N), "token-mean")
    assert (found.verdict, found.rule, found.factor) == (Verdict.WRONG, rule, None)


def test_a_drift_over_many_microbatches_is_not_mistaken_for_lost_ones() -> None:
    random = np.random.default_rng(5)
    deep = [Table.from_counts(random.integers(1, 40, (8, 16, 1)).tolist(), step=step) for step in range(2)]
    found = judge_gradient(planted(lambda s: s.W**-s.later / s.N, deep), "token-mean")
    assert found.rule == "earlier-microbatches-averaged-again"


def test_noise_where_a_piece_was_lost_is_not_a_weight() -> None:
    def weigh(sums: Sums) -> np.ndarray:
        return np.where(sums.microbatch == sums.M - 1, 1.0, 1e-9) / sums.N

    found = judge_gradient(planted(weigh), "token-mean")
    assert (found.rule, found.factor) == ("last-microbatch-only", None)


def test_a_drift_on_rank_means_says_so() -> None:
    found = judge_gradient(planted(lambda s: 2.0**s.later * rank_means(s)), "token-mean")
    assert found.rule == "doubled-each-microbatch"
    assert "combined with mean-of-rank-means" in found.reason


@pytest.mark.parametrize(
    ("name", "weigh"),
    [
        ("W", lambda s: s.W / s.N),
        ("1/W", lambda s: 1 / (s.W * s.N)),
        ("M", lambda s: s.M / s.N),
        ("1/M", lambda s: 1 / (s.M * s.N)),
        ("W*M", lambda s: s.W * s.M / s.N),
        ("1/(W*M)", lambda s: 1 / (s.W * s.M * s.N)),
        ("N", lambda s: np.ones_like(s.n)),
        ("N/W", lambda s: 1 / s.W),
        ("N/M", lambda s: 1 / s.M),
        ("N/(W*M)", lambda s: 1 / (s.W * s.M)),
        ("N/B", lambda s: 1 / s.B),
        ("W+/W", lambda s: s.W_plus / (s.W * s.N)),
        ("W/W+", lambda s: s.W / (s.W_plus * s.N)),
        ("N/n_0", lambda s: 1 / s.totals.n_first_rank[s.table]),
        ("N/(W*n_0)", lambda s: 1 / (s.W * s.totals.n_first_rank[s.table])),
        ("N/(M*n_last)", lambda s: 1 / (s.M * s.totals.n_last_microbatch[s.table])),
        ("N/(N+W-W+)", lambda s: 1 / (s.N + s.W - s.W_plus)),
        ("N/(W*floor(N/W))", lambda s: 1 / (s.W * np.floor(s.N / s.W))),
        ("N/(W*ceil(N/W))", lambda s: 1 / (s.W * np.ceil(s.N / s.W))),
    ],
)
def test_every_factor_is_named(name: str, weigh: Weigh) -> None:
    found = judge_gradient(planted(weigh), "token-mean")
    assert (found.verdict, found.rule, found.factor_name) == (Verdict.WRONG, "scaled", name)


def test_where_two_names_fit_the_simpler_one_comes_first() -> None:
    square = tables([[[[3], [5]], [[8], [2]]]])
    found = judge_gradient(planted(lambda s: s.W / s.N, square), "token-mean")
    assert found.factor_name is not None
    assert found.factor_name.startswith("W, or M")
    assert found.factor == pytest.approx(2.0)


def test_another_base_times_a_factor() -> None:
    found = judge_gradient(planted(lambda s: s.M * BASES["mean-of-microbatch-means"].formulas[0].of(s)), "token-mean")
    assert (found.rule, found.factor_name, found.factor) == ("mean-of-microbatch-means", "M", pytest.approx(5.0))
    assert found.verdict is Verdict.WRONG


def test_a_constant_without_a_name() -> None:
    found = judge_gradient(planted(lambda s: 0.7391 / s.N), "token-mean")
    assert (found.rule, found.factor_name, found.factor) == ("scaled", None, pytest.approx(0.7391))


def test_weights_that_nothing_explains() -> None:
    odd = planted(lambda s: (1 + 0.37 * np.sin(5 * s.rank + 3 * s.microbatch + s.n)) / s.N)
    found = judge_gradient(odd, "token-mean")
    assert (found.verdict, found.rule) == (Verdict.WRONG, "unexplained")


@pytest.mark.parametrize(
    ("rule", "mask"),
    [
        ("last-microbatch-only", lambda s: s.microbatch == s.M - 1),
        ("first-microbatch-dropped", lambda s: s.microbatch > 0),
        ("single-rank-only", lambda s: s.rank == 1),
        ("dropped-pieces", lambda s: ~((s.rank == 1) & (s.microbatch == 2))),
    ],
)
def test_lost_pieces(rule: str, mask: Weigh) -> None:
    found = judge_gradient(planted(lambda s: mask(s) / s.N), "token-mean")
    assert (found.verdict, found.rule, found.factor) == (Verdict.WRONG, rule, None)
    if rule == "dropped-pieces":
        assert "lost: step 0 rank 1 microbatch 2" in found.reason


def test_a_mask_on_another_base_says_which() -> None:
    found = judge_gradient(planted(lambda s: (s.rank == 0) * s.W * rank_means(s)), "token-mean")
    assert (found.rule, found.verdict) == ("single-rank-only", Verdict.WRONG)
    assert found.factor_name == "N/n_0, or N/n kept"


def test_no_weight_at_all() -> None:
    found = judge_gradient(planted(lambda s: 0.0 / s.N), "token-mean")
    assert (found.verdict, found.rule) == (Verdict.WRONG, "dropped-pieces")
    assert {p.relative_weight for p in found.pieces} <= {0.0, None}


def test_a_short_last_accumulation_divided_by_the_full_length() -> None:
    steps = [Table.from_counts([[[3], [8], [5]], [[6], [2], [9]]], step=0), Table.from_counts([[[4]], [[7]]], step=1)]
    given = reading(
        WeighedTerm("loss", tuple(weighed(t, lambda s, k=k: k / s.N) for t, k in zip(steps, (1.0, 1 / 3), strict=True)))
    )
    found = judge_gradient(given, "token-mean")
    assert (found.rule, found.factor_name) == ("scaled", "M/largest M")


def test_steps_that_are_right_by_themselves_are_listed() -> None:
    steps = [weighed(table, lambda s, k=k: k / s.N) for table, k in zip(tables(), (1.0, 0.83, 1.0), strict=True)]
    found = judge_gradient(reading(WeighedTerm("loss", tuple(steps))), "token-mean")
    assert (found.verdict, found.rule) == (Verdict.WRONG, "unexplained")
    assert found.reason == "step 0, 2 right by itself, step 1 not"


def test_a_clip_inside_the_accumulation_is_predicted() -> None:
    clips = [Clip(step, rank, 3, 0.31 + 0.1 * step) for step in range(3) for rank in range(3)]
    outer = [Clip(step, rank, 5, 0.5) for step in range(3) for rank in range(3)]

    steps = [
        weighed(table, lambda s, i=i: np.where(s.microbatch < 3, 0.31 + 0.1 * i, 1.0) / s.N)
        for i, table in enumerate(tables())
    ]
    given = reading(WeighedTerm("loss", tuple(steps)), clips=(*clips, *outer))
    found = judge_gradient(given, "token-mean")
    assert (found.rule, found.verdict) == ("clipped-inside-accumulation", Verdict.WRONG)
    assert found.clip_factors == [0.5, 0.5, 0.5]


def test_an_even_split_lists_what_it_cannot_tell() -> None:
    even = [Table.from_counts([[[8], [8]], [[8], [8]]], length=8, step=step) for step in range(2)]
    found = judge_gradient(planted(right, even), "token-mean")
    assert found.verdict is Verdict.RIGHT
    assert {"mean-of-rank-means", "mean-of-microbatch-means", "sequence-mean", "padded-length-mean"} <= set(
        found.indistinguishable
    )
    assert "last-microbatch-only" not in found.indistinguishable


def test_bfloat16_says_what_it_cannot_see() -> None:
    large = tables([[[[900], [7, 300]], [[450], [1200]]]])
    found = judge_gradient(planted(right, large, noise=0.02, epsilon=BFLOAT16), "token-mean")
    assert (found.verdict, found.rule) == (Verdict.RIGHT, "token-mean")
    assert "unshifted-count" in found.indistinguishable
    assert found.precision is not None
    assert "One token of 2857 weighs 0.00035" in found.precision.derivation


def test_bfloat16_still_calls_a_fault_wrong() -> None:
    found = judge_gradient(planted(rank_means, noise=0.01, epsilon=BFLOAT16), "token-mean")
    assert (found.verdict, found.rule) == (Verdict.WRONG, "mean-of-rank-means")


def test_between_the_bands_is_inconclusive_and_says_so() -> None:
    found = judge_gradient(planted(lambda s: (1 + 1e-3 * np.cos(s.n + s.rank)) / s.N), "token-mean")
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "more than the 3.8e-06 that rounding explains" in found.reason


def test_a_small_deviation_with_a_name_is_wrong_nevertheless() -> None:
    large = [Table.from_counts([[[9000 + 11 * step], [700]], [[4500], [12000]]], step=step) for step in range(2)]
    found = judge_gradient(planted(lambda s: 1 / (s.N + s.B), large), "token-mean")
    assert (found.verdict, found.rule) == (Verdict.WRONG, "unshifted-count")


def test_a_noisy_reading_decides_nothing() -> None:
    found = judge_gradient(planted(rank_means, spread=0.4), "token-mean")
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "two readings of one weight differ by 0.4" in found.reason


@pytest.mark.parametrize("epsilon", [2.0**-52, FLOAT32, 2.0**-10, BFLOAT16])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3, 0.1, 5.0])
def test_a_quarter_off_can_always_be_called_wrong(epsilon: float, spread: float) -> None:
    band = band_of(epsilon, spread)
    assert 0 < band.right_within < band.wrong_from <= 0.25


def test_ranks_that_disagree() -> None:
    found = judge_gradient(planted(right, disagreement=0.5, disagreeing_ranks=(1, 2)), "token-mean")
    assert (found.verdict, found.rule) == (Verdict.WRONG, "unsynchronised-ranks")
    assert "rank 1, 2" in found.reason


def test_nothing_read_and_nothing_counted() -> None:
    unread = reading(WeighedTerm("loss", tuple(tables())))
    assert judge_gradient(unread, "token-mean").reason == "no gradient was read"
    masked = reading(WeighedTerm("loss", (Table.from_counts([[[0]], [[0]]]),)))
    found = judge_gradient(masked, "token-mean")
    assert (found.verdict, found.rule) == (Verdict.INCONCLUSIVE, None)
    assert found.reason == "every label was masked: nothing was counted"
    assert judge_gradient(reading(), "token-mean").verdict is Verdict.INCONCLUSIVE


def test_a_nan_gradient_is_a_reason_not_a_crash() -> None:
    table = Table((sequence(0, 0, 3, weight=float("nan")), sequence(1, 0, 5, weight=float("nan"))), 2, 1)
    found = judge_gradient(reading(WeighedTerm("loss", (table,))), "token-mean")
    assert (found.verdict, "NaN" in found.reason) == (Verdict.INCONCLUSIVE, True)


def test_rows_that_were_not_read_have_no_relative_weight() -> None:
    table = weighed(tables()[0], right)
    rows = (replace(table.rows[0], weight=None), *table.rows[1:])
    found = judge_gradient(reading(WeighedTerm("loss", (replace(table, rows=rows),))), "token-mean")
    assert found.verdict is Verdict.RIGHT
    assert found.pieces[0].relative_weight is None
    assert found.reason == "1 of 10 rows with tokens were not read"


def test_a_nan_among_right_weights_is_not_right() -> None:
    table = weighed(tables()[0], right)
    rows = (*table.rows[:2], replace(table.rows[2], weight=float("nan")), *table.rows[3:])
    found = judge_gradient(reading(WeighedTerm("loss", (replace(table, rows=rows),))), "token-mean")
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason == "the gradient is NaN or infinite in step 0 rank 0 microbatch 4"


def test_a_weight_on_a_row_without_tokens_is_mentioned() -> None:
    table = Table((sequence(0, 0, 4, weight=1.0), sequence(0, 1, 0, weight=0.25)), 1, 2)
    found = judge_gradient(reading(WeighedTerm("loss", (table,))), "token-mean")
    assert "a weight was read where no token counts: step 0 rank 0 microbatch 1" in found.reason


def test_sequences_are_shown_where_a_piece_has_several() -> None:
    found = judge_gradient(planted(BASES["sequence-mean"].formulas[0].of, ONE_STEP), "token-mean")
    piece = next(p for p in found.pieces if (p.rank, p.microbatch) == (1, 1))
    assert piece.sequences is not None
    assert [s.tokens for s in piece.sequences] == [4, 5]
    assert piece.relative_weight == pytest.approx(2 * 73 / (10 * 9), rel=1e-5)


@pytest.mark.parametrize("objective", ["sequence-mean", "sum", "constant:64"])
def test_other_objectives(objective: str) -> None:
    weigh = {
        "sequence-mean": BASES["sequence-mean"].formulas[0].of,
        "sum": lambda s: np.ones_like(s.n),
        "constant:64": lambda s: np.full_like(s.n, 1 / 64),
    }[objective]
    found = judge_gradient(planted(weigh), objective)
    assert (found.verdict, found.rule) == (Verdict.RIGHT, objective.split(":")[0])
    wrong = judge_gradient(planted(right), objective)
    assert (wrong.verdict, wrong.rule) == (Verdict.WRONG, "token-mean")


# ---- duplicates


def with_contents(table: Table, contents: list[str | None]) -> Table:
    return replace(
        table, rows=tuple(replace(row, content=content) for row, content in zip(table.rows, contents, strict=True))
    )


def judged(table: Table) -> tuple[Verdict, str | None, str]:
    found = judge_gradient(reading(WeighedTerm("loss", (weighed(table, right),))), "token-mean")
    return found.verdict, found.rule, found.reason


def test_a_repeated_item_is_found_by_its_content() -> None:
    table = with_contents(tables()[0], ["a", "b", "c", "d", "e", "f", "g", "h", "i", "a"])
    verdict, rule, reason = judged(table)
    assert (verdict, rule) == (Verdict.WRONG, "duplicated-items")
    assert "step 0 rank 0 microbatch 1 sequence 0, step 0 rank 1 microbatch 4 sequence 2" in reason


def test_synthetic_data_is_no_duplication() -> None:
    assert judged(with_contents(tables()[0], ["x"] * 10)) == (Verdict.RIGHT, "token-mean", "")


def test_replicated_ranks_are_only_remarked() -> None:
    table = with_contents(Table.from_counts([[[4], [9]], [[9], [4]]]), ["a", "b", "b", "a"])
    verdict, rule, reason = judged(table)
    assert (verdict, rule) == (Verdict.RIGHT, "token-mean")
    assert reason == "every rank was fed the same items: they differ only within a rank"


@pytest.mark.parametrize("times", [2, 3])
def test_a_piece_that_ran_backward_twice(times: int) -> None:
    found = judge_gradient(
        planted(lambda s: np.where((s.rank == 1) & (s.microbatch == 2), times, 1) / s.N), "token-mean"
    )
    assert (found.verdict, found.rule) == (Verdict.WRONG, "duplicated-items")
    assert "step 0 rank 1 microbatch 2" in found.reason


def test_items_repeated_in_the_denominator_as_well() -> None:
    def twice(sums: Sums) -> np.ndarray:
        first = np.arange(len(sums.n)) == 0
        return (1 + first) / (sums.N + sums.n[0])

    found = judge_gradient(planted(twice, ONE_STEP), "token-mean")
    assert found.rule == "duplicated-items"


# ---- several terms


def auxiliary(weight: float, name: str = "aux", **more: object) -> WeighedTerm:
    """A scalar term: one item a piece, its weights adding up to `weight`."""
    made = []
    for table in tables():
        rows = tuple(sequence(rank, microbatch, 1, weight=weight / 15) for rank in range(3) for microbatch in range(5))
        made.append(Table(rows, 3, 5, step=table.step, term=name))
    return WeighedTerm(name, tuple(made), scalar=True, **more)  # type: ignore[arg-type]


def main_term(weigh: Weigh = right, **more: object) -> WeighedTerm:
    return WeighedTerm("loss", tuple(weighed(t, weigh) for t in tables()), **more)  # type: ignore[arg-type]


def test_a_scalar_term_without_a_coefficient_is_only_read() -> None:
    found = judge_gradient(reading(main_term(), auxiliary(0.03)), "token-mean")
    assert found.verdict is Verdict.RIGHT
    assert found.terms[1].observed_coefficient == pytest.approx(0.03)
    assert found.terms[1].reason == "declare coefficient= to have it judged"


@pytest.mark.parametrize(("factor", "name"), [(3.0, "W"), (1 / 3, "1/W"), (5.0, "M"), (0.2, "1/M")])
def test_a_scalar_term_off_by_a_named_factor(factor: float, name: str) -> None:
    found = judge_gradient(reading(main_term(), auxiliary(0.01 * factor, coefficient=0.01)), "token-mean")
    assert (found.verdict, found.term, found.rule, found.factor_name) == (Verdict.WRONG, "aux", "scaled", name)
    assert found.factor == pytest.approx(factor)
    assert found.terms[0].verdict is Verdict.RIGHT


def test_a_scalar_term_off_by_the_token_count_of_its_step() -> None:
    counts = [table.columns.mass.sum() for table in tables()]
    made = tuple(
        replace(table, rows=tuple(replace(row, weight=0.01 / count / 15) for row in table.rows))
        for table, count in zip(auxiliary(1.0).tables, counts, strict=True)
    )
    aux = replace(auxiliary(1.0), tables=made, coefficient=0.01)
    found = judge_gradient(reading(main_term(), aux), "token-mean")
    assert (found.rule, found.factor_name) == ("scaled", "1/N")


def test_a_declared_coefficient_is_divided_out() -> None:
    kl = WeighedTerm("kl", tuple(weighed(t, lambda s: 0.1 / s.N) for t in tables()), marked=True, coefficient=0.1)
    found = judge_gradient(reading(main_term(coefficient=1.0), kl), "token-mean")
    assert found.verdict is Verdict.RIGHT
    assert found.terms[1].pieces[0].relative_weight == pytest.approx(1.0, rel=1e-5)


def test_an_undeclared_constant_is_an_observation_on_a_side_term() -> None:
    side = WeighedTerm("kl", tuple(weighed(t, lambda s: 0.1 / s.N) for t in tables()))
    found = judge_gradient(reading(main_term(), side), "token-mean")
    assert found.verdict is Verdict.RIGHT
    assert found.terms[1].observed_coefficient == pytest.approx(0.1)


def test_an_undeclared_constant_on_the_main_term_has_to_be_declared() -> None:
    found = judge_gradient(reading(main_term(lambda s: 0.5 / s.N), auxiliary(0.01)), "token-mean")
    assert (found.verdict, found.term) == (Verdict.INCONCLUSIVE, "loss")
    assert "declare" in found.reason


def test_a_side_term_by_the_wrong_rule_is_wrong_whatever_its_coefficient() -> None:
    side = WeighedTerm("kl", tuple(weighed(t, lambda s: 0.123 * rank_means(s)) for t in tables()))
    found = judge_gradient(reading(main_term(), side), "token-mean")
    assert (found.verdict, found.term, found.rule) == (Verdict.WRONG, "kl", "mean-of-rank-means")
    assert found.terms[1].observed_coefficient == pytest.approx(0.123)


@pytest.mark.parametrize(("weight", "verdict"), [(0.0, Verdict.RIGHT), (0.01, Verdict.WRONG)])
def test_a_term_declared_to_be_off(weight: float, verdict: Verdict) -> None:
    found = judge_gradient(reading(main_term(), auxiliary(weight, coefficient=0.0)), "token-mean")
    assert found.terms[1].verdict is verdict

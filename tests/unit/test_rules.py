"""Every rule is told apart from every other on a batch that was made for it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from planted import CELLS, tables
from weighbridge.errors import InputError
from weighbridge.factors import factor_table
from weighbridge.objectives import parse_objective
from weighbridge.pieces import Table
from weighbridge.rules import BASES, DRIFTS, RULES, Kind, rule_of
from weighbridge.sums import Sums

MUST_EXIST = [
    "token-mean",
    "sequence-mean",
    "mean-of-rank-means",
    "mean-over-non-empty-ranks",
    "mean-of-microbatch-means",
    "mean-of-rank-microbatch-means",
    "mean-over-non-empty-pieces",
    "global-mean-per-microbatch",
    "sequence-means-per-rank",
    "sequence-means-per-microbatch",
    "weighted-by-sequences",
    "padded-length-mean",
    "unshifted-count",
    "count-shifted-twice",
    "scaled",
    "last-microbatch-only",
    "first-microbatch-dropped",
    "single-rank-only",
    "dropped-pieces",
    "duplicated-items",
    "unsynchronised-ranks",
    "earlier-microbatches-averaged-again",
    "doubled-each-microbatch",
    "clipped-inside-accumulation",
    "unexplained",
    "sum",
    "constant",
]


def all_weights(table: Table) -> dict[str, np.ndarray]:
    """The weights of everything that needs no free number: bases, drifts, masks and named factors."""
    sums = Sums([table.columns])
    right = BASES["token-mean"].formulas[0].of(sums)
    found = {f"{rule.id}/{f.name}": f.of(sums) for rule in BASES.values() for f in rule.formulas}
    found |= {f"{rule.id}/{f.name}": f.of(sums) * right for rule in DRIFTS.values() for f in rule.formulas}
    found["last-microbatch-only"] = right * (sums.microbatch == sums.M - 1)
    found["first-microbatch-dropped"] = right * (sums.microbatch > 0)
    for rank in (0, 1):
        found[f"single-rank-only/{rank}"] = right * (sums.rank == rank)
    names, values = factor_table(sums.totals)
    found |= {
        f"scaled/{name}": right * value
        for name, value in zip(names, values[:, 0], strict=True)
        if np.isfinite(value) and value != 1
    }
    return {name: weights for name, weights in found.items() if np.isfinite(weights).all()}


def test_the_promised_rules_exist() -> None:
    assert set(MUST_EXIST) <= set(RULES)


def test_every_rule_tells_its_story_in_sentences() -> None:
    for rule in RULES.values():
        for text in (rule.story, rule.remedy):
            assert text[0].isupper(), rule.id
            assert text.endswith("."), rule.id
        assert bool(rule.formulas) or rule.kind is not Kind.BASE


# The same number by two names: dividing by padded positions is the factor N/sum T.
ALIASES = [{"padded-length-mean/global", "scaled/N/sum T"}]


def test_all_pairs_of_rules_are_told_apart() -> None:
    weights = all_weights(tables([CELLS])[0])
    # variants of one rule may coincide: this design has no sequence whose labels are all masked
    close = [
        {a, b}
        for a, b in itertools.combinations(weights, 2)
        if a.split("/")[0] != b.split("/")[0] and np.allclose(weights[a], weights[b], rtol=1e-4, atol=0)
    ]
    assert close == ALIASES
    assert len(weights) > 60


def test_formulas_by_hand() -> None:
    columns = Table.from_counts([[[1], [3, 2]], [[4], []]], length=5).columns
    by_id = {(rule.id, f.name): f(columns).tolist() for rule in BASES.values() for f in rule.formulas}
    assert by_id["token-mean", "global"] == pytest.approx([1 / 10] * 4)
    assert by_id["sequence-mean", "global"] == pytest.approx([1 / 4, 1 / 12, 1 / 8, 1 / 16])
    assert by_id["mean-of-rank-means", "all ranks"] == pytest.approx([1 / 12] * 3 + [1 / 8])
    assert by_id["mean-of-microbatch-means", "all microbatches"] == pytest.approx([1 / 4, 1 / 20, 1 / 20, 1 / 16])
    assert by_id["mean-over-non-empty-pieces", "pieces with tokens"] == pytest.approx([1 / 3, 1 / 15, 1 / 15, 1 / 12])
    assert by_id["mean-of-rank-microbatch-means", "per rank"] == pytest.approx([1 / 4, 1 / 20, 1 / 20, 1 / 8])
    assert by_id["global-mean-per-microbatch", "all microbatches"] == pytest.approx([1 / 10, 1 / 10, 1 / 10, 1 / 10])
    assert by_id["sequence-means-per-rank", "all ranks"] == pytest.approx([1 / 6, 1 / 18, 1 / 12, 1 / 8])
    assert by_id["weighted-by-sequences", "per microbatch"] == pytest.approx([1 / 4, 2 / 20, 2 / 20, 1 / 16])
    assert by_id["padded-length-mean", "per microbatch"] == pytest.approx([1 / 20, 1 / 40, 1 / 40, 1 / 20])
    assert by_id["unshifted-count", "per rank"] == pytest.approx([1 / 18] * 3 + [1 / 10])
    assert by_id["count-shifted-twice", "global"] == pytest.approx([1 / 6] * 4)


def test_a_row_without_tokens_weighs_nothing() -> None:
    columns = Table.from_counts([[[0, 3]], [[0]]]).columns
    for rule in BASES.values():
        for formula in rule.formulas:
            weights = formula(columns)
            assert weights[0] == weights[2] == 0, rule.id


def test_unknown_lengths_make_the_padded_variants_not_apply() -> None:
    columns = Table.from_counts([[[2, 3]], [[4]]]).columns
    assert all(np.isnan(f(columns)).all() for f in BASES["padded-length-mean"].formulas)


@pytest.mark.parametrize(
    ("text", "rule", "weight"),
    [
        ("token-mean", "token-mean", 1 / 6),
        ("sum", "sum", 1.0),
        ("constant:512", "constant", 1 / 512),
        (" sequence-mean ", "sequence-mean", 1 / 4),
    ],
)
def test_objectives(text: str, rule: str, weight: float) -> None:
    objective = parse_objective(text)
    assert (objective.rule, rule_of(objective.text).id) == (rule, rule)
    assert objective.formula(Table.from_counts([[[2]], [[4]]]).columns)[0] == pytest.approx(weight)


@pytest.mark.parametrize("text", ["mean", "constant", "constant:", "constant:0", "constant:-1", "constant:nan", ""])
def test_a_wrong_objective_names_value_rule_and_way_out(text: str) -> None:
    with pytest.raises(InputError, match=f"^objective is {text!r}. .+ Pass one"):
        parse_objective(text)

"""What a script marks: per-token losses, scalar terms, several terms in one step; and mark outside a weighing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from judged import judge, weigh
from mark_loops import train
from weighbridge.outcome import Gradient, Term, Verdict


def term(gradient: Gradient, name: str) -> Term:
    return next(term for term in gradient.terms if term.name == name)


@pytest.mark.parametrize("kind", ["masked", "float mask", "row mask", "selected", "unmasked"])
@pytest.mark.parametrize("way", ["right", "wrong"])
def test_marked_losses(kind: str, way: str, tmp_path: Path) -> None:
    seen, found = weigh(tmp_path, train, 2, "by hand", f"{kind} {way}")
    assert all(value is True for values in seen for value in values)
    gradient = judge(found)
    expected = (Verdict.RIGHT, "token-mean") if way == "right" else (Verdict.WRONG, "mean-of-microbatch-means")
    assert (gradient.verdict, gradient.rule) == expected, gradient
    assert [term.name for term in gradient.terms] == ["marked"]


@pytest.mark.parametrize(
    ("kind", "name", "factor"),
    [
        ("over W", "1/W", 0.5),
        ("times W", "W", 2.0),
        ("times N", "N", None),
        ("times M", "M", 2.0),
        ("over M", "1/M", 0.5),
    ],
)
def test_scalar_term_that_is_off(kind: str, name: str, factor: float | None, tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 2, "scalar", kind)
    gradient = judge(found)
    router = term(gradient, "router")
    assert (gradient.verdict, gradient.term, router.verdict, router.rule) == (
        Verdict.WRONG,
        "router",
        Verdict.WRONG,
        "scaled",
    ), gradient
    assert router.factor_name is not None
    assert name in router.factor_name.split(", or ")  # W and M are both 2 here
    if factor is not None:
        assert router.factor == pytest.approx(factor, rel=1e-6)
    assert term(gradient, "cross_entropy").verdict is Verdict.RIGHT


def test_scalar_term_that_is_right(tmp_path: Path) -> None:
    seen, found = weigh(tmp_path, train, 2, "scalar", "right")
    assert all(value is True for values in seen for value in values)
    gradient = judge(found)
    assert gradient.verdict is Verdict.RIGHT, gradient
    assert term(gradient, "router").observed_coefficient == pytest.approx(0.01, rel=1e-6)


def test_two_terms_that_are_right(tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 2, "distillation", "right")
    gradient = judge(found)
    assert gradient.verdict is Verdict.RIGHT, gradient
    assert term(gradient, "kl_div").observed_coefficient == pytest.approx(0.5, rel=1e-5)


def test_second_term_that_is_wrong(tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 2, "distillation", "wrong")
    gradient = judge(found)
    assert (gradient.verdict, gradient.term, gradient.rule) == (Verdict.WRONG, "kl_div", "mean-of-microbatch-means"), (
        gradient
    )
    assert term(gradient, "cross_entropy").verdict is Verdict.RIGHT


def test_chunks_are_one_term(tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 2, "chunks", "sums")
    gradient = judge(found)
    assert (gradient.verdict, gradient.rule) == (Verdict.RIGHT, "token-mean"), gradient
    assert [term.name for term in gradient.terms] == ["cross_entropy"]


def test_sum_of_chunk_means_is_wrong(tmp_path: Path) -> None:
    _, found = weigh(tmp_path, train, 2, "chunks", "means")
    gradient = judge(found)
    assert gradient.verdict is Verdict.WRONG, gradient
    assert len(gradient.terms) == 1


def test_mark_outside_a_weighing_does_nothing() -> None:
    program = """if True:
        import sys
        from weighbridge import mark, report
        before = set(sys.modules)
        losses = object()
        assert mark(losses, object(), name="x", coefficient=0.5) is losses
        report("loss", losses)
        assert set(sys.modules) == before and "torch" not in before, set(sys.modules) - before
    """
    subprocess.run([sys.executable, "-c", program], check=True)

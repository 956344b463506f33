"""Every loss function in every form: weighed right, named when wrong, and computed as it is without weighing.

All variants run as the steps of one process group, one group a dtype and way; a test looks at all variants and lists
those that fail.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from judged import judge_step, weigh
from loss_variants import VARIANTS, train
from ranks import run_ranks
from weighbridge.outcome import Verdict
from weighbridge.weigh.assemble import Assembled

# name: (dtype of the model, autocast)
SETTINGS = {
    "float32": ("float32", False),
    "float64": ("float64", False),
    "autocast bfloat16": ("float32", True),
    "bfloat16": ("bfloat16", False),
}
settings = pytest.mark.parametrize("setting", SETTINGS)


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def run(way: str, setting: str) -> tuple[list[Any], Assembled]:
        folder: Path = tmp_path_factory.mktemp("records")
        return weigh(folder, train, 2, way, *SETTINGS[setting])

    return run


@settings
def test_right_loop_is_right(setting: str, weighed: Any) -> None:
    _, found = weighed("right", setting)
    assert found.problems == []
    verdicts = {str(variant): judge_step(found.gradient, step) for step, variant in enumerate(VARIANTS)}
    assert {
        name: (g.verdict, g.rule, g.reason)
        for name, g in verdicts.items()
        if (g.verdict, g.rule) != (Verdict.RIGHT, "token-mean")
    } == {}


@settings
def test_mean_of_microbatch_means_is_named(setting: str, weighed: Any) -> None:
    _, found = weighed("wrong", setting)
    verdicts = {str(variant): judge_step(found.gradient, step) for step, variant in enumerate(VARIANTS)}
    unread = {name for name, g in verdicts.items() if g.verdict is Verdict.INCONCLUSIVE and g.reason}
    assert not unread or "bfloat16" in setting
    assert {
        name: (g.verdict, g.rule, g.reason)
        for name, g in verdicts.items()
        if name not in unread and (g.verdict, g.rule) != (Verdict.WRONG, "mean-of-microbatch-means")
    } == {}
    assert len(unread) <= len(VARIANTS) // 10, unread


@settings
@pytest.mark.parametrize("way", ["right", "empty"])
def test_values_and_gradients_are_those_without_weighing(way: str, setting: str, weighed: Any) -> None:
    results, _ = weighed(way, setting)
    plain = run_ranks(train, 2, way, *SETTINGS[setting])
    different = {
        f"{variant}: {kind}"
        for step, variant in enumerate(VARIANTS)
        for rank in range(2)
        for kind in ("losses", "gradients")
        if not all(map(same, results[rank][kind][step], plain[rank][kind][step]))
    }
    assert different == set(), sorted(different)


def test_a_microbatch_where_nothing_was_selected_is_counted(weighed: Any) -> None:
    _, found = weighed("empty", "float32")
    assert found.comparable, found.problems
    assert found.microbatches == 2


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit, NaN equal to NaN."""
    alike = one.dtype == other.dtype and torch.equal(one.isnan(), other.isnan())
    return alike and torch.equal(one.nan_to_num(7e9), other.nan_to_num(7e9))

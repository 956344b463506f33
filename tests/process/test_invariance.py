"""A weighed run is the run without weighing: parameters, optimizer, random state, data order, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from invariance_loops import STEPS, load_old, shard, train
from judged import weigh
from ranks import run_ranks

WEIGHED = 4


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two nests differ in structure, type or any bit."""
    if type(one) is not type(other):
        return [f"{where}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, torch.Tensor):
        return [] if one.dtype == other.dtype and torch.equal(one, other) else [where]
    if isinstance(one, dict):
        if list(one) != list(other):
            return [f"{where}: {list(one)} and {list(other)}"]
        return [found for key in one for found in differences(one[key], other[key], f"{where}/{key}")]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f"{where}: {len(one)} and {len(other)} parts"]
        return [
            found
            for index, pair in enumerate(zip(one, other, strict=True))
            for found in differences(*pair, f"{where}/{index}")
        ]
    return [] if one == other else [f"{where}: {one} and {other}"]


@pytest.mark.parametrize("limit", [None, 0.05, 1e6], ids=["no clip", "active clip", "inactive clip"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_weighed_run_is_the_same_run(world_size: int, optimizer: str, limit: float | None, tmp_path: Path) -> None:
    """Through the weighed steps, with the tracer at work, and after them."""
    weighed, found = weigh(tmp_path, train, world_size, optimizer, limit, steps=WEIGHED, tracer=True, keep_running=True)
    plain = run_ranks(train, world_size, optimizer, limit)
    assert found.steps == WEIGHED < STEPS
    assert found.gradient is not None
    clipped = {(clip.step, clip.rank) for clip in found.gradient.clips}
    every = {(step, rank) for step in range(WEIGHED) for rank in range(world_size)}
    assert clipped == (every if limit == 0.05 else set())
    assert differences(weighed, plain) == []


def test_fully_sharded_checkpoints_are_the_same(tmp_path: Path) -> None:
    weighed, found = weigh(tmp_path, shard, 2, steps=3, tracer=True, keep_running=True)
    assert found.steps == 3
    assert sorted(weighed[0]["whole"]) == weighed[0]["old"]
    assert differences(weighed, run_ranks(shard, 2)) == []


@pytest.mark.parametrize("world_size", [1, 2])
def test_old_checkpoint_loads_strictly(world_size: int, tmp_path: Path) -> None:
    weighed, _ = weigh(tmp_path, load_old, world_size)
    assert weighed == run_ranks(load_old, world_size)
    assert weighed[0]["missing"] == weighed[0]["unexpected"] == []
    assert '"head.bias"' in weighed[0]["message"]

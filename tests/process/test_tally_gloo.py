"""The tally over real gloo ranks: equal bits for any split, ranks that die or stay away, meshes, saved states."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from gloo_ranks import Died, on_ranks
from weighbridge.errors import CollectiveError
from weighbridge.mean import Mean
from weighbridge.tally import Tally

LOSSES = np.random.default_rng(7).gamma(2, 1.5, 5_000).astype(np.float32)


def share(rank: int, world_size: int) -> np.ndarray:
    """Unequal shares of the losses: the last of several ranks has none, rank 1 a single one."""
    if world_size == 1:
        return LOSSES
    if rank == world_size - 1:
        return LOSSES[:0]
    if world_size == 2:
        return LOSSES
    cuts = [0, len(LOSSES) - 1, len(LOSSES)] if world_size == 3 else [0, 4_000, 4_001, len(LOSSES)]
    return LOSSES[cuts[rank] : cuts[rank + 1]]


def reduced(rank: int, world_size: int) -> dict[str, Any]:
    tally = Tally(limit=20)
    for part in np.array_split(share(rank, world_size), rank + 1):
        tally.add("loss", torch.from_numpy(part))
        tally.add("half", torch.from_numpy(part).bfloat16())
        tally.add("hit", torch.from_numpy(part) > 3)
        tally.add("reward", part, weights=np.ones_like(part))
        tally.add_max("most", part)
    if rank == 0:
        tally.add("only on rank 0", [1.0])
    means = tally.reduce()
    return {
        name: (result.value, result.count, result.digest() if isinstance(result, Mean) else "")
        for name, result in means.items()
    }


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_world_size_gives_the_same_bits(world_size: int) -> None:
    whole = Mean.of(LOSSES)
    for found in on_ranks(world_size, reduced):
        assert found["loss"] == (whole.value, whole.count, whole.digest())
        assert found["half"][2] == Mean.of(torch.from_numpy(LOSSES).bfloat16()).digest()
        assert found["hit"][2] == Mean.of(LOSSES > 3).digest()
        assert found["reward"][2] == Mean.of(LOSSES, weights=np.ones_like(LOSSES)).digest()
        assert found["most"][:2] == (float(LOSSES.max()), len(LOSSES))
        assert found["only on rank 0"][:2] == (1.0, 1)


def lose_a_rank(rank: int, world_size: int, how: str) -> tuple[tuple[int, ...], float, Any, str, str]:
    tally = Tally(limit=3)
    tally.add("loss", [float(rank)])
    tally.reduce()
    if rank == 2:
        if how == "killed":
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(9)
        return (), 0.0, None, "", ""
    begun = time.monotonic()
    with pytest.raises(CollectiveError) as caught:
        tally.reduce()
    took = time.monotonic() - begun
    with pytest.raises(CollectiveError) as again:
        tally.reduce()
    return caught.value.missing, took, tally.local()["loss"].value, str(caught.value), str(again.value)


@pytest.mark.parametrize("how", ["killed", "stays away"])
def test_a_lost_rank_is_named_within_the_limit_and_nothing_is_lost(how: str) -> None:
    answers = on_ranks(4, lose_a_rank, how, may_die=True)
    if how == "killed":
        assert answers[2] == Died(-signal.SIGKILL)
    for rank in (0, 1, 3):
        missing, took, local, told, again = answers[rank]
        assert missing == (2,)
        assert took < 3 + 2.5  # the limit, and the moment to see who is there
        assert local == float(rank)
        assert told.startswith(f"rank 2 of 4 did not take part in a sum, waited for by rank {rank} up to 3 s.")
        assert "This group failed before: rank 2 of 4 did not take part" in again


def over_a_mesh(rank: int, world_size: int) -> dict[str, tuple[float | None, int, int, int]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found = {}
    for axes in ("dp", "tp", ("dp", "tp")):
        tally = Tally(mesh[axes], limit=20)
        tally.add("loss", [10.0**rank])
        if rank == 0:
            tally.add("another", [5.0])
        means = tally.reduce()
        found[str(axes)] = (means["loss"].sum, means["loss"].count, tally.rank, tally.world_size)
        assert rank != 0 or means["another"].value == 5.0
    return found


def test_a_mesh_axis_reduces_over_that_axis_alone() -> None:
    for rank, found in enumerate(on_ranks(4, over_a_mesh)):
        data, tensor = divmod(rank, 2)
        assert found["dp"] == (10.0**tensor + 10.0 ** (2 + tensor), 2, data, 2)
        assert found["tp"] == (11.0 if data == 0 else 1100.0, 2, tensor, 2)
        assert found["('dp', 'tp')"] == (1111.0, 4, rank, 4)


def save(rank: int, world_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    tally = Tally(limit=20)
    tally.add("loss", share(rank, world_size))
    return tally.local_state_dict(), tally.state_dict()


def resume(rank: int, world_size: int, saved: Any) -> tuple[str, int]:
    tally = Tally(limit=20)
    tally.load_state_dict(saved)
    mean = tally.reduce()["loss"]
    return mean.digest(), mean.count


def test_saved_at_four_resumed_at_two_and_one() -> None:
    saved = on_ranks(4, save)
    whole = Mean.of(LOSSES)
    for world_size in (1, 2):
        for state in (saved[0][1], [local for local, _ in saved]):
            assert on_ranks(world_size, resume, state) == [(whole.digest(), len(LOSSES))] * world_size

"""The tally over real gloo ranks: equal bits for any split, ranks that die or stay away, meshes, saved states."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gloo_ranks import Died, on_ranks
from weighbridge.collectives.torch_group import TorchRanks
from weighbridge.errors import CollectiveError, InputError
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


@contextmanager
def counted_waits() -> Iterator[list[int]]:
    """How many collectives of ours this rank waited for."""
    count = [0]
    wait = TorchRanks._wait

    def counting(self: TorchRanks, *arguments: Any) -> None:
        count[0] += 1
        wait(self, *arguments)

    TorchRanks._wait = counting  # type: ignore[method-assign]
    try:
        yield count
    finally:
        TorchRanks._wait = wait  # type: ignore[method-assign]


def reduce_twice(mesh: DeviceMesh, rank: int) -> tuple[float, int, int]:
    """The sum over the mesh, its size, and the collectives of a second reduce."""
    tally = Tally(mesh, limit=20)
    tally.add("loss", [10.0**rank])
    first = tally.reduce()["loss"]
    with counted_waits() as count:
        assert tally.reduce()["loss"] == first
    return first.sum, tally.world_size, count[0]


def over_several_axes(rank: int, world_size: int) -> dict[str, Any]:
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    flat = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "cp", "tp"))
    return {"all": reduce_twice(square["dp", "cp"], rank), "one is 1": reduce_twice(flat["dp", "cp"], rank)}


def test_several_axes_are_one_collective() -> None:
    for rank, found in enumerate(on_ranks(4, over_several_axes)):
        assert found["all"] == (1111.0, 4, 1)
        assert found["one is 1"] == (10.0 ** (rank % 2) + 10.0 ** (rank % 2 + 2), 2, 1)


def over_a_part_of_the_job(rank: int, world_size: int) -> Any:
    mesh = DeviceMesh("cpu", [[4, 1], [2, 3]], mesh_dim_names=("dp", "cp"))
    made, new_group = [], dist.new_group
    dist.new_group = lambda ranks, **options: made.append(ranks) or new_group(ranks, **options)
    if rank == 0:
        with pytest.raises(InputError, match="This rank is not in the mesh"):
            Tally(mesh)
        return None
    return [reduce_twice(mesh, rank) for _ in range(2)], made


def test_a_part_of_the_job_makes_one_group_of_its_own_ranks_and_keeps_it() -> None:
    outside, *inside = on_ranks(5, over_a_part_of_the_job)
    assert outside is None
    assert inside == [([(11110.0, 4, 1)] * 2, [[1, 2, 3, 4]])] * 4


def late_to_the_group(rank: int, world_size: int) -> Any:
    mesh = DeviceMesh("cpu", [[1, 2], [3, 4]], mesh_dim_names=("dp", "cp"))
    if rank == 0:
        return None
    if rank == 3:
        time.sleep(3)
    begun = time.monotonic()
    with pytest.raises(CollectiveError) as caught:
        Tally(mesh, limit=1)
    return caught.value.missing, time.monotonic() - begun, str(caught.value)


def test_a_rank_that_is_late_to_make_the_group_is_named_at_the_limit() -> None:
    answers = on_ranks(5, late_to_the_group)
    for rank in (1, 2, 4):
        missing, took, told = answers[rank]
        assert missing == (2,)
        assert took < 1 + 1.5
        assert told.startswith("rank 2 of 4 did not take part in a making of a group, waited for by rank")
    assert "another rank of this group had given up before" in answers[3][2]


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

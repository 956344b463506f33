"""Ranks of torch.distributed: a process group of any backend, or the axes of a DeviceMesh.

Backends say which connection broke, never who is missing. So when a wait fails or ends at its limit, each rank that is
alive puts its name into the key-value store of torch.distributed, and reads after a moment whose name is not there. As
long as nothing fails the store is not touched.

Over gloo a short vector is summed by gathering it and adding up here: half as many messages one after the other as an
all-reduce, and exact integers have the same sum either way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from weighbridge.collectives.mesh_groups import groups_of, members_of
from weighbridge.collectives.protocol import missing_ranks_error
from weighbridge.collectives.torch_store import default_store, put_down, wait_for
from weighbridge.errors import CollectiveError, InputError

__all__ = ["TorchRanks", "is_torch_group"]

LOOK = 0.5  # seconds of waiting after which a rank looks whether another has failed
SHORT = 1 << 13  # lanes (64 KB) up to which a message takes less time than its way
GATHERED = 1 << 21  # lanes (16 MB) of all ranks together
GRACE = 2.0  # seconds that a rank gives the others to put down their names
_made: Counter[str] = Counter()


def is_torch_group(group: object) -> bool:
    """Whether `group` is something that `TorchRanks` takes."""
    return isinstance(group, dist.ProcessGroup | DeviceMesh)


class TorchRanks:
    """The ranks of a torch process group or mesh.

    Args:
        group: a process group, a DeviceMesh (reduced over all of its axes), or None for the default group. For a mesh,
            making this may make a group: every rank of it does, in the same order as others of its collectives.
        limit: seconds to wait for other ranks.

    Raises:
        CollectiveError: a rank of the mesh did not come to make the group within the limit.
    """

    def __init__(self, group: Any, *, limit: float) -> None:
        self._limit = limit
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise InputError("This rank is not in the group. Only its members reduce over a group. Skip the call here.")
        group = group or dist.group.WORLD
        self._groups = groups_of(group, limit=limit) if isinstance(group, DeviceMesh) else [group]  # nearly always one
        members = members_of(group)
        self.rank = members.index(dist.get_rank())
        self.world_size = len(members)
        self._gloo = all(dist.get_backend(each) == "gloo" for each in self._groups)
        self._devices = _devices(self._groups[0])
        key = hashlib.sha256(json.dumps(members).encode()).hexdigest()[:16]
        self.identity = key
        self._key = f"weighbridge/{key}/{_made[key]}"
        _made[key] += 1
        self._calls = 0
        self._broken = ""
        self._memory: dict[tuple[int, int], _Memory] = {}

    def sum(self, lanes: Any) -> npt.NDArray[np.int64]:
        """The elementwise int64 sum over ranks of `lanes` [N]; raises CollectiveError naming the missing ranks."""
        on_host = not isinstance(lanes, torch.Tensor) or lanes.device.type == "cpu"
        size = int(lanes.shape[0])
        if self._gloo and on_host and size <= SHORT and size * self.world_size <= GATHERED:
            return self._sum_of_gathered(np.asarray(lanes, dtype=np.int64))
        tensor = lanes.detach().clone() if isinstance(lanes, torch.Tensor) else torch.from_numpy(np.array(lanes))
        tensor = self._on_device(tensor.to(torch.int64))
        self._call("sum", lambda: [_sum_into(tensor, group) for group in self._groups])
        total: npt.NDArray[np.int64] = tensor.cpu().numpy()
        return total

    def sum_tensor(self, lanes: torch.Tensor) -> torch.Tensor:
        """As `sum`, with the result on the device of `lanes`: nothing is copied to the host."""
        tensor = self._on_device(lanes.detach().to(torch.int64, copy=True))
        self._call("sum", lambda: [_sum_into(tensor, group) for group in self._groups], host=False)
        return tensor.to(lanes.device)

    def sum_in_place(self, tensor: torch.Tensor) -> None:
        """The elementwise sum over ranks, in place, in the tensor's own dtype; raises as `sum`.

        The backend has to carry the tensor's device.
        """
        self._call("sum", lambda: [_sum_into(tensor, group) for group in self._groups], host=False)

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in order of rank; raises as `sum`."""
        held = [(self.rank, text)]
        for group in self._groups:
            held = [pair for packed in self._gather_over(json.dumps(held), group) for pair in json.loads(packed)]
        return [each for _, each in sorted(held)]

    def _sum_of_gathered(self, lanes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        for group in self._groups:
            memory = self._memory.get((id(group), lanes.size))
            if memory is None:
                memory = self._memory[id(group), lanes.size] = _Memory(group, lanes.size)
            memory.sent[:] = lanes
            self._call("sum", memory.steps)
            lanes = memory.received.sum(axis=0)
        return lanes

    def _gather_over(self, text: str, group: Any) -> list[str]:
        sent = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        size = self._on_device(torch.tensor([sent.numel()]))
        sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
        self._call("gather", lambda: [_gather_into(sizes, size, group)])
        longest = max(int(each) for each in sizes)
        padded = self._on_device(torch.nn.functional.pad(sent, (0, longest - sent.numel())))
        parts = [torch.zeros_like(padded) for _ in sizes]
        self._call("gather", lambda: [_gather_into(parts, padded, group)])
        return [bytes(part[: int(length)].cpu().tolist()).decode() for part, length in zip(parts, sizes, strict=True)]

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type in self._devices:
            return tensor
        other = next(iter(self._devices))
        return tensor.to(torch.device(other, torch.cuda.current_device()) if other == "cuda" else other)

    def _call(self, verb: str, steps: Callable[[], list[Callable[[], Any]]], *, host: bool = True) -> None:
        if self._broken:
            raise CollectiveError(
                f"This group failed before: {self._broken} A transport that lost a rank can't be used again. Make a "
                "new process group."
            )
        self._calls += 1
        end = time.monotonic() + self._limit
        try:
            for start in steps():
                self._wait(start(), end, host)
        except RuntimeError as error:  # what torch raises for a lost connection and for a wait that took too long
            missing, detail = self._who_is_missing(str(error))
            raised = missing_ranks_error(
                missing, rank=self.rank, world_size=self.world_size, limit=self._limit, verb=verb, detail=detail
            )
            self._memory = {}  # what is under way may still read and write the old one
            self._broken = str(raised).split(". ")[0] + "."
            raise raised from error

    def _wait(self, work: Any, end: float, host: bool) -> None:
        if not self._gloo and not host:  # the stream waits, not the host; the backend's own time limit holds
            work.wait()
            return
        if not self._gloo:  # a wait of NCCL that ends early aborts the communicator: one wait, up to the limit
            work.wait(timedelta(seconds=max(end - time.monotonic(), 0.001)))
            return
        while True:
            left = end - time.monotonic()
            try:
                work.wait(timedelta(seconds=max(min(LOOK, left), 0.001)))
                return
            except RuntimeError:
                if work.is_completed() or left <= LOOK or self._somebody_failed():
                    raise

    def _place(self, name: object) -> str:
        return f"{self._key}/{self._calls}/{name}"

    def _somebody_failed(self) -> bool:
        try:
            return bool(default_store().check([self._place("failed")]))
        except (RuntimeError, AttributeError):
            return False

    def _who_is_missing(self, detail: str) -> tuple[list[int], str]:
        """Ranks that have not put down their names after a moment, and what to say about the matter."""
        names = [self._place(rank) for rank in range(self.world_size)]
        try:
            store = default_store()
            put_down(store, names[self.rank])
            put_down(store, self._place("failed"))
            here = wait_for(store, names, seconds=min(GRACE, self._limit))
            put_down(store, names[self.rank])  # a store that died in between is noticed here
        except (RuntimeError, AttributeError) as error:
            return [], f"{detail.splitlines()[0]} (the store that would name the missing ranks is gone: {error})"
        return [rank for rank, present in enumerate(here) if not present], detail


class _Memory:
    """Where vectors of one length are sent from and gathered into, kept from call to call.

    A call of torch costs little in a loop and ten times as much after a wait, when nothing of it is in the cache. So
    there is one in each sum, to the group itself: `dist.all_gather` adds nothing to it but checks.
    """

    def __init__(self, group: Any, size: int) -> None:
        sent = torch.zeros(size, dtype=torch.int64)
        received = torch.zeros(dist.get_world_size(group), size, dtype=torch.int64)
        self._gathering = group.allgather, [list(received)], [sent]
        self.sent, self.received = sent.numpy(), received.numpy()

    def steps(self) -> list[Callable[[], Any]]:
        """The one step of a sum: to gather what is in `sent`."""
        return [self._start]

    def _start(self) -> Any:
        gather, parts, own = self._gathering
        return gather(parts, own)


def _sum_into(tensor: torch.Tensor, group: Any) -> Callable[[], Any]:
    return lambda: dist.all_reduce(tensor, group=group, async_op=True)


def _gather_into(parts: list[torch.Tensor], tensor: torch.Tensor, group: Any) -> Callable[[], Any]:
    return lambda: dist.all_gather(parts, tensor, group=group, async_op=True)


def _devices(group: Any) -> list[str]:
    """Device types that the group's backends carry; gloo says cuda too, but only in builds that have it."""
    carried = [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]
    with contextlib.suppress(ValueError):
        if not torch.cuda.is_available():
            carried.remove("cuda")
    return carried

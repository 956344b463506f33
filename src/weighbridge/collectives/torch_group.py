"""Ranks of torch.distributed: a process group of any backend, or the axes of a DeviceMesh.

Several axes are reduced one after the other; integer sums merge the same in any number of stages, so DP x CP reduces
over both and TP not at all. To make it one collective, flatten the axes into one first.

Backends say which connection broke, never who is missing. So when a wait fails or ends at its limit, each rank that is
alive puts its name into the key-value store of torch.distributed, and reads after a moment whose name is not there. As
long as nothing fails the store is not touched.
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

from weighbridge.collectives.protocol import missing_ranks_error
from weighbridge.errors import CollectiveError, InputError

__all__ = ["TorchRanks", "is_torch_group"]

LOOK = 0.5  # seconds of waiting after which a rank looks whether another has failed
GRACE = 2.0  # seconds that a rank gives the others to put down their names
_made: Counter[str] = Counter()


def is_torch_group(group: object) -> bool:
    """Whether `group` is something that `TorchRanks` takes."""
    return isinstance(group, dist.ProcessGroup | DeviceMesh)


class TorchRanks:
    """The ranks of a torch process group or mesh.

    Args:
        group: a process group, a DeviceMesh (reduced over all of its axes), or None for the default group.
        limit: seconds to wait for other ranks.
    """

    def __init__(self, group: Any, *, limit: float) -> None:
        self._limit = limit
        self._groups = group.get_all_groups() if isinstance(group, DeviceMesh) else [group or dist.group.WORLD]
        if any(each is dist.GroupMember.NON_GROUP_MEMBER for each in self._groups):
            raise InputError("This rank is not in the group. Only its members reduce over a group. Skip the call here.")
        members = _members(group)
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

    def sum(self, lanes: Any) -> npt.NDArray[np.int64]:
        """The elementwise int64 sum over ranks of `lanes` [N]; raises CollectiveError naming the missing ranks."""
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
        held = [text]
        for group in reversed(self._groups):
            held = [each for packed in self._gather_over(json.dumps(held), group) for each in json.loads(packed)]
        return held

    def _gather_over(self, text: str, group: Any) -> list[str]:
        sent = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        size = self._on_device(torch.tensor([sent.numel()]))
        sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
        self._call("gather", lambda: [lambda: dist.all_gather(sizes, size, group=group, async_op=True)])
        longest = max(int(each) for each in sizes)
        padded = self._on_device(torch.nn.functional.pad(sent, (0, longest - sent.numel())))
        parts = [torch.zeros_like(padded) for _ in sizes]
        self._call("gather", lambda: [lambda: dist.all_gather(parts, padded, group=group, async_op=True)])
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
            return bool(_store().check([self._place("failed")]))
        except (RuntimeError, AttributeError):
            return False

    def _who_is_missing(self, detail: str) -> tuple[list[int], str]:
        """Ranks that have not put down their names after a moment, and what to say about the matter."""
        names = [self._place(rank) for rank in range(self.world_size)]
        grace = min(GRACE, self._limit)
        try:
            store = _store()
            store.set(names[self.rank], "here")
            store.set(self._place("failed"), "yes")
            end = time.monotonic() + grace
            while time.monotonic() < end:
                here = [bool(store.check([name])) for name in names]
                if all(here):
                    break
                time.sleep(0.02)
            store.set(names[self.rank], "here")  # a store that died in between is noticed here
        except (RuntimeError, AttributeError) as error:
            return [], f"{detail.splitlines()[0]} (the store that would name the missing ranks is gone: {error})"
        return [rank for rank, present in enumerate(here) if not present], detail


def _sum_into(tensor: torch.Tensor, group: Any) -> Callable[[], Any]:
    return lambda: dist.all_reduce(tensor, group=group, async_op=True)


def _members(group: Any) -> list[int]:
    """Global ranks of the group, in order of rank within it."""
    if isinstance(group, DeviceMesh):
        return [int(rank) for rank in group.mesh.flatten()]
    return [int(rank) for rank in dist.get_process_group_ranks(group or dist.group.WORLD)]


def _devices(group: Any) -> list[str]:
    """Device types that the group's backends carry; gloo says cuda too, but only in builds that have it."""
    carried = [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]
    with contextlib.suppress(ValueError):
        if not torch.cuda.is_available():
            carried.remove("cuda")
    return carried


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()

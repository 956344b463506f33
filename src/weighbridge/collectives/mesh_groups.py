"""One process group for all axes of a DeviceMesh, so that reducing over several of them is one collective.

Most meshes have such a group already: that of the only axis longer than 1, or the default group. Else one is made of
the ranks of this slice, once a job, and kept. Only those ranks take part in making it: other slices, whose ranks may
never reduce, are not waited for. Making it is a wait, so all ranks of the slice first put their names into the store,
and one that stays away is named at the limit.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from weighbridge.collectives.protocol import missing_ranks_error
from weighbridge.collectives.torch_store import default_store, put_down, wait_for
from weighbridge.errors import InputError

__all__ = ["groups_of", "members_of"]

PAUSE = 0.005  # seconds between two looks at who is there
# By default group, so that it ends with the job's groups: the groups made here, by their ranks.
_made: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Any]] = weakref.WeakKeyDictionary()


def members_of(group: Any) -> list[int]:
    """Global ranks of a process group or mesh, in their order within it."""
    if isinstance(group, DeviceMesh):
        return [int(rank) for rank in group.mesh.flatten()]
    return [int(rank) for rank in dist.get_process_group_ranks(group)]


def groups_of(mesh: DeviceMesh, *, limit: float) -> list[Any]:
    """The group over all axes of `mesh`, as the only entry; where it can't be made, the groups of its axes.

    The latter is so for MPI, and for NCCL bound to a device (`init_process_group(device_id=...)`): there a new group
    takes all ranks of the job, and those of other slices may never come.

    Raises:
        CollectiveError: a rank of this slice did not come to make the group within the limit.
    """
    members = members_of(mesh)
    if dist.get_rank() not in members:
        raise InputError("This rank is not in the mesh. Only its members reduce over a mesh. Skip the call here.")
    long = [axis for axis, size in enumerate(mesh.shape) if size > 1]
    if len(long) <= 1:
        return [mesh.get_group(long[0] if long else 0)]
    if len(members) == dist.get_world_size():
        return [dist.group.WORLD]
    if dist.get_backend() == "mpi" or getattr(dist.group.WORLD, "bound_device_id", None) is not None:
        return [mesh.get_group(axis) for axis in long]
    ranks = tuple(sorted(members))
    known = _made.setdefault(dist.group.WORLD, {})
    if ranks not in known:
        known[ranks] = _make(ranks, limit)
    return [known[ranks]]


def _make(ranks: Sequence[int], limit: float) -> Any:
    _meet(ranks, limit)
    gloo = dist.get_backend() == "gloo"
    try:
        group = dist.new_group(
            list(ranks), timeout=timedelta(seconds=limit) if gloo else None, use_local_synchronization=True
        )
    except RuntimeError as error:
        raise _not_made(ranks, [], limit, str(error)) from error
    if gloo:  # the limit was that of making it; each wait has its own
        dist.distributed_c10d._set_pg_timeout(max(timedelta(seconds=limit), dist.default_pg_timeout), group)
    return group


def _meet(ranks: Sequence[int], limit: float) -> None:
    """Return when all of `ranks` have come here; who came in vain says so, and they all fail."""
    key = f"weighbridge/group/{hashlib.sha256(json.dumps(list(ranks)).encode()).hexdigest()[:16]}"
    names, given_up = [f"{key}/{rank}" for rank in ranks], f"{key}/given up"
    try:
        store = default_store()
        put_down(store, names[ranks.index(dist.get_rank())])
        here = wait_for(store, names, seconds=limit, pause=PAUSE, stop=lambda: bool(store.check([given_up])))
        if all(here) and not store.check([given_up]):
            return
        put_down(store, given_up)
    except RuntimeError as error:
        raise _not_made(ranks, [], limit, str(error)) from error
    missing = [place for place, present in enumerate(here) if not present]
    raise _not_made(ranks, missing, limit, "" if missing else "another rank of this group had given up before")


def _not_made(ranks: Sequence[int], missing: Sequence[int], limit: float, detail: str) -> Exception:
    rank = ranks.index(dist.get_rank())
    verb = "making of a group"
    return missing_ranks_error(missing, rank=rank, world_size=len(ranks), limit=limit, verb=verb, detail=detail)

"""How ranks are brought together: one small protocol, and a class for each transport.

collective_for(None)          the default process group if torch.distributed is initialised, else one process
collective_for(group)         a torch process group
collective_for(mesh["dp"])    one axis of a DeviceMesh, or several: mesh["dp", "cp"]
collective_for(MPI.COMM_WORLD)
"""

from __future__ import annotations

import sys
from typing import Any

from weighbridge.collectives.protocol import Alone, Collective, say_ranks
from weighbridge.collectives.threads import ThreadRank, run_ranks
from weighbridge.errors import InputError

__all__ = ["Alone", "Collective", "ThreadRank", "collective_for", "run_ranks", "say_ranks"]

DEFAULT_LIMIT = 300.0


def collective_for(group: Any = None, *, limit: float = DEFAULT_LIMIT) -> Collective:
    """The transport of `group`, with a limit in seconds on every wait.

    Args:
        group: None, a torch process group, a DeviceMesh (its axes are the ones reduced over), an mpi4py communicator,
            or anything with the four members of `Collective`.
        limit: seconds to wait for other ranks. A `group` that is a `Collective` keeps its own.

    Raises:
        InputError: `group` is none of these.
    """
    if isinstance(group, Collective):
        return group
    if type(group).__module__.split(".")[0] == "mpi4py":
        from weighbridge.collectives.mpi import MPIRanks

        return MPIRanks(group, limit=limit)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available():
        from weighbridge.collectives.torch_group import TorchRanks, is_torch_group

        if group is None:
            return TorchRanks(None, limit=limit) if distributed.is_initialized() else Alone()
        if is_torch_group(group):
            return TorchRanks(group, limit=limit)
    if group is None:
        return Alone()
    raise InputError(
        f"The group is a {type(group).__name__}. A group is a torch process group, a DeviceMesh, an mpi4py "
        "communicator, or None. Pass one of these."
    )

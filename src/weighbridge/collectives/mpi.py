"""Ranks of MPI, by way of mpi4py.

MPI has no waits with a limit, so the calls are the non-blocking ones and the limit is kept here. A rank that waited in
vain says so to all others by a small message and listens for theirs: who is not heard is missing.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from weighbridge.collectives.protocol import missing_ranks_error
from weighbridge.errors import CollectiveError

__all__ = ["MPIRanks"]

SPIN = 0.001  # seconds of polling without a pause: most calls are over by then
PAUSE = 0.0001
GRACE = 2.0
HERE = 7411  # tag of the message that says a rank is alive


class MPIRanks:
    """The ranks of an mpi4py communicator, which is duplicated: its messages don't mix with yours.

    Args:
        comm: an intracommunicator; making this is collective over it.
        limit: seconds to wait for other ranks.
    """

    def __init__(self, comm: Any, *, limit: float) -> None:
        self._comm = comm.Dup()
        self._limit = limit
        self._broken = ""
        self.identity = ("mpi", comm.Get_name(), comm.Get_size())
        self.rank = int(comm.Get_rank())
        self.world_size = int(comm.Get_size())

    def sum(self, lanes: Any) -> npt.NDArray[np.int64]:
        """The elementwise int64 sum over ranks of `lanes` [N]; raises CollectiveError naming the missing ranks."""
        sent = np.array(lanes.cpu() if hasattr(lanes, "cpu") else lanes, dtype=np.int64)
        total = np.empty_like(sent)
        self._wait(lambda: self._comm.Iallreduce(sent, total), "sum")
        return total

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in order of rank; raises as `sum`."""
        sent = np.frombuffer(text.encode(), dtype=np.uint8)
        sizes = np.empty(self.world_size, dtype=np.int64)
        self._wait(lambda: self._comm.Iallgather(np.array([sent.size], dtype=np.int64), sizes), "gather")
        received = np.empty(int(sizes.sum()), dtype=np.uint8)
        self._wait(lambda: self._comm.Iallgatherv(sent, [received, sizes.tolist()]), "gather")
        return [part.tobytes().decode() for part in np.split(received, np.cumsum(sizes)[:-1])]

    def _wait(self, start: Any, verb: str) -> None:
        if self._broken:
            raise CollectiveError(
                f"This communicator failed before: {self._broken} Start the job again from a checkpoint."
            )
        request = start()
        begun = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - begun
            if waited > self._limit:
                raised = missing_ranks_error(
                    self._who_is_missing(), rank=self.rank, world_size=self.world_size, limit=self._limit, verb=verb
                )
                self._broken = str(raised).split(". ")[0] + "."
                raise raised
            if waited > SPIN:
                time.sleep(PAUSE)

    def _who_is_missing(self) -> list[int]:
        from mpi4py import MPI

        others = [rank for rank in range(self.world_size) if rank != self.rank]
        said = [self._comm.Isend(np.zeros(1, dtype=np.uint8), dest=rank, tag=HERE) for rank in others]
        heard: set[int] = set()
        end = time.monotonic() + min(GRACE, self._limit)
        status = MPI.Status()
        while time.monotonic() < end and len(heard) < len(others):
            if self._comm.Iprobe(source=MPI.ANY_SOURCE, tag=HERE, status=status):
                self._comm.Recv(np.empty(1, dtype=np.uint8), source=status.Get_source(), tag=HERE)
                heard.add(status.Get_source())
            time.sleep(PAUSE)
        for request in said:
            request.Test()
        return [rank for rank in others if rank not in heard]

"""Real ranks for tests: processes from a forkserver that has torch loaded, joined in a gloo group.

A cell is a function `cell(rank, world_size, *arguments)` run on every rank; a 3-rank group stands after 0.1 s. Each
rank's result or traceback comes back; a rank that says nothing within the limit is named.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 120.0

_context = multiprocessing.get_context("forkserver")
# torch.optim imports torch._dynamo when a first optimizer is built: 2 s of processor time a rank, unless it is there.
# One server serves all pools of a test run, so all name the same modules: what is slow to import, and every rank needs.
PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "numpy",
    "pytest",
    "weighbridge.tally",
    "weighbridge.training",
    "ranks",
    "loops",
]
_context.set_forkserver_preload(PRELOAD)


def _rank(
    cell: Callable[..., Any],
    rank: int,
    world_size: int,
    folder: str,
    weighing: str | None,
    arguments: Any,
    connection: Any,
) -> None:
    try:
        os.environ["OMP_NUM_THREADS"] = "1"
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        if weighing is not None:
            os.environ.update(WEIGHBRIDGE_RECORD=folder, WEIGHBRIDGE_OPTIONS=weighing)
            from weighbridge.weigh.start import start

            start()
        if world_size > 1:
            store = dist.FileStore(os.path.join(folder, "rendezvous"), world_size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        result = cell(rank, world_size, *arguments)
        if world_size > 1:
            dist.barrier()
            dist.destroy_process_group()
        connection.send_bytes(pickle.dumps(("result", result)))
    except BaseException:
        connection.send_bytes(pickle.dumps(("traceback", traceback.format_exc())))
        raise
    finally:
        connection.close()


def run_ranks(
    cell: Callable[..., Any], world_size: int, *arguments: Any, weighing: str | None = None, folder: Path | None = None
) -> list[Any]:
    """Results of `cell` on every rank.

    Args:
        weighing: options text (see weighbridge.weigh.options) to weigh the ranks with records in `folder`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        where = str(folder or temporary)
        ends, processes = [], []
        for rank in range(world_size):
            mine, theirs = _context.Pipe(duplex=False)
            process = _context.Process(target=_rank, args=(cell, rank, world_size, where, weighing, arguments, theirs))
            process.start()
            theirs.close()
            ends.append(mine)
            processes.append(process)
        try:
            return _collect(ends)
        finally:
            for process in processes:
                process.join(10)
                if process.is_alive():
                    process.kill()


def _collect(ends: list[Any]) -> list[Any]:
    results = []
    for rank, end in enumerate(ends):
        if not end.poll(LIMIT):
            raise TimeoutError(f"rank {rank} of {len(ends)} said nothing for {LIMIT:.0f} s")
        try:
            kind, value = pickle.loads(end.recv_bytes())
        except EOFError as error:
            raise RuntimeError(f"rank {rank} of {len(ends)} ended without a word") from error
        if kind == "traceback":
            raise RuntimeError(f"rank {rank} of {len(ends)}:\n{value}")
        results.append(value)
    return results

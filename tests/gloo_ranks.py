"""Real ranks for tests: processes from a forkserver that has torch loaded, joined by gloo on a file.

    results = on_ranks(3, work, "an argument")     # work(rank, world_size, "an argument") in each; results by rank

A rank that raises sends its traceback, and the test fails with it. A rank that dies is `Died(exit code)`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from ranks import PRELOAD

SECONDS = 60
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOAD)


@dataclass(frozen=True)
class Died:
    """A rank that ended without an answer."""

    exit_code: int | None


def _rank(
    pipe: Connection, rank: int, world_size: int, meeting: str, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=SECONDS),
        )
        try:
            pipe.send((True, work(rank, world_size, *args)))
        finally:
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def on_ranks(world_size: int, work: Callable[..., Any], *args: Any, may_die: bool = False) -> list[Any]:
    """What `work(rank, world_size, *args)` returned on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder, "meeting"))
        started = []
        for rank in range(world_size):
            here, there = _context.Pipe()
            process = _context.Process(target=_rank, args=(there, rank, world_size, meeting, work, args))
            process.start()
            there.close()
            started.append((process, here))
        return [_answer(rank, process, pipe, may_die) for rank, (process, pipe) in enumerate(started)]


def _answer(rank: int, process: Any, pipe: Connection, may_die: bool) -> Any:
    try:
        if not pipe.poll(SECONDS):
            process.kill()
            pytest.fail(f"rank {rank} did not answer within {SECONDS} s")
        worked, answer = pipe.recv()
    except EOFError:
        process.join(5)
        if may_die:
            return Died(process.exitcode)
        pytest.fail(f"rank {rank} ended with exit code {process.exitcode} and no answer")
    process.join(10)
    if process.is_alive():
        process.kill()
    if not worked:
        pytest.fail(f"rank {rank} of the group raised:\n{answer}")
    return answer

"""What the processes of a running command have recorded so far, read while they write.

Every process that weighs appends JSON lines to `process-<pid>.jsonl` in the record folder. The parent reads them as
they grow: it remembers how far it has read each file and leaves a line without its newline for the next time, so a
line caught half written, or one that a killed process never ended, does no harm.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ProcessRecord", "RecordWatch"]

RECORD_NAME = re.compile(r"process-(\d+)\.jsonl")


@dataclass(slots=True)
class ProcessRecord:
    """What one process has said about itself.

    Attributes:
        pid: its process id, from the file's name.
        rank: its rank, once it knew.
        world_size: the number of ranks, once it knew.
        steps: weighed steps so far.
        finished: it did its weighed steps and waits to be told to stop, or to go on for more steps.
        weighed: it did the weighed steps that were asked for first.
        reported: it logged a number in training.
        stepped_without_loss: it took an optimizer step in which no loss was seen.
        worker_statuses: how processes that it started through multiprocessing ended, by id, as in `Popen.returncode`.
        ended_how: "clean" or "exception" once it said that it ends; None before.
        message: the exception it ended with, else "".
    """

    pid: int
    rank: int | None = None
    world_size: int | None = None
    steps: int = 0
    finished: bool = False
    weighed: bool = False
    reported: bool = False
    stepped_without_loss: bool = False
    worker_statuses: dict[int, int] = field(default_factory=dict)
    ended_how: str | None = None
    message: str = ""
    _offset: int = field(default=0, repr=False)

    @property
    def is_rank(self) -> bool:
        """Whether this process takes part in the training, rather than having imported torch for something else."""
        return self.rank is not None or self.steps > 0 or self.finished

    def read(self, path: Path) -> bool:
        """Take in what was appended to `path`; True if there was a whole new line."""
        try:
            with path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return False
        if not newline:
            return False
        self._offset += len(whole) + 1
        for line in whole.split(b"\n"):
            self._take(line)
        return True

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            return  # assembling the records says what can't be read; watching only needs what can
        if isinstance(entry, dict):
            self._apply(entry)

    def _apply(self, entry: dict[str, Any]) -> None:
        match entry.get("kind"):
            case "place":
                self.rank, self.world_size = entry.get("rank"), entry.get("world_size")
            case "step":
                self.steps += 1
            case "finished":
                self.finished = self.weighed = True
            case "unweighed":  # it goes on without probe and tracer
                self.weighed = True
            case "reported":
                self.reported |= entry.get("phase", "training") == "training"
            case "step-without-loss":
                self.stepped_without_loss = True
            case "worker-ended":
                self.worker_statuses[int(entry["worker"])] = int(entry["status"])
            case "exit":
                self.ended_how, self.message = str(entry.get("how", "clean")), str(entry.get("message") or "")


class RecordWatch:
    """The records of all processes in one folder, read incrementally."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[int, ProcessRecord] = {}

    def read(self) -> bool:
        """Take in everything that was appended since the last call; True if anything was."""
        changed = False
        for path in self.folder.iterdir():
            if match := RECORD_NAME.fullmatch(path.name):
                pid = int(match[1])
                if pid not in self.processes:
                    self.processes[pid] = ProcessRecord(pid)
                    changed = True
                changed |= self.processes[pid].read(path)
        return changed

    @property
    def ranks(self) -> dict[int, ProcessRecord]:
        """The newest record of each rank; a training process that never said its rank counts as rank 0."""
        return {process.rank or 0: process for process in self.processes.values() if process.is_rank}

    def status_of(self, pid: int) -> int | None:
        """How the process `pid` ended, where another process that started it has said so."""
        return next((p.worker_statuses[pid] for p in self.processes.values() if pid in p.worker_statuses), None)

    @property
    def world_size(self) -> int:
        """The number of ranks as the processes said it; 0 while no rank is known."""
        return max((process.world_size or 1 for process in self.ranks.values()), default=0)

    @property
    def steps(self) -> int:
        """Weighed steps that every known rank has done."""
        return min((process.steps for process in self.ranks.values()), default=0)

    @property
    def any_finished(self) -> bool:
        """Whether some rank has done its weighed steps and waits."""
        return any(process.finished for process in self.processes.values())

    @property
    def all_finished(self) -> bool:
        """Whether every rank of the world waits for an answer."""
        ranks = self.ranks
        return bool(ranks) and len(ranks) >= self.world_size and all(process.finished for process in ranks.values())

    def expect_more(self) -> None:
        """Forget who has finished: the ranks were told to go on, and will say so again."""
        for process in self.processes.values():
            process.finished = False

    @property
    def any_reported(self) -> bool:
        """Whether some rank has logged a number in training."""
        return any(process.reported for process in self.processes.values())

    @property
    def all_weighed(self) -> bool:
        """Whether every rank of the world has done its weighed steps."""
        ranks = self.ranks
        return bool(ranks) and len(ranks) >= self.world_size and all(process.weighed for process in ranks.values())

    @property
    def unfinished_ranks(self) -> list[int]:
        """The ranks of the world that have not done their weighed steps."""
        ranks = self.ranks
        return [rank for rank in range(self.world_size) if rank not in ranks or not ranks[rank].weighed]

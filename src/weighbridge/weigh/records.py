"""The record folder, read: one `RankRecord` a rank, with its lines sorted by what they tell.

Torn last lines are expected (a process may have been killed while writing); anything else that can't be read is an
error that names file and line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weighbridge.errors import RecordError

__all__ = ["RankRecord", "Records", "read_records"]

Line = dict[str, Any]


@dataclass
class RankRecord:
    """What one weighing process wrote.

    Attributes:
        rank: its rank; world_size: the size of its group.
        slot_rank: the rank whose slots in the probe it takes: its rank in the default process group.
        shares: the ranks that the wrapper of the probe reduces over; None where no wrapper said.
        microbatches: final lines of training microbatches, one a loss call.
        evaluation: lines of evaluation batches.
        steps: step index -> the step's line.
        reported: logged numbers in order, each with the `unfinished` microbatch lines that came just before it.
        notes: other lines, by kind.
    """

    pid: int
    process: Line
    rank: int = 0
    world_size: int = 1
    slot_rank: int = 0
    shares: list[int] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    microbatches: list[Line] = field(default_factory=list)
    evaluation: list[Line] = field(default_factory=list)
    steps: dict[int, Line] = field(default_factory=dict)
    reported: list[tuple[Line, list[Line]]] = field(default_factory=list)
    others: dict[str, list[Line]] = field(default_factory=dict)

    def take(self, line: Line, pending: list[Line]) -> None:
        """Sort in one line; `pending` holds unfinished microbatches until the number they belong to."""
        kind = line["kind"]
        if kind == "microbatch" and line.get("unfinished"):
            pending.append(line)
        elif kind == "microbatch":
            (self.evaluation if line["phase"] == "evaluation" else self.microbatches).append(line)
        elif kind == "step":
            self.steps[line["step"]] = line
        elif kind == "reported":
            self.reported.append((line, list(pending)))
        else:
            self.others.setdefault(kind, []).append(line)
        if kind not in ("microbatch", "reported"):
            pending.clear()
        if kind == "place":
            self.rank = self.slot_rank = line["rank"]
            self.world_size, self.shares = line["world_size"], line.get("shares")
            self.versions.update(line.get("versions", {}))


@dataclass
class Records:
    """All that the processes of a weighed command wrote.

    Attributes:
        ranks: the weighing processes, by rank.
        bystanders: processes that imported torch and wrote, but never had a place: they were too old, or unreachable.
        replaced: earlier processes of a rank that was started again.
    """

    ranks: dict[int, RankRecord]
    bystanders: list[RankRecord]
    replaced: list[RankRecord]

    @property
    def world_size(self) -> int:
        return max((record.world_size for record in self.ranks.values()), default=0)


def read_records(folder: Path) -> Records:
    """Read every record in `folder`.

    Raises:
        RecordError: a line that is not the last of its file is not JSON.
    """
    ranks: dict[int, RankRecord] = {}
    bystanders, replaced = [], []
    records = [_read_one(path) for path in sorted(folder.glob("process-*.jsonl"))]
    for record in sorted(records, key=lambda record: record.process.get("time", 0.0)):
        if "place" not in record.others:
            bystanders.append(record)
            continue
        if record.rank in ranks:
            replaced.append(ranks[record.rank])
        ranks[record.rank] = record
    return Records(dict(sorted(ranks.items())), bystanders, replaced)


def _read_one(path: Path) -> RankRecord:
    pid = int(path.stem.split("-")[1])
    record = RankRecord(pid, {})
    pending: list[Line] = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, text in enumerate(lines, 1):
        if not text:
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            if number == len(lines):
                break  # the process ended while it wrote this line
            raise RecordError(
                f"line {number} of {path} is not JSON ({error}). A record holds one JSON object a line. "
                "Delete the file, or weigh again."
            ) from error
        if line.get("kind") == "process":
            record.process = line
        record.take(line, pending)
    return record

"""A command that runs: its ranks watched, its deaths noted, and its end seen to.

The parent looks at the records and at the system's processes a few times a second. It ends only what the command
started, gently first, and it reports a process as dead only if that process is gone without having said why.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from weighbridge.weigh.process_tree import DeathBed, ProcessTree, is_alive
from weighbridge.weigh.watch import ProcessRecord, RecordWatch

__all__ = ["RECORD_VARIABLE", "STOP_FILE", "DeadRank", "EndedBy", "Patience", "Progress", "RunningCommand", "Signals"]

EndedBy = Literal["command", "weighing", "timeout", "interrupt"]
RECORD_VARIABLE = "WEIGHBRIDGE_RECORD"
STOP_FILE, GO_FILE = "stop", "go"
MOST_STEPS = 32  # weighed where the user gave no number


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what, in seconds.

    Attributes:
        stragglers: after the first rank has finished, for the others.
        grace: after the ranks were told to stop, before SIGTERM.
        own_end: after Ctrl-C reached the command too, before it gets another SIGINT.
        interrupt: after SIGINT, before SIGTERM.
        terminate: after SIGTERM, before SIGKILL; and after SIGKILL, before giving up.
        logged: for more steps, where no number was logged in the first ones.
        poll: between two looks at the records.
        scan: between two looks at the system's processes.
    """

    stragglers: float = 60.0
    grace: float = 15.0
    own_end: float = 1.0
    interrupt: float = 5.0
    terminate: float = 5.0
    logged: float = 120.0
    poll: float = 0.05
    scan: float = 0.25


@dataclass(frozen=True, slots=True)
class DeadRank:
    """A process that ended without saying so.

    Attributes:
        pid: its process id.
        rank: its rank, None if it was no rank or had not said so.
        signal: name of the signal that killed it, None if it was none or isn't known.
        exit_code: its exit code, None if it was killed or the code isn't known.
    """

    pid: int
    rank: int | None = None
    signal: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a running command is.

    Attributes:
        ranks: ranks that are known, of `world_size`.
        steps: weighed steps that all ranks have done.
        weighed: whether all ranks have done the steps that were asked for.
        extended_to: the step up to which the ranks go on because no number was logged yet.
        dead: processes that ended without saying so.
    """

    ranks: int
    world_size: int
    steps: int
    weighed: bool = False
    extended_to: int | None = None
    dead: tuple[DeadRank, ...] = ()


@dataclass(slots=True)
class Signals:
    """How often somebody asked this process to end."""

    count: int = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def _dead(pid: int, rank: int | None, status: int | None) -> DeadRank:
    if status is not None and status < 0:
        return DeadRank(pid, rank, signal.Signals(-status).name)
    return DeadRank(pid, rank, None, status)


def _ended_by_launcher(dead: DeadRank) -> bool:
    return dead.signal == signal.SIGTERM.name  # a launcher ends the other ranks when one has died


class RunningCommand:
    """One running command."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        record_folder: Path,
        options: Mapping[str, Any],
        *,
        deadline: float,
        signals: Signals,
        patience: Patience,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.process = process
        self.records = RecordWatch(record_folder)
        self.tree = ProcessTree(process.pid, (RECORD_VARIABLE, str(record_folder.resolve())))
        self.dead: list[DeadRank] = []
        self._keep_running = bool(options.get("keep_running"))
        self._steps = options.get("steps") or 1
        self._may_extend = options.get("steps") is None and bool(options.get("tracer"))
        self._extended_to: int | None = None
        self._first_step: float | None = None
        self._deadline = deadline
        self._signals = signals
        self._patience = patience
        self._on_progress = on_progress
        self._first_finished: float | None = None
        self._next_scan = 0.0
        self._last_progress: Progress | None = None
        self._looked_up: set[int] = set()
        self._death_bed = DeathBed()

    def watch_until_over(self) -> EndedBy:
        """Wait until the command ended, its weighed steps are done, time is up, or somebody interrupts."""
        try:
            while True:
                self._look()
                ended_by = self._over()
                if ended_by is not None:
                    return ended_by
                self._death_bed.wait(self._patience.poll)
        finally:
            self._death_bed.close()

    def end(self, ended_by: EndedBy) -> None:
        """End what is left of the command, gently first."""
        (self.records.folder / STOP_FILE).touch()
        wait = self._patience
        by_force = [(signal.SIGTERM, wait.terminate), (signal.SIGKILL, wait.terminate)]
        if ended_by == "command" and self.process.returncode == 0:
            self._complete_deaths()
            return  # what a successful command leaves running, it leaves running without weighbridge as well
        self.tree.scan_marked()
        gently: dict[EndedBy, list[tuple[signal.Signals | None, float]]] = {
            "command": [(None, wait.grace)],
            "weighing": [(None, wait.grace)],
            "interrupt": [(None, wait.own_end), (signal.SIGINT, wait.interrupt)],
            "timeout": [],
        }
        for number, seconds in [*gently[ended_by], *by_force]:
            if self._wait_for_end(number, seconds):
                break
        self.records.read()
        self._complete_deaths()

    def end_by_force(self) -> None:
        """End everything at once: weighbridge itself failed, and nothing may go on unwatched."""
        self.tree.scan()
        self.tree.send(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=self._patience.terminate)

    def _look(self) -> None:
        if time.monotonic() >= self._next_scan:
            self.tree.scan()
            self._next_scan = time.monotonic() + self._patience.scan
        self.process.poll()
        suspects = self._gone()
        self.records.read()  # after looking who is gone: whoever went in good order has written so before
        for record in self.records.processes.values():
            if record.pid not in self._looked_up:
                self._looked_up.add(record.pid)
                self.tree.add(record.pid)
                if self.tree.find(record.pid) is not None:
                    self._death_bed.watch(record.pid)
        if self._first_step is None and self.records.steps:
            self._first_step = time.monotonic()
        if self._signals.count == 0:
            self._note_deaths(suspects)
        self._report_progress()

    def _gone(self) -> list[tuple[ProcessRecord, int | None]]:
        """Recorded processes that were seen running and no longer are, with their exit code where known."""
        gone: list[tuple[ProcessRecord, int | None]] = []
        known_dead = {dead.pid for dead in self.dead}
        for record in self.records.processes.values():
            process = self.tree.find(record.pid)
            if record.pid in known_dead or record.ended_how or record.finished:
                continue
            if process is None and self.process.returncode is not None:
                gone.append((record, None))
            elif process is not None and not is_alive(process):
                own = record.pid == self.process.pid
                gone.append((record, self.process.poll() if own else self._death_bed.status(record.pid)))
        return gone

    def _note_deaths(self, gone: list[tuple[ProcessRecord, int | None]]) -> None:
        for record, status in gone:
            if record.ended_how or record.finished or status == 0:
                continue
            dead = _dead(record.pid, record.rank, status)
            if record.is_rank or (dead.signal and not _ended_by_launcher(dead)):
                self.dead.append(dead)
        self.dead.sort(key=_ended_by_launcher)  # a rank may be seen to end before the one whose death ended it

    def _complete_deaths(self) -> None:
        """As known now: the process that started a dead one may have said only later how it ended."""
        self.dead = [
            dead if dead.signal or dead.exit_code else _dead(dead.pid, dead.rank, self.records.status_of(dead.pid))
            for dead in self.dead
        ]
        self.dead.sort(key=_ended_by_launcher)

    def _over(self) -> EndedBy | None:
        now = time.monotonic()
        if self._signals.count:
            return "interrupt"
        if self.process.returncode is not None and (self.process.returncode != 0 or not self._ranks_alive()):
            self._look()  # whatever was written or died between the last look and the end
            if self.process.returncode == 0:
                self.dead = [dead for dead in self.dead if dead.signal or dead.exit_code]
            return "command"
        if not self._keep_running and self._all_finished(now) and not self._extend(now):
            return "weighing"
        done = self._keep_running and (self.records.all_weighed or self.records.steps >= self._steps)
        return "timeout" if now >= self._deadline and not done else None

    def _ranks_alive(self) -> bool:
        processes = [self.tree.find(record.pid) for record in self.records.processes.values() if record.is_rank]
        return any(process is not None and is_alive(process) for process in processes)

    def _all_finished(self, now: float) -> bool:
        if not self.records.any_finished:
            return False
        if self._first_finished is None:
            self._first_finished = now
        return self.records.all_finished or now >= self._first_finished + self._patience.stragglers

    def _extend(self, now: float) -> bool:
        """Let the ranks weigh more steps if no number was logged in the first ones, and steps are quick."""
        records = self.records
        if not self._may_extend or records.any_reported or not records.all_finished or self._first_step is None:
            return False
        self._may_extend = False
        seconds_per_step = max((now - self._first_step) / max(records.steps - 1, 1), 1e-3)
        more = int(min(self._patience.logged, self._deadline - now) / seconds_per_step)
        target = min(records.steps + more, MOST_STEPS)
        if target <= records.steps:
            return False
        records.expect_more()
        self._first_finished, self._extended_to = None, target
        unfinished = records.folder / f"{GO_FILE}.part"
        unfinished.write_text(str(target))
        unfinished.replace(records.folder / GO_FILE)  # at once: a rank must never read half a number
        return True

    def _wait_for_end(self, number: signal.Signals | None, seconds: float) -> bool:
        """Send a signal and wait; True once nothing is left, False when time is up or somebody presses Ctrl-C."""
        asked = self._signals.count
        if number is not None:
            self.tree.send(number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._signals.count == asked:
            self.process.poll()
            if time.monotonic() >= self._next_scan:
                self.tree.scan()
                self._next_scan = time.monotonic() + self._patience.scan
            if not self.tree.alive() and self.process.returncode is not None:
                return True
            time.sleep(self._patience.poll)
        return False

    def _report_progress(self) -> None:
        if self._on_progress is None:
            return
        records = self.records
        progress = Progress(
            len(records.ranks),
            records.world_size,
            records.steps,
            records.all_weighed,
            self._extended_to,
            tuple(self.dead),
        )
        if progress != self._last_progress:
            self._last_progress = progress
            self._on_progress(progress)

"""Starts the user's command as it is, watches its ranks, and ends it when the weighed steps are done.

The command runs in weighbridge's own process group with its own standard streams, as if it had been typed alone. The
only thing that reaches it is its environment: `PYTHONPATH` begins with the folder `startup`, whose module hooks torch
in every process that imports it; `WEIGHBRIDGE_RECORD` names the folder for the records and `WEIGHBRIDGE_OPTIONS`
holds the options. The ranks answer through the record folder, and the parent tells them to end by a file `stop` there.
Nothing is ended that the command did not start.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from weighbridge.errors import InputError
from weighbridge.weigh.process_tree import ProcessTree, end_status, is_alive
from weighbridge.weigh.watch import ProcessRecord, RecordWatch

__all__ = ["CommandResult", "DeadRank", "EndedBy", "Patience", "Progress", "find_program", "launch"]

EndedBy = Literal["command", "weighing", "timeout", "interrupt"]
STARTUP_FOLDER = Path(__file__).parent / "startup"
RECORD_VARIABLE = "WEIGHBRIDGE_RECORD"
OPTIONS_VARIABLE = "WEIGHBRIDGE_OPTIONS"
STOP_FILE = "stop"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what, in seconds.

    Attributes:
        stragglers: after the first rank has finished, for the others.
        grace: after the ranks were told to stop, before SIGTERM.
        own_end: after Ctrl-C reached the command too, before it gets another SIGINT.
        interrupt: after SIGINT, before SIGTERM.
        terminate: after SIGTERM, before SIGKILL; and after SIGKILL, before giving up.
        poll: between two looks at the records.
        scan: between two looks at the system's processes.
    """

    stragglers: float = 60.0
    grace: float = 15.0
    own_end: float = 1.0
    interrupt: float = 5.0
    terminate: float = 5.0
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
    """How far a running command is: ranks that are known, of how many, and the weighed steps that all have done."""

    ranks: int
    world_size: int
    steps: int
    weighed: bool = False
    dead: tuple[DeadRank, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a watched command ended.

    Attributes:
        exit_code: its exit code (negative: the signal); None if it was ended from outside.
        ended_by: who ended it.
        dead: processes that ended without saying so, in the order of dying.
        seconds: wall time from start to end.
        complete: whether every rank did its weighed steps.
        processes: what each process said about itself.
        unfinished_ranks: ranks that had not done their weighed steps.
    """

    exit_code: int | None
    ended_by: EndedBy
    dead: tuple[DeadRank, ...]
    seconds: float
    complete: bool = False
    processes: tuple[ProcessRecord, ...] = ()
    unfinished_ranks: tuple[int, ...] = ()


def find_program(command: Sequence[str]) -> str:
    """The path of the program that `command` starts.

    Raises:
        InputError: there is no such program, or it can't be executed.
    """
    if not command or not command[0]:
        raise InputError(
            "the command is empty. weighbridge weighs the command that starts a training run. "
            "Give it after two dashes: weighbridge weigh -- torchrun --nproc-per-node 2 train.py"
        )
    program = command[0]
    if found := shutil.which(program):
        return found
    path = Path(program)
    if not path.exists():
        advice = "Check the spelling, and that the environment it is installed in is active."
        raise InputError(f"{program!r} was not found. A command starts with a program that can be run. {advice}")
    if path.suffix == ".py":
        raise InputError(f"{program!r} can't be executed. A script is run by Python. Write: python {program}")
    raise InputError(
        f"{program!r} can't be executed. A command starts with an executable file. "
        f"Make it executable (chmod +x {program}), or name the program that runs it."
    )


def launch(
    command: Sequence[str],
    *,
    record_folder: Path,
    options: Mapping[str, Any],
    timeout: float = 1800.0,
    on_progress: Callable[[Progress], None] | None = None,
    patience: Patience | None = None,
) -> CommandResult:
    """Run `command` to the end of its weighed steps.

    Args:
        command: program and arguments, as typed.
        record_folder: an existing folder, in which no other run writes.
        options: what the ranks are told; `keep_running` and `steps` also tell the parent what to wait for.
        timeout: seconds until the weighed steps must be done.
        on_progress: called whenever something new is known.
        patience: how long to wait for what.

    Raises:
        InputError: the command can't be started.
    """
    program = find_program(command)
    started = time.monotonic()
    with _ending_signals() as signals:
        process = _start(program, command, _environment(record_folder, options))
        run = _Run(process, record_folder, options, started + timeout, signals, patience or Patience(), on_progress)
        try:
            ended_by = run.watch_until_over()
            run.end(ended_by)
        except BaseException:
            run.end_by_force()
            raise
    return CommandResult(
        exit_code=process.returncode if ended_by == "command" else None,
        ended_by=ended_by,
        dead=tuple(run.dead),
        seconds=time.monotonic() - started,
        complete=run.records.all_weighed,
        processes=tuple(run.records.processes.values()),
        unfinished_ranks=tuple(run.records.unfinished_ranks),
    )


def _environment(record_folder: Path, options: Mapping[str, Any]) -> dict[str, str]:
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        RECORD_VARIABLE: str(record_folder.resolve()),
        OPTIONS_VARIABLE: json.dumps(dict(options)),
        "PYTHONPATH": f"{STARTUP_FOLDER}{os.pathsep}{before}" if before else str(STARTUP_FOLDER),
    }


def _start(program: str, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command), executable=program, env=environment)
    except OSError as error:
        cause = "its first line (#!) is missing or unknown" if error.errno == errno.ENOEXEC else error.strerror
        raise InputError(
            f"{command[0]!r} can't be started: {cause}. A command starts with a program that can be run. "
            "Run the command without weighbridge first, and correct what the system says."
        ) from error
    except ValueError as error:
        raise InputError(
            f"the command can't be started: {error}. Arguments are text without null bytes. Correct the arguments."
        ) from error


@dataclass(slots=True)
class _Signals:
    """How often somebody asked this process to end."""

    count: int = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def _ending_signals() -> Iterator[_Signals]:
    """Count Ctrl-C, SIGTERM and SIGHUP instead of dying of them; one that is ignored (nohup) stays ignored."""
    signals = _Signals()
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, signals)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """One running command."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        record_folder: Path,
        options: Mapping[str, Any],
        deadline: float,
        signals: _Signals,
        patience: Patience,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.process = process
        self.records = RecordWatch(record_folder)
        self.tree = ProcessTree(process.pid, (RECORD_VARIABLE, str(record_folder.resolve())))
        self.dead: list[DeadRank] = []
        self._keep_running = bool(options.get("keep_running"))
        self._steps = options.get("steps") or 1
        self._deadline = deadline
        self._signals = signals
        self._patience = patience
        self._on_progress = on_progress
        self._first_finished: float | None = None
        self._next_scan = 0.0
        self._last_progress: Progress | None = None
        self._looked_up: set[int] = set()

    def watch_until_over(self) -> EndedBy:
        """Wait until the command ended, its weighed steps are done, time is up, or somebody interrupts."""
        while True:
            self._look()
            ended_by = self._over()
            if ended_by is not None:
                return ended_by
            time.sleep(self._patience.poll)

    def end(self, ended_by: EndedBy) -> None:
        """End what is left of the command, gently first."""
        (self.records.folder / STOP_FILE).touch()
        wait = self._patience
        by_force = [(signal.SIGTERM, wait.terminate), (signal.SIGKILL, wait.terminate)]
        if ended_by == "command" and self.process.returncode == 0:
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
                gone.append((record, self.process.poll() if own else end_status(process)))
        return gone

    def _note_deaths(self, gone: list[tuple[ProcessRecord, int | None]]) -> None:
        def ended_by_launcher(item: tuple[ProcessRecord, int | None]) -> bool:
            return item[1] == -signal.SIGTERM  # a launcher ends the other ranks when one has died

        for record, status in sorted(gone, key=ended_by_launcher):
            if record.ended_how or record.finished or status == 0:
                continue
            killed = status is not None and status < 0
            if not record.is_rank and (not killed or ended_by_launcher((record, status))):
                continue
            name = signal.Signals(-status).name if killed and status is not None else None
            self.dead.append(DeadRank(record.pid, record.rank, name, None if killed else status))

    def _over(self) -> EndedBy | None:
        now = time.monotonic()
        if self._signals.count:
            return "interrupt"
        if self.process.returncode is not None and (self.process.returncode != 0 or not self._ranks_alive()):
            self._look()  # whatever was written or died between the last look and the end
            if self.process.returncode == 0:
                self.dead = [dead for dead in self.dead if dead.signal or dead.exit_code]
            return "command"
        if not self._keep_running and self._all_finished(now):
            return "weighing"
        done = self.records.all_weighed or (self._keep_running and self.records.steps >= self._steps)
        return "timeout" if now >= self._deadline and not done else None

    def _ranks_alive(self) -> bool:
        processes = [self.tree.find(record.pid) for record in self.records.processes.values() if record.is_rank]
        return any(process is not None and is_alive(process) for process in processes)

    def _all_finished(self, now: float) -> bool:
        if not self.records.any_finished:
            return False
        if self._first_finished is None:
            self._first_finished = now
        return self.records.all_weighed or now >= self._first_finished + self._patience.stragglers

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
            len(records.ranks), records.world_size, records.steps, records.all_weighed, tuple(self.dead)
        )
        if progress != self._last_progress:
            self._last_progress = progress
            self._on_progress(progress)

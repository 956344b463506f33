"""Starts the user's command as it is, watches its ranks, and ends it when the weighed steps are done.

The command runs in weighbridge's own process group with its own standard streams, as if it had been typed alone. The
only thing that reaches it is its environment: `PYTHONPATH` begins with the folder `startup`, whose module hooks torch
in every process that imports it; `WEIGHBRIDGE_RECORD` names the folder for the records and `WEIGHBRIDGE_OPTIONS`
holds the options. The ranks answer through the record folder, and the parent tells them to end by a file `stop` there,
or, where no number was logged yet, to weigh up to some later step by a file `go`. Nothing is ended that the command
did not start.
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weighbridge.errors import InputError
from weighbridge.weigh.running import (
    RECORD_VARIABLE,
    DeadRank,
    EndedBy,
    Patience,
    Progress,
    RunningCommand,
    Signals,
)
from weighbridge.weigh.watch import ProcessRecord

__all__ = ["CommandResult", "DeadRank", "EndedBy", "Patience", "Progress", "find_program", "launch"]

STARTUP_FOLDER = Path(__file__).parent / "startup"
OPTIONS_VARIABLE = "WEIGHBRIDGE_OPTIONS"


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
        run = RunningCommand(
            process,
            record_folder,
            options,
            deadline=started + timeout,
            signals=signals,
            patience=patience or Patience(),
            on_progress=on_progress,
        )
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


@contextmanager
def _ending_signals() -> Iterator[Signals]:
    """Count Ctrl-C, SIGTERM and SIGHUP instead of dying of them; one that is ignored (nohup) stays ignored."""
    signals = Signals()
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

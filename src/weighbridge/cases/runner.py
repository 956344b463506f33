"""Runs a stranger's program and says how it ended.

The program gets its own process, `python -I`, an empty folder to work in, next to no environment, and limits on time,
memory, output and processes, and no network where the system allows that to be enforced; what could not be enforced
is told. These are limits, not a jail: a program can still read what any user of the machine can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weighbridge.errors import RecordError

__all__ = ["Ending", "Limits", "run_program"]

_CONFINE = Path(__file__).with_name("confine.py")


@dataclass(frozen=True)
class Limits:
    """What a program may use: seconds of wall clock, bytes of memory a process, bytes of output, processes."""

    seconds: int = 10
    memory: int = 512 << 20
    output: int = 1 << 20
    processes: int = 8


@dataclass
class Ending:
    """How a run ended: `stopped` is the limit that ended it, or None; `exit_status` is None if a limit ended it.

    A negative exit status is the number of the signal that ended the program.
    """

    exit_status: int | None
    stopped: str | None
    stdout: bytes
    stderr: bytes
    seconds: float
    enforced: dict[str, str] = field(default_factory=dict)


def run_program(files: dict[str, bytes], *, limits: Limits | None = None) -> Ending:
    """Runs the first of `files` (name to content; the others lie beside it) and returns how it ended."""
    limits = limits or Limits()
    folder = Path(tempfile.mkdtemp(prefix="case-"))
    try:
        folder.chmod(0o711)
        for part in ("program", "work", "python"):
            (folder / part).mkdir()
        for name, content in files.items():
            (folder / "program" / name).write_bytes(content)
            (folder / "program" / name).chmod(0o444)
        (folder / "program").chmod(0o755)
        return _run(folder, folder / "program" / next(iter(files)), limits)
    finally:
        with contextlib.suppress(FileNotFoundError):
            (folder / "python").rmdir()  # a mount point: never to be emptied, only removed
        shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, program: Path, limits: Limits) -> Ending:
    reading, writing = os.pipe()
    # The interpreter below a virtual environment, so that a program sees the standard library and no package of ours.
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    config = _configuration(folder, program, limits) | {"python": python, "answers": writing}
    began = time.monotonic()
    process = subprocess.Popen(
        [python, "-I", "-S", str(_CONFINE), json.dumps(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=(writing,),
        start_new_session=True,
        cwd=folder,
        env={},
    )
    os.close(writing)
    try:
        stopped, stdout, stderr = _collect(process, began + limits.seconds, limits.output)
        if stopped is None and not _ends(process, by=began + limits.seconds):
            stopped = "time"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        with os.fdopen(reading, "rb") as answers:
            lines = answers.read().decode().splitlines()
    seconds = time.monotonic() - began
    if not lines:
        raise RecordError(f"The program could not be started: {stderr.decode(errors='replace').strip()[-300:]}")
    enforced = json.loads(lines[-1])
    exit_status = enforced.pop("exit_status", None)
    if exit_status == 127 and not stdout and not stderr:
        raise RecordError(f"{python} could not be started under the limits. Run weighbridge with another Python.")
    return Ending(None if stopped else exit_status, stopped, stdout, stderr, seconds, enforced)


def _configuration(folder: Path, program: Path, limits: Limits) -> dict[str, Any]:
    work = str(folder / "work")
    return {
        "prefix": os.path.realpath(sys.base_prefix),
        "mount_point": str(folder / "python"),
        "work": work,
        "program": str(program),
        "seconds": limits.seconds,
        "memory": limits.memory,
        "processes": limits.processes,
        "environment": {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": work, "TZ": "UTC"},
    }


def _ends(process: subprocess.Popen[bytes], *, by: float) -> bool:
    """Whether a process that closed its output also ends before `by`."""
    try:
        process.wait(timeout=max(by - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True


def _collect(process: subprocess.Popen[bytes], deadline: float, most: int) -> tuple[str | None, bytes, bytes]:
    """Both streams until they close, the deadline passes, or more than `most` bytes have come."""
    assert process.stdout is not None
    assert process.stderr is not None
    stopped = None
    with process.stdout as stdout, process.stderr as stderr, selectors.DefaultSelector() as selector:
        held: dict[int, bytearray] = {stdout.fileno(): bytearray(), stderr.fileno(): bytearray()}
        for stream in held:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and stopped is None:
            left = deadline - time.monotonic()
            if left <= 0:
                stopped = "time"
                break
            for key, _ in selector.select(timeout=left):
                chunk = os.read(key.fd, 65536)
                held[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
            if sum(map(len, held.values())) > most:
                stopped = "output"
    out, err = (bytes(text[:most]) for text in held.values())
    return stopped, out, err

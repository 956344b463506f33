"""The processes that a command started, kept in sight so that exactly those can be ended.

A launcher may die and leave its ranks behind; then nothing but memory connects them to the command. So every
descendant is remembered, from when it is first seen, by process id and time of creation: a process that took over
the id of one that ended is never mistaken for it.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["DeathBed", "ProcessTree", "is_alive"]


def end_status(pid: int) -> int | None:
    """How the zombie `pid` ended, as in `Popen.returncode` (negative: the signal); None where that isn't known."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return os.waitstatus_to_exitcode(int(fields[-1])) if state in "ZX" else None
    except (OSError, ValueError, IndexError):
        return None


class DeathBed:
    """Waits for time to pass or for a watched process to end, and notes how it ended before its parent clears it away.

    A parent that collects its child leaves nothing to ask. Waking at the very moment of an end (pidfd, Linux) is
    quicker than most launchers look; elsewhere this only waits.
    """

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}
        self._statuses: dict[int, int | None] = {}

    def watch(self, pid: int) -> None:
        """Watch the process `pid`, where the system can."""
        if pid not in self._handles and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._handles[pid] = os.pidfd_open(pid)

    def wait(self, seconds: float) -> None:
        """Wait that long, or until a watched process ends."""
        poll = select.poll()
        pids = {handle: pid for pid, handle in self._handles.items() if pid not in self._statuses}
        for handle in pids:
            poll.register(handle, select.POLLIN)
        for handle, _ in poll.poll(seconds * 1000):
            self._statuses[pids[handle]] = end_status(pids[handle])

    def status(self, pid: int) -> int | None:
        """How the process `pid` ended, as in `Popen.returncode`; None where that isn't known."""
        found = self._statuses.get(pid)
        return end_status(pid) if found is None else found

    def close(self) -> None:
        """Give the handles back."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()


class ProcessTree:
    """The process `root` and everything that was ever seen below it.

    Args:
        root: id of the command's process.
        marker: name and value of an environment variable that only these processes have; it finds those that were
            orphaned before they could be seen.
    """

    def __init__(self, root: int, marker: tuple[str, str]) -> None:
        self._marker = marker
        self._seen: dict[int, psutil.Process] = {}
        self._since = 0.0
        self.add(root)
        with suppress(KeyError, psutil.Error):
            self._since = self._seen[root].create_time()

    def add(self, pid: int) -> None:
        """Remember the process `pid`, if there is one that is not older than the command.

        An older one is a stranger: the id then belongs to a process on another machine that shares the folder.
        """
        known = self._seen.get(pid)
        if known is not None and known.is_running():
            return
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.create_time() >= self._since:
                self._seen[pid] = process

    def scan(self) -> None:
        """Look for new descendants of all remembered processes."""
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            try:
                children.setdefault(process.ppid(), []).append(process)
            except psutil.Error:
                continue
        waiting = [process for process in self._seen.values() if process.is_running()]
        while waiting:
            parent = waiting.pop()
            for child in children.get(parent.pid, ()):
                if self._seen.get(child.pid) != child and is_younger(child, parent):
                    self._seen[child.pid] = child
                    waiting.append(child)

    def scan_marked(self) -> None:
        """Look for processes that carry the marker in their environment, wherever they hang in the system's tree."""
        name, value = self._marker
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(name) == value:
                    self._seen.setdefault(process.pid, process)
            except (psutil.Error, OSError):
                continue

    def find(self, pid: int) -> psutil.Process | None:
        """The remembered process `pid`, running or not."""
        return self._seen.get(pid)

    def alive(self) -> list[psutil.Process]:
        """The remembered processes that still run; a zombie doesn't."""
        return [process for process in self._seen.values() if is_alive(process)]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every remembered process that still runs."""
        for process in self.alive():
            with suppress(psutil.Error):
                process.send_signal(number)


def is_alive(process: psutil.Process) -> bool:
    """Whether this very process still runs."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_younger(child: psutil.Process, parent: psutil.Process) -> bool:
    """Whether `child` was created after `parent`: if not, the id of its real parent was given out again."""
    try:
        return bool(child.create_time() >= parent.create_time())
    except psutil.Error:
        return False

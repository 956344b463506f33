"""The record of one process: JSON lines in the record folder, one an event, written as they happen.

A line is written with one call and flushed, so that a process that is killed leaves everything it had seen.
The file is opened at the first event: a process that imports torch and never trains leaves no file.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import torch

__all__ = ["Recorder"]


class Recorder:
    """Appends events of this process to `<folder>/process-<pid>.jsonl`."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self._file: IO[str] | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event; numbers may be NaN or infinite (Python's JSON reads them back)."""
        with self._lock:
            if self._file is None or self._pid != os.getpid():
                self._open()
            assert self._file is not None
            self._file.write(json.dumps({"kind": kind, **fields}) + "\n")
            self._file.flush()

    @property
    def used(self) -> bool:
        """True once this process has written an event."""
        return self._file is not None and self._pid == os.getpid()

    def of(self, pid: int) -> Path:
        """Where the process `pid` writes its record."""
        return self.folder / f"process-{pid}.jsonl"

    def _open(self) -> None:
        self._pid = os.getpid()
        self._file = self.of(self._pid).open("a", encoding="utf-8")
        first = {
            "kind": "process",
            "pid": self._pid,
            "executable": sys.executable,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "time": time.time(),
            "argv": sys.argv,
        }
        self._file.write(json.dumps(first) + "\n")

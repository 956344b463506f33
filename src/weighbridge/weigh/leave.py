"""The end of a weighing: all ranks leave at the same point, or go on without probe and tracer.

A rank that has its steps must not simply go: another may still be in a collective with it, logging what they computed.
So each says that it is finished when the next microbatch would begin, and waits for the watching parent process, which
answers when all ranks have said so: `stop`, or `go` with a larger number of steps where no logged number had come by.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

from weighbridge.weigh import probe

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["goes_on"]

PATIENCE = 120.0  # seconds to wait for the parent's answer; it answers 60 s after the first rank at the latest


def goes_on(weigher: Weigher) -> bool:
    """Called where a microbatch would begin: whether it is to be weighed. Where the run ends here, it never returns."""
    while weigher.step >= weigher.last_step():
        if weigher.options.keep_running:
            _go_on_unweighed(weigher)
            return False
        weigher.recorder.write("finished", steps=weigher.step)
        more = _answer(weigher)
        if more is None:
            _leave(weigher)
        weigher.extended_to = more
    return True


def _answer(weigher: Weigher) -> int | None:
    """A larger number of steps, or None to leave."""
    folder, until = weigher.recorder.folder, time.monotonic() + PATIENCE
    while time.monotonic() < until and folder.exists():
        if (folder / "stop").exists():
            return None
        go = folder / "go"
        if go.exists():
            text = go.read_text(encoding="utf-8").strip()
            if text.isdigit() and int(text) > weigher.step:
                return int(text)
        time.sleep(0.02)
    return None


def _leave(weigher: Weigher) -> None:
    """End this process at once: frameworks answer an exception with teardown that waits for other ranks."""
    weigher.recorder.write("exit", how="finished", message="")
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed stream has nothing to flush
            stream.flush()
    os._exit(0)


def _go_on_unweighed(weigher: Weigher) -> None:
    weigher.recorder.write("unweighed", steps=weigher.step)
    weigher.enabled = False
    assert weigher.probe is not None
    if not weigher.wrapped:
        probe.detach(weigher.probe.owner)

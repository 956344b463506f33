"""Start weighing in this process: called when torch has been imported in a process of a weighed command."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
from types import TracebackType

import torch

from weighbridge import marking
from weighbridge.weigh import hooks, sinks, uneven
from weighbridge.weigh.options import Options
from weighbridge.weigh.recorder import Recorder
from weighbridge.weigh.weigher import Weigher

__all__ = ["start"]

OLDEST_TORCH = (2, 6)


def start() -> None:
    """Install the hooks, and see to it that the way this process ends is recorded."""
    recorder = Recorder(os.environ["WEIGHBRIDGE_RECORD"])
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        recorder.write("too-old", torch=torch.__version__, oldest=".".join(map(str, OLDEST_TORCH)))
        return
    options = Options.from_text(os.environ.get("WEIGHBRIDGE_OPTIONS", "{}"))
    weigher = Weigher(recorder, options)
    hooks.install(weigher)
    sinks.install(weigher)
    if options.uneven:
        uneven.install(weigher)
    marking.weigher = weigher
    _record_the_end(recorder)
    os.register_at_fork(after_in_child=lambda: _after_fork(weigher))


def _after_fork(weigher: Weigher) -> None:
    """A child of a process that already weighs is a data-loader worker or the like: it must stay quiet."""
    if weigher.probe is not None:
        weigher.enabled = False
        weigher.probe = None
        weigher.quiet = True


def _record_the_end(recorder: Recorder) -> None:
    """Write how this process ended, unless it is killed: then nothing stands there, and that tells it."""
    ended = False

    def record(how: str, message: str = "") -> None:
        nonlocal ended
        if recorder.used and not ended:
            ended = True
            recorder.write("exit", how=how, message=message)

    atexit.register(record, "clean")
    # Workers of multiprocessing leave through os._exit, which runs its own finalizers and no atexit function.
    multiprocessing.util.Finalize(None, record, args=("clean",), exitpriority=0)
    earlier = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        record("exception", f"{kind.__name__}: {error}"[:2000])
        earlier(kind, error, traceback)

    sys.excepthook = excepthook

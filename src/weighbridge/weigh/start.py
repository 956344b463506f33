"""Start weighing in this process: called when torch has been imported in a process of a weighed command."""

from __future__ import annotations

import atexit
import functools
import multiprocessing.popen_fork
import multiprocessing.util
import os
import sys
from types import TracebackType
from typing import Any

from weighbridge import marking
from weighbridge.weigh import copies, hooks, sinks, uneven
from weighbridge.weigh.options import Options
from weighbridge.weigh.recorder import Recorder
from weighbridge.weigh.weigher import Weigher

__all__ = ["start"]


def start() -> None:
    """Install the hooks, and see to it that the way this process ends is recorded."""
    recorder = Recorder(os.environ["WEIGHBRIDGE_RECORD"])
    options = Options.from_text(os.environ.get("WEIGHBRIDGE_OPTIONS", "{}"))
    weigher = Weigher(recorder, options)
    hooks.install(weigher)
    copies.install()
    sinks.install(weigher)
    if options.uneven:
        uneven.install(weigher)
    marking.weigher = weigher
    _record_the_end(recorder)
    _record_ends_of_workers(recorder)
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

    def record_end_of_worker() -> None:
        error = _failure(sys.exc_info()[1])
        if error is None:
            record("clean")
        else:
            record("exception", _told(type(error), error))

    def in_worker(_: Recorder) -> None:
        nonlocal ended
        ended = False
        # Workers of multiprocessing leave through os._exit, which runs its own finalizers, no atexit function and no
        # excepthook. A forked one forgets the finalizers of its parent first.
        multiprocessing.util.Finalize(None, record_end_of_worker, exitpriority=0)

    atexit.register(record, "clean")
    in_worker(recorder)
    multiprocessing.util.register_after_fork(recorder, in_worker)
    earlier = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        record("exception", _told(kind, error))
        earlier(kind, error, traceback)

    sys.excepthook = excepthook


def _failure(error: BaseException | None) -> BaseException | None:
    """The exception that a process ends with; None where it ends in good order."""
    if isinstance(error, SystemExit):
        # torch.multiprocessing sends a worker's exception to its parent and then exits with status 1.
        return _failure(error.__context__) if error.code else None
    return error


def _told(kind: type[BaseException], error: BaseException) -> str:
    return f"{kind.__name__}: {error}"[:2000]


def _record_ends_of_workers(recorder: Recorder) -> None:
    """Write how workers of multiprocessing ended: this process takes their status away before anyone else can look."""
    original = multiprocessing.popen_fork.Popen.poll

    @functools.wraps(original)
    def poll(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = self.returncode
        status = original(self, *args, **kwargs)
        if known is None and status is not None and recorder.of(self.pid).exists():
            recorder.write("worker-ended", worker=self.pid, status=status)
        return status

    multiprocessing.popen_fork.Popen.poll = poll  # type: ignore[method-assign]

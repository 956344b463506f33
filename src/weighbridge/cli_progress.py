"""Says on stderr how far a weighing is, in whole lines, so that the command's own output is never garbled.

The command writes to the same terminal, and nothing can know where its cursor is: a bar that is redrawn in place would
overwrite what the command wrote. So each milestone is one line, and steps in between are said on a terminal only.
"""

from __future__ import annotations

import os
import time
from typing import TextIO

from weighbridge.weigh.running import DeadRank, Progress

__all__ = ["ProgressLines"]

SECONDS_BETWEEN_STEPS = 2.0


class ProgressLines:
    """Called with each new `Progress`; writes a line when there is something to say."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._said_ranks = 0
        self._said_steps = 0
        self._said_weighed = False
        self._said_extended = False
        self._said_dead: set[DeadRank] = set()
        self._quiet_until = 0.0

    def __call__(self, progress: Progress) -> None:
        """Say what is new."""
        if progress.world_size and progress.ranks >= progress.world_size > self._said_ranks:
            self._said_ranks = progress.world_size
            self._say(f"weighing {_count(progress.world_size, 'rank')}")
        for dead in progress.dead:
            if dead not in self._said_dead:
                self._said_dead.add(dead)
                who = "a process" if dead.rank is None else f"rank {dead.rank}"
                self._say(f"{who} (process {dead.pid}) died{f' of {dead.signal}' if dead.signal else ''}")
        if progress.weighed and not self._said_weighed:
            self._said_weighed = True
            self._say(f"{_count(progress.steps, 'step')} weighed")
        if progress.extended_to is not None and not self._said_extended:
            self._said_extended = True
            self._say(f"no number was logged yet: weighing on, up to {_count(progress.extended_to, 'step')}")
        elif progress.steps > self._said_steps and self._stream.isatty() and not self._said_weighed:
            self._say_step(progress.steps)

    def _say_step(self, steps: int) -> None:
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + SECONDS_BETWEEN_STEPS
            self._said_steps = steps
            self._say(f"{_count(steps, 'step')} so far")

    def _say(self, text: str) -> None:
        dim, plain = ("\x1b[2m", "\x1b[0m") if self._stream.isatty() and not os.environ.get("NO_COLOR") else ("", "")
        try:
            self._stream.write(f"{dim}weighbridge: {text}{plain}\n")
            self._stream.flush()
        except OSError:
            pass  # nobody reads; the weighing goes on


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"

"""Progress on stderr: whole lines, few of them, and no colour where none is wanted."""

from __future__ import annotations

import io

import pytest

from weighbridge.cli_progress import ProgressLines
from weighbridge.weigh.running import DeadRank, Progress

RUN = [
    Progress(0, 0, 0),
    Progress(1, 2, 0),
    Progress(2, 2, 0),
    Progress(2, 2, 1),
    Progress(2, 2, 2),
    Progress(2, 2, 2, dead=(DeadRank(7, 1, "SIGKILL"),)),
    Progress(2, 2, 5, weighed=True, dead=(DeadRank(7, 1, "SIGKILL"),)),
    Progress(2, 2, 5, weighed=True, extended_to=32, dead=(DeadRank(7, 1, "SIGKILL"),)),
]
LINES = """\
weighbridge: weighing 2 ranks
weighbridge: rank 1 (process 7) died of SIGKILL
weighbridge: 5 steps weighed
weighbridge: no number was logged yet: weighing on, up to 32 steps
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(stream: io.StringIO) -> str:
    lines = ProgressLines(stream)
    for progress in RUN:
        lines(progress)
    return stream.getvalue()


def test_a_pipe_gets_milestones_only() -> None:
    assert said(io.StringIO()) == LINES


def test_a_terminal_gets_steps_in_between_at_most_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = said(Terminal())
    assert text.count("so far") == 1
    assert all(line.startswith("\x1b[2m") and line.endswith("\x1b[0m") for line in text.splitlines())
    assert "\r" not in text


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in said(Terminal())


def test_a_closed_pipe_does_not_stop_the_weighing() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    said(Closed())

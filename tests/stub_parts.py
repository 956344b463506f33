"""Stand-ins for what reads the records and what judges them, so that session and command line are tested alone.

`python -m stub_parts ...` is `weighbridge ...` with these in place. The environment variable STUB_VERDICT says what the
gradient's verdict is: right, wrong, inconclusive, unread, broken (a record that can't be read) or fault (a bug).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weighbridge.errors import InputError, RecordError
from weighbridge.outcome import Gradient, PieceWeight, Reported, Verdict
from weighbridge.readings import GradientReading, LoggedNumber
from weighbridge.weigh.session import Parts

READING = GradientReading(terms=(), epsilon=1e-7)


@dataclass
class StubAssembly:
    gradient: GradientReading | None = READING
    logged: tuple[LoggedNumber, ...] = ()
    world_size: int = 1
    microbatches: int = 1
    steps: int = 1
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    versions: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0"})
    saw_torch: bool = True
    saw_loss: bool = True
    comparable: bool = True
    left_out: bool = False
    not_finite: str = ""


def stub_parts(verdict: str, assembly: StubAssembly | None = None, reported: Verdict | None = None) -> Parts:
    def parse_objective(text: str) -> str:
        if text != "token-mean":
            raise InputError(f"objective is {text!r}. It is one of token-mean, ... Pass one of them.")
        return text

    def assemble(folder: Path) -> StubAssembly:
        if verdict == "broken":
            raise RecordError("line 3 of process-1.jsonl is no JSON. Run the command again.")
        if verdict == "fault":
            raise ZeroDivisionError("division by zero")
        return assembly or StubAssembly(gradient=None if verdict == "unread" else READING)

    def judge_gradient(reading: GradientReading, objective: Any) -> Gradient:
        piece = PieceWeight(step=0, rank=0, microbatch=0, tokens=5, relative_weight=1.0)
        return Gradient(
            verdict=Verdict(verdict),
            rule="token-mean",
            reason="the bands overlap" * (verdict == "inconclusive"),
            pieces=[piece],
        )

    def judge_reported(number: LoggedNumber, objective: Any) -> Reported | None:
        if reported is None:
            return None
        return Reported(name=number.name, source=number.source, verdict=reported, reason="few values")

    return Parts(parse_objective, assemble, judge_gradient, judge_reported)


if __name__ == "__main__":
    from weighbridge.cli import main

    Parts.load = classmethod(lambda cls: stub_parts(os.environ["STUB_VERDICT"]))  # type: ignore[method-assign]
    main()

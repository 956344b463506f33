"""Weighed ranks and what the verdict says of them, for tests of the weighing inside a process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ranks import run_ranks
from weighbridge.outcome import Gradient
from weighbridge.readings import GradientReading
from weighbridge.verdict import judge_gradient
from weighbridge.weigh.assemble import Assembled, assemble

__all__ = ["judge", "judge_step", "weigh"]


def weigh(
    folder: Path, cell: Callable[..., Any], world_size: int, *arguments: Any, steps: int = 9999, **options: Any
) -> tuple[list[Any], Assembled]:
    """Each rank's result of the weighed `cell`, and what its records amount to. No tracer, unless asked for."""
    text = json.dumps({"steps": steps, "tracer": False} | options)
    results = run_ranks(cell, world_size, *arguments, weighing=text, folder=folder)
    return results, assemble(folder)


def judge(found: Assembled, objective: str = "token-mean") -> Gradient:
    assert found.problems == []
    assert found.gradient is not None
    return judge_gradient(found.gradient, objective)


def judge_step(reading: GradientReading, step: int, objective: str = "token-mean") -> Gradient:
    """The verdict on one step alone: tests run many programs as the steps of one process group."""
    terms = [
        replace(term, tables=tuple(table for table in term.tables if table.step == step)) for term in reading.terms
    ]
    return judge_gradient(replace(reading, terms=tuple(term for term in terms if term.tables)), objective)

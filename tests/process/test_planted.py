"""Every rule planted in a real step on two or three gloo processes, and caught and named; right programs pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import loops
from ranks import run_ranks
from weighbridge.outcome import Verdict
from weighbridge.verdict import judge_gradient, judge_reported
from weighbridge.weigh.assemble import Assembled, assemble

# Three ranks, one of them empty; five microbatches, one of them empty everywhere. Told apart: all rules.
THREE = [[[], [8], [10], [], [14]], [[5], [4, 5], [6], [], [4, 5, 12]], [[], [], [], [], []]]
THREE_AGAIN = [[[3, 9], [2], [11], [], [6]], [[], [13], [1, 4], [], [7, 8]], [[], [], [], [], []]]
# Two ranks, three microbatches: where a fault would leave nothing on an empty rank.
TWO = [[[3, 5], [12], [1]], [[9], [2, 14], [6, 6]]]
TWO_AGAIN = [[[7], [4, 2], [10]], [[1, 1], [15], [8, 3]]]

FACTORS = {
    "scaled W": "W",
    "scaled 1/W": "1/W",
    "scaled M": "M",
    "scaled 1/M": "1/M",
    "scaled N/W": "N/W",
    "scaled N": "N",
}
SEEN_IN_THE_LOG = [fault for fault in loops.LOSSES if fault != "token-mean"]


def weighed(folder: Path, fault: str, steps: list[loops.Counts], world_size: int, **arguments: str) -> Assembled:
    run_ranks(loops.train, world_size, fault, steps, *arguments.values(), weighing='{"steps": 9}', folder=folder)
    return assemble(folder)


def expected_rule(fault: str) -> str:
    return fault.split(" ")[0]


@pytest.mark.parametrize("fault", [*SEEN_IN_THE_LOG, *loops.IN_GRADIENTS])
def test_planted_fault_is_caught_and_named(fault: str, tmp_path: Path, planted: Any) -> None:
    planted(planted=fault)
    three = fault in loops.LOSSES
    steps = [THREE, THREE_AGAIN] if three else [TWO, TWO_AGAIN]
    found = weighed(tmp_path, fault, steps, 3 if three else 2)
    assert found.gradient is not None
    assert found.problems == []
    gradient = judge_gradient(found.gradient, "token-mean")
    planted(gradient=f"{gradient.rule} {gradient.factor_name or ''}".strip())
    assert (gradient.verdict, gradient.rule) == (Verdict.WRONG, expected_rule(fault)), gradient
    if fault in FACTORS:
        assert gradient.factor_name is not None
        assert gradient.factor_name.split(",")[0] == FACTORS[fault]
    if fault in SEEN_IN_THE_LOG:
        logged = [judge_reported(number, "token-mean") for number in found.logged]
        planted(logged=", ".join(sorted({str(number.rule) for number in logged if number})))
        assert {(number.verdict, number.rule) for number in logged if number} == {(Verdict.WRONG, expected_rule(fault))}


@pytest.mark.parametrize(("steps", "world_size"), [([THREE, THREE_AGAIN], 3), ([TWO, TWO_AGAIN], 2)])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_right_step_is_right(steps: list[loops.Counts], world_size: int, optimizer: str, tmp_path: Path) -> None:
    found = weighed(tmp_path, "token-mean", steps, world_size, dtype="float32", optimizer=optimizer)
    assert found.gradient is not None
    gradient = judge_gradient(found.gradient, "token-mean")
    assert (gradient.verdict, gradient.rule) == (Verdict.RIGHT, "token-mean"), gradient
    logged = [judge_reported(number, "token-mean") for number in found.logged]
    assert [number.verdict for number in logged if number] == [Verdict.RIGHT] * world_size

"""No false alarm: right loops on random batches, in the gradient and in the logged number.

Each example is a process group that runs several batches as its steps: EXAMPLES times STEPS batches a kind of loop.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from judged import judge, weigh
from loops import LENGTH, Counts
from right_loops import train
from weighbridge.outcome import Verdict
from weighbridge.verdict import judge_reported

EXAMPLES, STEPS = 11, 5


@st.composite
def batches(draw: st.DrawFn) -> list[Counts]:
    """Counts of STEPS steps of one run: [rank][microbatch] -> tokens of each sequence."""
    world_size, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    tokens = st.one_of(st.integers(0, LENGTH), st.sampled_from([0, 1, LENGTH]))
    pieces = st.one_of(st.lists(tokens, max_size=3), st.just([]), st.just([1]))
    ranks = st.one_of(st.lists(pieces, min_size=microbatches, max_size=microbatches), st.just([[]] * microbatches))
    step = st.lists(ranks, min_size=world_size, max_size=world_size).filter(
        lambda counts: any(sum(piece) for own in counts for piece in own)
    )
    return draw(st.lists(step, min_size=STEPS, max_size=STEPS))


@pytest.mark.parametrize("kind", ["plain", "DDP"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(steps=batches(), seed=st.integers(0, 2**20))
def test_right_loop_raises_no_alarm(kind: str, steps: list[Counts], seed: int) -> None:
    world_size = len(steps[0])
    with tempfile.TemporaryDirectory() as folder:
        _, found = weigh(Path(folder), train, world_size, kind, steps, seed, tracer=True)
    gradient = judge(found)
    assert (gradient.verdict, gradient.rule) == (Verdict.RIGHT, "token-mean"), (steps, gradient)
    assert found.steps == STEPS
    logged = [judge_reported(number, "token-mean") for number in found.logged]
    assert len(logged) == world_size
    assert {number.verdict for number in logged if number} <= {Verdict.RIGHT, Verdict.INCONCLUSIVE}, (steps, logged)

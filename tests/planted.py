"""Tables with planted weights and planted losses, unequal by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from weighbridge.pieces import Row, Table
from weighbridge.readings import GradientReading, LoggedNumber, LoggedValue, WeighedTerm
from weighbridge.sums import Floats, Sums

FLOAT32 = 2.0**-23
BFLOAT16 = 2.0**-7

# counts[rank][microbatch] = tokens of each sequence. Rank 2 is empty, and so is microbatch 3 everywhere: this design
# gives every rule its own weights.
CELLS: list[list[list[int]]] = [
    [[], [8], [10], [], [14]],
    [[5], [4, 5], [6], [], [4, 5, 12]],
    [[], [], [], [], []],
]
# Two more steps of the same run, with other counts and the same world size and accumulation.
STEPS = (
    CELLS,
    [[[3], [7, 2], [11], [], [9]], [[], [6], [13], [], [2, 8]], [[], [], [], [], []]],
    [[[9, 4], [], [5], [], [17]], [[7], [3], [12], [], [6, 5]], [[], [], [], [], []]],
)

Weigh = Callable[[Sums], Floats]


def tables(steps: Sequence[Sequence[Sequence[Sequence[int]]]] = STEPS, *, length: int | None = 19) -> list[Table]:
    """One table a step; padded lengths differ by row so that padding can't pass for a sequence count."""
    made = []
    for step, counts in enumerate(steps):
        table = Table.from_counts(counts, length=length, step=step)
        rows = tuple(
            replace(row, length=None if length is None else length + (3 * row.rank + row.microbatch) % 5)
            for row in table.rows
        )
        made.append(replace(table, rows=rows))
    return made


def weighed(table: Table, weigh: Weigh, *, noise: float = 0.0, seed: int = 0) -> Table:
    """The table with `weigh`'s weights planted, each off by up to `noise`, relatively."""
    item = weigh(Sums([table.columns]))
    off = 1 + noise * np.random.default_rng([seed, table.step]).uniform(-1, 1, len(table.rows))
    weights = (item * table.columns.mass * off).tolist()
    rows = tuple(
        replace(row, weight=weight if row.mass > 0 else 0.0) for row, weight in zip(table.rows, weights, strict=True)
    )
    return replace(table, rows=rows)


def reading(*terms: WeighedTerm, epsilon: float = FLOAT32, **more: object) -> GradientReading:
    return GradientReading(terms=terms, epsilon=epsilon, **more)  # type: ignore[arg-type]


def planted(
    weigh: Weigh,
    steps: Sequence[Table] | None = None,
    *,
    noise: float = FLOAT32,
    epsilon: float = FLOAT32,
    **more: object,
) -> GradientReading:
    """A reading of one term whose weights are `weigh`'s in every step."""
    steps = tables() if steps is None else steps
    term = WeighedTerm("cross_entropy", tuple(weighed(table, weigh, noise=noise) for table in steps))
    return reading(term, epsilon=epsilon, **more)


def lossy(table: Table, *, seed: int = 0) -> Table:
    """The table with losses of about 2.5 a token, different in every row."""
    random = np.random.default_rng([seed, table.step])
    rows = tuple(replace(row, loss_sum=float(row.mass * random.uniform(1.5, 3.5))) for row in table.rows)
    return replace(table, rows=rows)


def traced(table: Table, rank: int, microbatch: int, constant: float) -> Table:
    """The table with a tracer constant on one piece."""
    rows = tuple(
        replace(row, constant=constant) if (row.rank, row.microbatch) == (rank, microbatch) else row
        for row in table.rows
    )
    return replace(table, rows=rows)


def rounds(steps: int = 12, *, constant: float = 4.0, seed: int = 0) -> list[Table]:
    """Steps of 2 ranks and 2 microbatches with unequal counts, the tracer going round; every fifth is untraced."""
    random = np.random.default_rng(seed)
    made = []
    for step in range(steps):
        counts = [
            [[int(n) for n in random.integers(3, 30, size=int(random.integers(1, 3)))] for _ in range(2)]
            for _ in range(2)
        ]
        table = lossy(Table.from_counts(counts, length=32, step=step), seed=seed)
        place = step % 5 - 1
        made.append(table if place < 0 else traced(table, place // 2, place % 2, constant))
    return made


def value_of(table: Table, weigh: Weigh) -> float:
    """What a number shows that is computed with `weigh`'s weights."""
    columns = table.columns
    counted = columns.mass > 0
    items = columns.loss_sum + columns.constant * columns.mass
    return float((weigh(Sums([columns])) * items)[counted].sum())


def logged(
    values: Sequence[float],
    windows: Sequence[Sequence[Table]],
    *,
    name: str = "loss",
    rank: int = 0,
    running: bool = False,
    phase: str = "training",
    epsilon: float = FLOAT32,
) -> LoggedNumber:
    return LoggedNumber(
        name,
        "test",
        phase,
        rank,
        tuple(LoggedValue(value, tuple(window), running) for value, window in zip(values, windows, strict=True)),
        epsilon,
    )


def sequence(rank: int, microbatch: int, tokens: int, **more: object) -> Row:
    return Row(rank, microbatch, 0, tokens, float(tokens), 0.0, **more)  # type: ignore[arg-type]

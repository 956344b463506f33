"""Shows an outcome in a terminal: verdict, rule, the table of pieces with bars, and what to change.

It reads at 80 columns and without colour: every bar has its number, and every verdict its word.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weighbridge.outcome import Outcome, Verdict
from weighbridge.reports.grid import Grid, Line, format_weight, log_scale, piece_grid
from weighbridge.reports.layout import Block, blocks, clean, facts, headline, uneven_sequences

__all__ = ["bar", "print_outcome"]

STYLES = {Verdict.RIGHT: "bold green", Verdict.WRONG: "bold red", Verdict.INCONCLUSIVE: "bold yellow"}
WEIGHT_WIDTH = 10
FIXED_WIDTH = 4 + 10 + 8 + 3 * 2  # rank, microbatch, tokens, and two blanks after each
STEP_WIDTH = 4
NARROWEST_BAR, WIDEST_BAR = 11, 31


def print_outcome(outcome: Outcome, stream: TextIO | None = None, *, width: int | None = None) -> None:
    """Print the report to `stream` (stdout); `width` is the terminal's own where it is not given."""
    console = Console(file=stream or sys.stdout, width=width, highlight=False, emoji=False, markup=False)
    words, rule = headline(outcome)
    console.print()
    title = Text(words, style=STYLES[outcome.verdict])
    if rule:
        title.append(f": {clean(rule)}")
    console.print(title)
    if outcome.reason:
        console.print(clean(outcome.reason))
    console.print(Text(clean(", ".join(facts(outcome))), style="dim"))
    console.print(Text(clean(shlex.join(outcome.command)), style="dim"))
    grid = piece_grid(outcome)
    if grid.lines:
        _print_grid(console, grid)
    _print_list(console, "Sequences of one microbatch that weigh differently", uneven_sequences(outcome))
    for block in blocks(outcome):
        _print_block(console, block)
    _print_list(console, "Problems", outcome.problems)
    _print_list(console, "Notes", outcome.notes)
    if outcome.unrelated:
        console.print()
        console.print(clean(f"Logged, but not made from the weighed losses: {', '.join(outcome.unrelated)}."))


def bar(weight: float | None, scale: float, width: int, *, blocks_allowed: bool = True) -> str:
    """A bar from the middle, 1, to the left (less) or the right (more); `scale` is the log of a full one."""
    half = (width - 1) // 2
    middle, full, left_half, right_half = "│█▐▌" if blocks_allowed else "|#  "
    if weight is None or math.isnan(weight):
        return " " * half + middle + " " * half
    log = math.log(weight) if 0 < weight < math.inf else math.copysign(math.inf, weight - 1)
    halves = round(min(abs(log) / scale, 1.0) * half * 2)
    cells = full * (halves // 2)
    if log < 0:
        cells = (left_half if halves % 2 else "") + cells
        return cells.rjust(half) + middle + " " * half
    return " " * half + middle + (cells + (right_half if halves % 2 else "")).ljust(half)


def _print_grid(console: Console, grid: Grid) -> None:
    fixed_width = FIXED_WIDTH + (STEP_WIDTH + 2 if grid.several_steps else 0)
    room = console.width - fixed_width - NARROWEST_BAR - 2
    shown = max(1, min(len(grid.columns), room // (WEIGHT_WIDTH + 2)))
    spare = console.width - fixed_width - shown * (WEIGHT_WIDTH + 2) - 2
    bar_width = max(NARROWEST_BAR, min(WIDEST_BAR, spare)) // 2 * 2 - 1
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    steps = [("step", STEP_WIDTH)] if grid.several_steps else []
    for name, width in (*steps, ("rank", 4), ("microbatch", 10), ("tokens", 8)):
        table.add_column(name, justify="right", min_width=width, no_wrap=True)
    for index, column in enumerate(grid.columns[:shown]):
        table.add_column(
            Text(clean(column.title)), justify="right", width=WEIGHT_WIDTH, no_wrap=True, overflow="ellipsis"
        )
        if index == 0:
            table.add_column(Text("1".center(bar_width)), width=bar_width, no_wrap=True)
    scale, blocks_allowed = log_scale(grid), not console.options.ascii_only
    for line in grid.lines:
        weights = [_weight(cell.weight, cell.inferred) for cell in line.cells[:shown]]
        drawn = Text(bar(line.cells[0].weight, scale, bar_width, blocks_allowed=blocks_allowed), style="cyan")
        table.add_row(*_place(line, grid), weights[0], drawn, *weights[1:])
    console.print()
    console.print(f"Relative weight of a token; 1 is right. {grid.caption}".rstrip())
    console.print()
    console.print(table)
    _print_under_grid(console, grid, shown)


def _place(line: Line, grid: Grid) -> list[str]:
    step = ["-" if line.step is None else str(line.step)] if grid.several_steps else []
    return [*step, str(line.rank), str(line.microbatch), str(line.tokens)]


def _print_under_grid(console: Console, grid: Grid, shown: int) -> None:
    if len(grid.lines) < grid.total:
        console.print(f"{len(grid.lines)} of {grid.total} pieces: those whose weights lie farthest from 1.")
    if any(cell.inferred for line in grid.lines for cell in line.cells[:shown]):
        console.print("~ follows from the rule, was not read by itself.")
    if shown < len(grid.columns):
        rest = ", ".join(column.title for column in grid.columns[shown:])
        console.print(clean(f"No room for {rest}: see below, --json or --html."))
    if grid.other_steps:
        console.print(grid.other_steps)


def _weight(weight: float | None, inferred: bool) -> str:
    return f"~{format_weight(weight)}" if inferred and weight is not None else format_weight(weight)


def _print_block(console: Console, block: Block) -> None:
    console.print()
    title = Text(clean(block.title), style="bold")
    title.append(": ", style="not bold")
    title.append(block.verdict.value, style=STYLES[block.verdict])
    if block.rule:
        title.append(f", {clean(block.rule)}", style="not bold")
    console.print(title)
    for label, sentence in block.sentences:
        text = Text(f"{label}: " if label else "", style="bold")
        text.append(clean(sentence), style="not bold")
        _print_indented(console, text)


def _print_list(console: Console, title: str, items: Sequence[str]) -> None:
    if not items:
        return
    console.print()
    console.print(Text(title, style="bold"))
    for item in items:
        _print_indented(console, Text(clean(item)))


def _print_indented(console: Console, text: Text) -> None:
    for line in text.wrap(console, console.width - 2):
        line.rstrip()
        console.print(Text("  ").append_text(line), soft_wrap=True)

"""Writes an outcome as one page that opens without a network and needs no script.

All text goes through the template's escaping, and the page's own policy forbids scripts and any loading as well.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from weighbridge.outcome import Outcome
from weighbridge.reports.chart import MOST_ROWS, MOST_SERIES, chart
from weighbridge.reports.grid import Grid, distance, format_weight, log_scale, piece_grid
from weighbridge.reports.json import write_whole
from weighbridge.reports.layout import blocks, clean, facts, headline, lead_finding, uneven_sequences

__all__ = ["to_html", "write_html"]

WIDE, NARROW = 720, 340
MOST_LINES = 500  # a longer table shows its most extreme pieces; --json has all
SYMBOLS = {"right": "✓", "wrong": "✕", "inconclusive": "?"}


def write_html(outcome: Outcome, path: Path) -> None:
    """Write the `--html` file."""
    write_whole(path, to_html(outcome))


def to_html(outcome: Outcome, *, written: datetime | None = None) -> str:
    """The page as text; `written` is the time it names, now where it is not given."""
    from jinja2 import Environment, StrictUndefined

    source = (files("weighbridge.reports") / "templates" / "page.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_cleaned
    )
    environment.filters["weight"] = format_weight
    words, rule = headline(outcome)
    grid = piece_grid(outcome, limit=MOST_LINES)
    written = written or datetime.now(UTC)
    return environment.from_string(source).render(
        outcome=outcome,
        words=words,
        rule=rule,
        lead=lead_finding(outcome),
        symbol=SYMBOLS[outcome.verdict],
        facts=facts(outcome),
        blocks=blocks(outcome),
        grid=grid,
        evaluation=piece_grid(outcome, limit=MOST_LINES, phase="evaluation"),
        charts=_charts(piece_grid(outcome, limit=None)),
        legend=_legend(grid),
        is_map=grid.total > MOST_ROWS,
        bar=_bar(grid),
        sequences=uneven_sequences(outcome, limit=20),
        command=shlex.join(outcome.command),
        symbols=SYMBOLS,
        written=written.strftime("%Y-%m-%d %H:%M UTC"),
    )


def _cleaned(value: Any) -> Any:
    """Control characters in texts are shown as escapes; markup (the charts) is left as it is."""
    return clean(value) if type(value) is str else value


def _charts(grid: Grid) -> list[Any]:
    from markupsafe import Markup

    if not grid.lines or not grid.columns:
        return []
    return [Markup(chart(grid, width=WIDE, name="wide")), Markup(chart(grid, width=NARROW, name="narrow"))]


def _legend(grid: Grid) -> list[tuple[str, str]]:
    """What each mark in the chart stands for: (CSS class of the mark, name)."""
    return [(f"mark-{index}", column.title) for index, column in enumerate(grid.columns[:MOST_SERIES])]


def _bar(grid: Grid) -> Any:
    """A function that gives a weight's bar in the table: (side, percent of the half that it fills)."""
    scale = log_scale(grid)

    def bar(weight: float | None) -> tuple[str, int]:
        if weight is None or weight != weight:
            return "more", 0
        share = min(distance(weight) / scale, 1.0)
        return ("less" if weight < 1 else "more"), round(100 * share)

    return bar

"""The chart of relative weights, as inline SVG that follows the page's colours.

Few pieces get a row each: a line from 1 to a mark, the gradient beside the reported numbers, on a log scale so that
twice and half are equally far from 1. Many pieces get a map, ranks down and microbatches across. matplotlib draws with
placeholder colours, which are then replaced by CSS variables; so one drawing serves light and dark pages.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weighbridge.reports.grid import Grid, Line, format_weight, log_scale
from weighbridge.reports.layout import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MARKS", "MOST_ROWS", "chart"]

MOST_ROWS = 40  # more pieces than this are drawn as a map
MOST_SERIES = 4  # more columns than this stay in the table
MARKS = "osD^"  # circle, square, diamond, triangle: told apart without colour
TEXT, GRID = "#010101", "#020202"
SERIES = ("#040404", "#050505", "#060606", "#070707")  # these six become CSS variables
# Marks of the axis: a ratio, and what stands for its inverse in round numbers.
RATIOS = {1.02: 0.98, 1.05: 0.95, 1.1: 0.9, 1.25: 0.8, 1.5: 0.67, 2: 0.5, 3: 0.33, 5: 0.2}
RATIOS |= {10.0**power * step: 10.0**-power / step for power in range(1, 7) for step in (1, 2, 5)}
# Blue, through a pale middle, to orange: told apart in every common kind of colour blindness.
ABSENT = "#8f8f8f"
MAP_COLOURS = ("#0b4f8a", "#5a9bd0", "#f2f0ea", "#e59a4f", "#a34700")
POINTS = 1 / 72


def chart(grid: Grid, *, width: int, name: str) -> str:
    """The chart of `grid` as an `<svg>` element `width` CSS pixels wide; `name` makes its ids its own."""
    import matplotlib
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "text.parse_math": False,
        "font.size": 12,
        "text.color": TEXT,
        "axes.edgecolor": GRID,
        "axes.labelcolor": TEXT,
        "xtick.color": TEXT,
        "ytick.color": TEXT,
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks is drawn by the browser's
        figure = Figure(dpi=72, layout="constrained")
        if len(grid.lines) <= MOST_ROWS:
            _draw_rows(figure, grid, width)
        else:
            _draw_maps(figure, grid, width)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), grid, name)


def _draw_rows(figure: Figure, grid: Grid, width: int) -> None:
    series = min(len(grid.columns), MOST_SERIES)
    row_height = 16 + 11 * series
    figure.set_size_inches(width * POINTS, (row_height * len(grid.lines) + 56) * POINTS)
    axes = figure.add_subplot()
    scale = log_scale(grid) * 1.12
    axes.set_xlim(-scale, scale)
    axes.set_ylim(len(grid.lines) - 0.4, -0.6)
    axes.axvline(0, color=TEXT, linewidth=1.2)
    for row, line in enumerate(grid.lines):
        if row and line.rank != grid.lines[row - 1].rank:
            axes.axhline(row - 0.5, color=GRID, linewidth=0.8)
        for index, cell in enumerate(line.cells[:series]):
            y = row + (index - (series - 1) / 2) * 11 / row_height
            _draw_weight(axes, cell.weight, y, scale, index)
    _name_rows(axes, grid.lines, wide=width > 500)
    ticks = _ticks(scale / 1.12)
    axes.set_xticks([math.log(tick) for tick in ticks], [f"{tick:.3g}" for tick in ticks])
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("relative weight of a token")
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)


def _draw_weight(axes: Axes, weight: float | None, y: float, scale: float, index: int) -> None:
    if weight is None:
        return
    colour = SERIES[index]
    if 0 < weight < math.inf:
        x = math.log(weight)
        axes.plot([0, x], [y, y], color=colour, linewidth=2.2, solid_capstyle="round")
        face = colour if index == 0 else "none"
        axes.plot([x], [y], MARKS[index], color=colour, markerfacecolor=face, markersize=7, markeredgewidth=1.8)
        return
    edge = scale if weight == math.inf else -scale
    anchor = "right" if weight == math.inf else "left"
    axes.text(edge, y, f" {format_weight(weight)} ", color=colour, ha=anchor, va="center", fontsize=11, weight="bold")


def _name_rows(axes: Axes, lines: Sequence[Line], *, wide: bool) -> None:
    step, rank, microbatch, comma = ("step ", "rank ", "microbatch ", ", ") if wide else ("s", "r", "m", " ")
    names = [f"{rank}{line.rank}{comma}{microbatch}{line.microbatch}" for line in lines]
    if len({line.step for line in lines}) > 1:
        names = [f"{step}{line.step}{comma}{name}" for line, name in zip(lines, names, strict=True)]
    axes.set_yticks(range(len(lines)), names)
    axes.tick_params(axis="both", length=0, pad=6)
    tokens = axes.secondary_yaxis("right")
    tokens.set_yticks(range(len(lines)), [f"{line.tokens}" + (" tokens" if wide else " tok") for line in lines])
    tokens.tick_params(length=0, pad=6)
    tokens.spines["right"].set_visible(False)


def _ticks(scale: float) -> list[float]:
    """1, and two nice ratios with their inverses, the larger one near the end of the scale."""
    fitting = [ratio for ratio in RATIOS if math.log(ratio) <= scale * 1.02]
    outer = fitting[-1] if fitting else min(RATIOS)
    inner = [ratio for ratio in fitting if 0.3 <= math.log(ratio) / math.log(outer) <= 0.7]
    ratios = [outer, *inner[:1]]
    return sorted([1.0, *ratios, *(RATIOS[ratio] for ratio in ratios)])


def _draw_maps(figure: Figure, grid: Grid, width: int) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    shown = grid.columns[:MOST_SERIES]
    ranks = max(line.rank for line in grid.lines) + 1
    microbatches = max(line.microbatch for line in grid.lines) + 1
    across = len(shown) if width > 500 else 1
    down = math.ceil(len(shown) / across)
    height = min(max(14 * ranks, 110), 420) + 54
    figure.set_size_inches(width * POINTS, (height * down + 60) * POINTS)
    panels = figure.subplots(down, across, squeeze=False)
    colours = LinearSegmentedColormap.from_list("weights", MAP_COLOURS).with_extremes(bad=ABSENT)
    limit = log_scale(grid)
    norm = Normalize(-limit, limit)
    for index, panel in enumerate(panels.flat[: len(shown)]):
        values = [[math.nan] * microbatches for _ in range(ranks)]
        for line in grid.lines:
            values[line.rank][line.microbatch] = _clamped_log(line.cells[index].weight, limit)
        panel.pcolormesh(
            values, cmap=colours, norm=norm, edgecolors="face", linewidth=0.4, rasterized=ranks * microbatches > 1000
        )
        panel.invert_yaxis()
        _name_map(panel, clean(shown[index].title), ranks, microbatches, first=index % across == 0)
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=panels, orientation="horizontal", fraction=0.05, aspect=40)
    ticks = _ticks(log_scale(grid))
    bar.set_ticks([math.log(tick) for tick in ticks], labels=[f"{tick:.3g}" for tick in ticks])
    bar.outline.set_visible(False)
    bar.set_label("relative weight of a token")


def _name_map(panel: Axes, title: str, ranks: int, microbatches: int, *, first: bool) -> None:
    def places(number: int, most: int) -> list[int]:
        return list(range(0, number, max(1, math.ceil(number / most))))

    panel.set_title(title if len(title) <= 28 else f"{title[:27]}…", fontsize=12)
    panel.set_xticks([place + 0.5 for place in places(microbatches, 8)], [str(p) for p in places(microbatches, 8)])
    panel.set_yticks([place + 0.5 for place in places(ranks, 16)], [str(p) for p in places(ranks, 16)])
    panel.tick_params(length=0)
    panel.set_xlabel("microbatch")
    if first:
        panel.set_ylabel("rank")
    for spine in panel.spines.values():
        spine.set_visible(False)


def _clamped_log(weight: float | None, limit: float) -> float:
    if weight is None or math.isnan(weight):
        return math.nan
    if weight <= 0:
        return -limit
    return min(math.log(weight), limit) if weight < math.inf else limit


def _inline(svg: str, grid: Grid, name: str) -> str:
    """The drawing without what only a file needs, with a title and a description for those who can't see it."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"#0([1-7])(?:0\1){2}", r"var(--chart-\1)", svg)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    title, description = "Relative weight by rank and microbatch", _describe(grid)
    opening = f'<svg role="img" aria-labelledby="{name}-title {name}-desc" class="chart-{name}"'
    body = svg.removeprefix("<svg")
    head, _, rest = body.partition(">")
    return (
        f'{opening}{head}><title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-desc">{html.escape(description)}</desc>{rest}'
    )


def _describe(grid: Grid) -> str:
    parts: list[Any] = []
    for index, column in enumerate(grid.columns[:MOST_SERIES]):
        weights = [line.cells[index].weight for line in grid.lines]
        finite = [weight for weight in weights if weight is not None and math.isfinite(weight)]
        if finite:
            low, high = format_weight(min(finite)), format_weight(max(finite))
            parts.append(
                f"{clean(column.title)}: all {low}" if low == high else f"{clean(column.title)}: {low} to {high}"
            )
    return f"{len(grid.lines)} pieces. 1 is right. {'; '.join(parts)}."

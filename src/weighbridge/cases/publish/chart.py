"""The weight chart of an exhibit: how much a token of each microbatch weighed in the gradient, beside the right 1.

It is drawn as SVG by hand, since it is a few bars with their numbers, and reads without colour: every bar has its
value written beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

__all__ = ["weight_chart"]

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 640, 30, 250, 80, 26


def weight_chart(pieces: Sequence[dict[str, Any]], title: str) -> Markup:
    """An SVG of one bar a piece; the scale ends at the largest weight, and a line marks 1."""
    largest = max(1.0, *(float(piece["weight"]) for piece in pieces))
    scale = (_WIDTH - _LEFT - _RIGHT) / largest
    height = _TOP + _ROW * len(pieces) + 6
    one = _LEFT + scale
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}" class="chart">',
        f'<text x="{one:.1f}" y="16" text-anchor="middle" class="quiet">1</text>',
    ]
    for index, piece in enumerate(pieces):
        parts.append(_bar(piece, _TOP + _ROW * index, scale))
    parts.append(f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{_TOP - 4}" y2="{height - 4}" class="mark"/></svg>')
    return Markup("\n".join(parts))


def _bar(piece: dict[str, Any], top: int, scale: float) -> str:
    weight = float(piece["weight"])
    width = max(weight * scale, 1.0)
    middle = top + _ROW / 2 + 1
    tokens = "1 token" if piece["tokens"] == 1 else f"{piece['tokens']} tokens"
    label = f"rank {piece['rank']}, microbatch {piece['microbatch']}: {tokens}"
    return (
        f'<text x="0" y="{middle:.1f}">{escape(label)}</text>'
        f'<rect x="{_LEFT}" y="{top + 3}" width="{width:.1f}" height="{_ROW - 10}" rx="3"/>'
        f'<text x="{_LEFT + width + 8:.1f}" y="{middle:.1f}">{weight:.4f}</text>'
    )

"""The page: self-contained, escaped, with verdict and chart."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

import outcomes
from weighbridge.reports.chart import chart
from weighbridge.reports.grid import piece_grid
from weighbridge.reports.html import to_html, write_html

ALL = ["right", "wrong", "inconclusive", "large", "with_nan", "several_terms", "hostile"]


class Elements(HTMLParser):
    """All start tags with their attributes, and the text outside of styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._in_style = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if not self._in_style:
            self.text += f"{data} "


@pytest.mark.parametrize("name", ALL)
def test_the_page_runs_nothing_and_loads_nothing(name: str) -> None:
    page = to_html(getattr(outcomes, name)())
    elements = Elements(page)
    assert {"script", "img", "link", "iframe", "object", "a"}.isdisjoint(
        tag for tag, _ in elements.tags if tag != "image"
    )
    for _, attributes in elements.tags:
        assert not any(key.startswith("on") for key in attributes)
        for key in ("src", "href", "xlink:href"):
            value = attributes.get(key)
            assert value is None or value.startswith(("#", "data:image/png"))
    assert re.findall(r"url\((?!#)", page) == []
    assert "@import" not in page


@pytest.mark.parametrize("name", ALL)
def test_verdict_command_and_versions_are_there(name: str) -> None:
    outcome = getattr(outcomes, name)()
    elements = Elements(to_html(outcome, written=datetime(2026, 12, 1, 14, 5, tzinfo=UTC)))
    words = {"right": "Right", "wrong": "Wrong", "inconclusive": "Could not tell"}[outcome.verdict]
    assert words in elements.text
    assert "2026-12-01 14:05 UTC" in elements.text
    assert outcome.command[0] in elements.text
    drawings = [attributes for tag, attributes in elements.tags if tag == "svg"]
    assert len(drawings) == (0 if name == "inconclusive" else 2)
    assert all(drawing["role"] == "img" for drawing in drawings)


def test_wrong_shows_what_a_reader_needs() -> None:
    text = " ".join(Elements(to_html(outcomes.wrong())).text.split())
    for part in [
        "mean-of-rank-means times W (2)",
        "What to change Divide each rank's loss sum",
        "This batch could not tell it from weighted-by-sequences",
        "Precision right within 9.5e-07 of 1",
        "4 pieces. 1 is right. gradient: 0.7981 to 1.3387; loss: 0.8000 to 1.3400.",
        "transformers 5.24.0",
        "rank 1 of 2 (process 4711) died",
    ]:
        assert part in text


def test_hostile_names_are_text() -> None:
    page = to_html(outcomes.hostile())
    assert "<script" not in page
    assert "{{ 7 * 7 }}" in page, "a story is no template"
    assert "\x1b" not in page
    assert "\\x1b[31m" in page
    assert page.count("</svg>") == 2


def test_ids_are_unique() -> None:
    ids = re.findall(r'\sid="([^"]+)"', to_html(outcomes.wrong()))
    assert sorted(set(ids)) == sorted(ids)


def test_many_pieces_become_a_map() -> None:
    page = to_html(outcomes.large())
    assert "Show 200 pieces" in page
    assert len(to_html(outcomes.large(64, 64))) < 2_000_000
    assert "500 of 4096 pieces" in to_html(outcomes.large(64, 64))


def test_the_chart_follows_the_colours_of_the_page() -> None:
    drawing = chart(piece_grid(outcomes.wrong()), width=720, name="wide")
    assert "var(--chart-4)" in drawing
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawing)) == set()


def test_the_same_outcome_gives_the_same_page() -> None:
    written = datetime(2026, 12, 1, tzinfo=UTC)
    assert to_html(outcomes.wrong(), written=written) == to_html(outcomes.wrong(), written=written)


def test_the_page_is_written_as_utf8(tmp_path: Path) -> None:
    write_html(outcomes.wrong(), tmp_path / "page.html")
    assert "✕" in (tmp_path / "page.html").read_text(encoding="utf-8")

"""The page in a real browser: verdict and chart are there, and something is drawn."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from matplotlib.image import imread

import outcomes
from weighbridge.reports.html import write_html

pytestmark = pytest.mark.browser
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


@pytest.fixture(scope="module")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    message = "Chromium is not installed; the page can't be looked at. Run: apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def browse(chromium: str, page: Path, folder: Path, *flags: str) -> str:
    command = [chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.parametrize("name", ["wrong", "right", "large", "hostile"])
def test_verdict_and_chart_are_in_the_document(name: str, chromium: str, tmp_path: Path) -> None:
    outcome = getattr(outcomes, name)()
    page = tmp_path / "page.html"
    write_html(outcome, page)
    document = browse(chromium, page, tmp_path, "--dump-dom")
    assert f'<section class="verdict {outcome.verdict}" id="verdict">' in document
    assert outcome.gradient.rule in document
    assert document.count("<svg") == 2
    assert "Relative weight by rank and microbatch</title>" in document
    assert "<script" not in document


@pytest.mark.parametrize("width", [1000, 500])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_and_its_chart_are_drawn(scheme: str, width: int, chromium: str, tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    write_html(outcomes.wrong(), page)
    theme = f"--blink-settings=preferredColorScheme={'0' if scheme == 'dark' else '1'}"
    browse(chromium, page, tmp_path, f"--window-size={width},900", theme, f"--screenshot={picture}")
    pixels = (imread(picture)[..., :3] * 255).round().astype(int)
    paper = pixels[2, 2]
    assert (paper.mean() < 60) == (scheme == "dark")
    assert (abs(pixels - paper).max(axis=-1) > 40).mean() > 0.02, "the page is blank"
    blue, orange = ((98, 181, 240), (243, 154, 74)) if scheme == "dark" else ((11, 102, 168), (192, 83, 0))
    for colour in (blue, orange):  # the marks of the gradient and of the reported loss
        assert (abs(pixels - colour).max(axis=-1) <= 2).sum() > 50

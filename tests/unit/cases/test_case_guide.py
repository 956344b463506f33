"""docs/adding-a-case.md is followed to the letter: its four files are put into a folder, and verified."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from weighbridge.commands.cases import cases

GUIDE = Path(__file__).parents[3] / "docs" / "adding-a-case.md"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A catalogue of one entry: the guide's code blocks, each named by the text before it."""
    blocks = re.findall(r"^`([\w.]+)`[^\n]*\n\n```\w+\n(.*?)^```", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["case.toml", "failing.py", "unsuccessful.py", "repair.py"]
    folder = tmp_path / "mine" / "last-rank-twice"
    folder.mkdir(parents=True)
    for name, text in blocks:
        (folder / name).write_text(text, "utf-8")
    return folder.parent


def test_the_template_holds(mine: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cases, ["verify", "last-rank-twice", "--catalogue", str(mine), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    assert "1 of 1 entries hold; 9 programs run" in done.output
    assert len(list((tmp_path / "out" / "records" / "last-rank-twice").glob("*.json"))) == 9


def test_the_template_is_shown_and_published(mine: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(cases, ["show", "WB-0099", "--catalogue", str(mine)])
    assert shown.exit_code == 0, shown.output
    assert "The last rank twice" in shown.output
    for tier in ("open", "member"):
        site = tmp_path / tier
        done = CliRunner().invoke(cases, ["publish", "--tier", tier, "--out", str(site), "--catalogue", str(mine)])
        assert done.exit_code == 0, done.output
        assert (site / "entries" / "last-rank-twice.html").exists()

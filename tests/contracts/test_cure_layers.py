"""Which modules of the cure import which others of ours: a checker must not share code with what it checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "weighbridge"
ALLOWED = {
    "exact": {"errors", "exact"},
    "mean.py": {"errors", "exact"},
    "collectives": {"errors", "collectives"},
    "tally": {"errors", "exact", "mean", "collectives", "tally"},
    "training": {"errors", "exact", "mean", "collectives", "training"},
    "integrations": {"errors", "tally", "training", "integrations"},
    "rows.py": {"errors"},
}


def imported(path: Path) -> set[str]:
    """Our modules that a file imports, by the first part of their names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("weighbridge.")}
    return found


@pytest.mark.parametrize("layer", ALLOWED)
def test_the_cure_imports_only_what_lies_below(layer: str) -> None:
    place = SOURCE / layer
    files = [place] if place.is_file() else sorted(place.glob("*.py"))
    assert files
    for path in files:
        assert imported(path) <= ALLOWED[layer], path

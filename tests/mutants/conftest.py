"""Mutants are graded only where they are asked for (`make mutants`, or `pytest -m mutants`): it takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "mutants" in config.option.markexpr:
        return
    slow = [item for item in items if item.path.is_relative_to(HERE)]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]

"""Exhibits run only where they are asked for (`make exhibits`, `pytest -m exhibits`): each is a real training run."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "exhibits" in config.option.markexpr:
        return
    slow = [item for item in items if item.path.is_relative_to(HERE)]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]

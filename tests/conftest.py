"""What all tests share: what runs by default, skips that CI does not forgive, and the table of planted faults."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

SLOW = ("exhibits", "mutants")  # these have a make target of their own
FORGIVEN = ("this processor can't flush subnormals",)


def pytest_configure() -> None:
    """Ctrl-C is tested, and a shell that starts pytest in the background makes it ignored in all that pytest starts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has a target of its own, unless -m asks for it."""
    asked = str(config.getoption("markexpr"))
    slow = [item for item in items if any(name not in asked and item.get_closest_marker(name) for name in SLOW)]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Where CI is set everything is installed: a skip for a missing dependency is a failure."""
    report = yield
    reason = str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, tuple) else ""
    forgiven = hasattr(report, "wasxfail") or any(text in reason for text in FORGIVEN)
    if report.skipped and os.environ.get("CI") and not forgiven:
        report.outcome, report.longrepr = "failed", f"skipped, and CI is set: {reason}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line a planted fault: what was planted, what the gradient's and the logged number's verdicts named."""
    rows = [
        dict(report.user_properties) | {"passed": report.outcome == "passed"}
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call" and any(name == "planted" for name, _ in report.user_properties)
    ]
    if not rows:
        return
    terminalreporter.section("planted faults, caught and named")
    width = max(len(str(row["planted"])) for row in rows)
    for row in sorted(rows, key=lambda row: str(row["planted"])):
        logged = f"logged number: {row['logged']}" if row.get("logged") else "does not show in the logged number"
        mark = "ok " if row["passed"] else "NOT"
        terminalreporter.line(f"{mark} {row['planted']!s:{width}}  gradient: {row.get('gradient', '?')}; {logged}")
    caught = sum(row["passed"] for row in rows)
    terminalreporter.line(f"{caught} of {len(rows)} planted faults caught and named")


@pytest.fixture
def planted(record_property: Any) -> Any:
    """Call with planted=, gradient=, logged= to put a row into that table."""

    def row(**fields: str) -> None:
        for name, value in fields.items():
            record_property(name, value)

    return row

"""What all tests share: the table of planted faults at the end of a run."""

from __future__ import annotations

from typing import Any

import pytest


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

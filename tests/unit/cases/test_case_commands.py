"""`weighbridge cases`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from weighbridge.cases.catalogue import MECHANISMS
from weighbridge.cases.entry import Implementation, load_entry
from weighbridge.cases.programs import published_program
from weighbridge.commands.cases import cases

FOUNDING = load_entry(MECHANISMS / "mean-of-rank-means")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cases, arguments)


def table_of(output: str) -> dict[str, list[str]]:
    """The outcome table of an output: check to actual, expected, result."""
    rows = {}
    for line in output.splitlines():
        words = line.split()
        if words and words[-1] in ("pass", "FAIL"):
            rows[" ".join(words[:-3])] = words[-3:]
    return rows


# Written by another hand, in the format and nothing else: no line of it is generated from our entry.
FOREIGN = """
import json, sys
N = 1
def solve(rows):
    means = [s / c if c else 0.0 for s, c in rows]
    return sum(means) / len(means) if means else None
checks = [("unequal tokens", [[N,1],[9*N,3]], 2.5*N),
          ("equal token split", [[2*N,2],[4*N,2]], 1.5*N), ("empty", [], None), ("zero counts", [[N,0]], None),
          ("zero worker ignored", [[N,0],[6*N,2]], 3*N), ("single batch", [[5*N,5]], N)]
obs = [{"check": l, "actual": solve(g), "expected": e, "passed": solve(g) == e} for l, g, e in checks]
ok = all(o["passed"] for o in obs)
print("checking", len(obs))
print(json.dumps({"observations": obs, "passed": ok}))
sys.exit(0 if ok else 1)
"""


def test_run_gives_the_founding_table_for_a_program_from_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "foreign.py"
    path.write_text(FOREIGN)
    done = invoke("run", str(path))
    assert done.exit_code == 1
    assert table_of(done.output) == {
        "unequal tokens": ["2.0", "2.5", "FAIL"],
        "equal token split": ["1.5", "1.5", "pass"],
        "empty": ["None", "None", "pass"],
        "zero counts": ["0.0", "None", "FAIL"],
        "zero worker ignored": ["1.5", "3", "FAIL"],
        "single batch": ["1.0", "1", "pass"],
    }
    for part in ("exit status   1", "SHA-256", "Python 3.", "weighbridge 0.", "time"):
        assert part in done.output


def test_run_as_json_and_its_exit_status(tmp_path: Path) -> None:
    path = tmp_path / "repair.py"
    path.write_text(published_program(FOUNDING, Implementation.REPAIR, n=2))
    done = invoke("run", str(path), "--json")
    assert done.exit_code == 0
    assert json.loads(done.output)["passed"] is True
    path.write_text("print('hello')")
    done = invoke("run", str(path))
    assert done.exit_code == 1
    assert "The program prints no JSON object on its last line." in done.output


def test_list_and_show() -> None:
    done = invoke("list")
    assert "WB-0001  mean-of-rank-means" in done.output
    assert "35 entries." in done.output
    done = invoke("show", "FA-99256")
    for part in ("Contract", "def solve(rows):", "unequal tokens", "Looks right, and is not", "pytorch#31579"):
        assert part in done.output


@pytest.mark.parametrize(("which", "status"), [("repair", 0), ("failing", 1)])
def test_grade(which: str, status: int, tmp_path: Path) -> None:
    candidate = MECHANISMS / "mean-of-rank-means" / f"{which}.py"
    done = invoke("grade", "mean-of-rank-means", str(candidate))
    assert done.exit_code == status
    assert ("36 of 36 checks" in done.output) is (status == 0)
    assert "held back" in done.output
    done = invoke("grade", "WB-0001", str(candidate), "--json", "--seed", "5")
    assert done.exit_code == status
    assert json.loads(done.output)["passed"] is (status == 0)


def test_split() -> None:
    done = invoke("split", "--ratios", "60/20/20", "--seed", "3", "--json")
    assert sum(map(len, json.loads(done.output).values())) == 35
    assert "train (" in invoke("split").output


def test_verify_says_k_of_k(tmp_path: Path) -> None:
    done = invoke("verify", "WB-0021", "count-dtype", "--out", str(tmp_path))
    assert done.exit_code == 0
    assert "2 of 2 entries hold; 18 programs run" in done.output


@pytest.mark.parametrize("arguments", [("show", "nothing"), ("verify", "WB-9999"), ("split", "--ratios", "1/2")])
def test_a_wrong_word_is_told(arguments: tuple[str, ...]) -> None:
    done = invoke(*arguments)
    assert done.exit_code != 0
    assert "InputError" in repr(done.exception)

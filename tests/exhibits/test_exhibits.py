"""Every exhibit on real gloo processes: weigh names the fault by the right rule, or the reported number is wrong.

What was observed is written to exhibit.json beside the exhibit, from which the site draws its chart; a run that
observes something else than the file says fails. To observe anew after a change, delete the file and run this again.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weighbridge import Tally
from weighbridge.cases.catalogue import MECHANISMS, load_catalogue
from weighbridge.cases.entry import Entry

pytestmark = [pytest.mark.exhibits, pytest.mark.timeout(300)]

EXHIBITS = [entry for entry in load_catalogue() if entry.facts.exhibit]


def torchrun(entry: Entry, *, repaired: bool) -> list[str]:
    assert entry.facts.exhibit
    program = str(MECHANISMS / entry.name / "training.py")
    command = ["torchrun", "--nproc-per-node", str(entry.facts.exhibit.processes), program]
    return command + (["--repair"] if repaired else [])


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200, check=False)


def weighed(entry: Entry, tmp_path: Path, *, repaired: bool) -> dict[str, Any]:
    """The gradient's verdict and the weights of the first weighed step."""
    assert entry.facts.exhibit
    out = tmp_path / f"{repaired}.json"
    options = ["--no-tracer", "--objective", entry.facts.exhibit.objective, "--json", str(out)]
    weigh = [sys.executable, "-m", "weighbridge.cli", "weigh", *options, "--", *torchrun(entry, repaired=repaired)]
    done = run(weigh)
    assert done.returncode == (0 if repaired else 1), done.stdout + done.stderr
    gradient = json.loads(out.read_text())["gradient"]
    pieces = [piece for piece in gradient["pieces"] if piece["step"] == 0 and piece["tokens"]]
    return {
        "verdict": gradient["verdict"],
        "rule": gradient["rule"],
        "pieces": [
            {
                "rank": piece["rank"],
                "microbatch": piece["microbatch"],
                "tokens": piece["tokens"],
                "weight": round(piece["relative_weight"], 4),
            }
            for piece in pieces
        ],
    }


def reported(entry: Entry, *, repaired: bool) -> dict[str, Any]:
    """The number that the exhibit reports, and what the Tally makes of its rows."""
    done = run(torchrun(entry, repaired=repaired))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.strip().splitlines()[-1])
    tally = Tally()
    for loss_sum, count in told["rows"]:
        tally.add_row("reported", loss_sum, count)
    mean = tally.reduce()["reported"]
    right = {"sum": mean.sum, "mean": mean.value, "perplexity": mean.perplexity}[told["kind"]]
    verdict = "right" if math.isclose(told["reported"], right, rel_tol=1e-9) else "wrong"
    return {"verdict": verdict, "reported": round(told["reported"], 4), "right": round(right, 4)}


@pytest.mark.parametrize("entry", EXHIBITS, ids=lambda entry: entry.name)
def test_the_fault_shows_and_the_repair_does_not_have_it(entry: Entry, tmp_path: Path) -> None:
    exhibit = entry.facts.exhibit
    assert exhibit
    if exhibit.kind == "gradient":
        observed = {kind: weighed(entry, tmp_path, repaired=kind == "repair") for kind in ("failing", "repair")}
        assert observed["failing"]["rule"] == exhibit.rule
        assert observed["repair"]["rule"] == exhibit.objective
    else:
        observed = {kind: reported(entry, repaired=kind == "repair") for kind in ("failing", "repair")}
    assert observed["failing"]["verdict"] == "wrong"
    assert observed["repair"]["verdict"] == "right"
    kept = MECHANISMS / entry.name / "exhibit.json"
    if not kept.exists():
        kept.write_text(json.dumps(observed, indent=1) + "\n")
    assert observed == json.loads(kept.read_text())


def test_at_least_twenty_mechanisms_have_an_exhibit() -> None:
    assert len(EXHIBITS) >= 20

"""`--keep-running`: the command goes on to its own end, and what it saves there shows nothing of the weighing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from weighing import ENVIRONMENT, ROOT, script, weigh

pytestmark = pytest.mark.launch

KEEP = ("--keep-running", "--steps", "3")


def run_plainly(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_saved_at_the_end_is_what_a_plain_run_saves(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["--spawn", "2"] if ranks > 1 else []
    found = weigh(tmp_path, *script("saves.py", str(tmp_path / "weighed"), *more), options=KEEP)
    assert (found.exit_code, found.json["command_exit_code"], found.json["steps"]) == (0, 0, 3), found.stderr
    assert "step 7" in found.stdout
    run_plainly(*script("saves.py", str(tmp_path / "plain"), *more))
    for name in ("model", "optimizer"):
        states = [torch.load(tmp_path / run / f"{name}.pt") for run in ("weighed", "plain")]
        assert same(*states), name
    monkeypatch.syspath_prepend(str(ROOT / "tests/launch/scripts"))
    for name in ("module", "average"):
        saved = [torch.load(tmp_path / run / f"{name}.pt", weights_only=False) for run in ("weighed", "plain")]
        assert same(saved[0].state_dict(), saved[1].state_dict())
        assert [key for key, _ in saved[0].named_parameters()] == [key for key, _ in saved[1].named_parameters()]
    for path in (tmp_path / "weighed").iterdir():
        assert b"weighbridge" not in path.read_bytes(), path


def test_a_trainers_checkpoint_has_no_trace_and_resumes(tmp_path: Path) -> None:
    losses = {}
    for run in ("weighed", "plain"):
        command = script("trainer_logs.py", "--folder", str(tmp_path / run), "--steps", "4", "--save-steps", "2")
        if run == "weighed":
            found = weigh(tmp_path, *command, options=("--keep-running", "--steps", "1", "--no-tracer"))
            assert (found.exit_code, found.json["command_exit_code"]) == (0, 0), found.stderr
            output = found.stdout
        else:
            output = run_plainly(*command)
        losses[run] = json.loads(output.split("losses ")[1].splitlines()[0])
    assert losses["weighed"] == losses["plain"]
    for path in (tmp_path / "weighed").rglob("*"):
        assert path.is_dir() or b"weighbridge" not in path.read_bytes(), path
    resumed = run_plainly(*script("trainer_logs.py", "--folder", str(tmp_path / "weighed"), "--steps", "5", "--resume"))
    assert "5" in json.loads(resumed.split("losses ")[1].splitlines()[0])

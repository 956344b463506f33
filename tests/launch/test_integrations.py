"""The integrations with real frameworks and launchers (torchrun; Lightning starts its own ranks), against float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.launch
PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
TOKENS = 114  # of programs/common.py


def said(command: list[str], folder: Path) -> list[dict[str, Any]]:
    paths = [str(ROOT / "src"), str(ROOT / "examples"), str(PROGRAMS), os.environ.get("PYTHONPATH", "")]
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"}
    environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=folder)
    assert done.returncode == 0, f"{done.stderr[:4000]}\n[…]\n{done.stderr[-4000:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


def torchrun(world_size: int, program: str, *arguments: str) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    return [*start, str(PROGRAMS / program), *arguments]


def test_the_trainers_evaluation_loss_is_one_value(tmp_path: Path) -> None:
    values, before = set(), set()
    for world_size in (1, 2, 4):
        for line in said(torchrun(world_size, "trainer_evaluate.py", str(tmp_path)), tmp_path):
            assert line["tokens"] == 2 + 30 + 3 + 25 + 2 + 40
            values.add(line["loss"])
            before.add(round(line["before"], 6))
    assert max(values) - min(values) < 1e-6 * max(values)
    assert max(before) - min(before) > 0.001 * max(before)


def test_sft_trainers_evaluation_loss_is_the_token_mean(tmp_path: Path) -> None:
    cases: dict[str, list[dict[str, Any]]] = {}
    for world_size in (1, 2):
        for line in said(torchrun(world_size, "sft_evaluate.py", str(tmp_path)), tmp_path):
            cases.setdefault(line["case"], []).append(line)
    assert len(cases) == 5
    for case, lines in cases.items():
        assert len(lines) == 4, case
        assert all(line["tokens"] == line["count"] for line in lines), case
        assert all(abs(line["loss"] - line["right"]) < 1e-6 * line["right"] for line in lines), case
        assert max(abs(line["before"] - line["right"]) for line in lines) > 5e-4 * lines[0]["right"], case


@pytest.mark.parametrize(("how", "right"), [("ours", True), ("theirs", False)])
def test_the_trainer_with_a_model_that_ignores_the_count(tmp_path: Path, how: str, right: bool) -> None:
    (line,) = said(torchrun(2, "trainer_train.py", str(tmp_path), how), tmp_path)
    assert line["off"] < 1e-5 if right else line["off"] > 0.05


@pytest.mark.parametrize(("how", "right"), [("ours", True), ("theirs", False)])
def test_accelerate(tmp_path: Path, how: str, right: bool) -> None:
    (line,) = said(torchrun(2, "accelerate_train.py", how), tmp_path)
    assert line["off"] < 1e-5 if right else line["off"] > 0.05
    if right:
        assert (line["count"], line["divisor"]) == (TOKENS, 6.0)


@pytest.mark.parametrize(("how", "right"), [("ours", True), ("theirs", False)])
def test_lightning(tmp_path: Path, how: str, right: bool) -> None:
    (line,) = said([sys.executable, str(PROGRAMS / "lightning_train.py"), how], tmp_path)
    assert line["off"] < 1e-5 if right else line["off"] > 0.05
    assert line["count"] == TOKENS
    if right:
        assert line["logged"] == pytest.approx(line["mean"], rel=1e-6)


def test_deepspeed(tmp_path: Path) -> None:
    lines = said(torchrun(2, "deepspeed_train.py"), tmp_path)
    assert [(line["stage"], line["how"]) for line in lines] == [
        (stage, how) for stage in (1, 2, 3) for how in ("after", "ahead", "means")
    ]
    for line in lines:
        assert line["off"] > 0.05 if line["how"] == "means" else line["off"] < 1e-5, line
        assert line["divisor"] in (None, 2.0)

"""The cure on the scale: each integration weighed as a user would, with the cure (right) and without it (wrong)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.launch
PROGRAMS = Path(__file__).parent / "programs"
SOURCE = Path(__file__).parents[2] / "src"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
COMMANDS = {
    "accelerate": [*TORCHRUN, str(PROGRAMS / "accelerate_train.py")],
    "trainer": [*TORCHRUN, str(PROGRAMS / "trainer_train.py"), "out"],
    "lightning": [str(PROGRAMS / "lightning_train.py")],
}


@pytest.mark.parametrize("how", ["ours", "theirs"])
@pytest.mark.parametrize("framework", COMMANDS)
def test_weighed(tmp_path: Path, framework: str, how: str) -> None:
    paths = os.pathsep.join([str(SOURCE), str(PROGRAMS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    weigh = [sys.executable, "-c", "from weighbridge.cli import main; main()", "weigh", "--json", "found.json"]
    command = [*weigh, "--steps", "1", "--no-tracer", "--", sys.executable, *COMMANDS[framework], how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=tmp_path)
    gradient = json.loads((tmp_path / "found.json").read_text())["gradient"]
    pieces = [piece for piece in gradient["pieces"] if piece["tokens"]]
    assert len(pieces) == 6, done.stderr[-2000:]
    if how == "ours":
        assert gradient["verdict"] == "right"
        assert all(abs(piece["relative_weight"] - 1) < 4e-6 for piece in pieces)
    else:
        assert gradient["verdict"] == "wrong"
        assert max(piece["relative_weight"] for piece in pieces) > 2

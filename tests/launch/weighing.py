"""Run the command line as a user does, on the scripts in examples/, and read its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LIMIT = 240
# The children use the code of this checkout, wherever the installed package points to.
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])),
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
}


@dataclass
class Weighed:
    """What a finished `weighbridge weigh` left."""

    exit_code: int
    stdout: str
    stderr: str
    json: dict[str, Any]

    @property
    def gradient(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["gradient"]
        return found

    def reported(self, name: str) -> dict[str, Any]:
        """The logged number `name`; fails with what there is, where it was not judged."""
        names = [number["name"] for number in self.json["reported"]]
        assert name in names, f"{name} is not among {names}; unrelated: {self.json['unrelated']}\n{self.stdout}"
        found: dict[str, Any] = self.json["reported"][names.index(name)]
        return found


def weigh(
    folder: Path,
    *command: str,
    options: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    cwd: Path = ROOT,
) -> Weighed:
    """`weighbridge weigh [options] -- command`, with its JSON."""
    target = folder / "weights.json"
    finished = subprocess.run(
        [str(BIN / "weighbridge"), "weigh", "--json", str(target), *options, "--", *command],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=cwd,
        env={**ENVIRONMENT, **(environment or {})},
    )
    text = target.read_text(encoding="utf-8") if target.exists() else "{}"
    return Weighed(finished.returncode, finished.stdout, finished.stderr, json.loads(text))


def torchrun(*arguments: str, ranks: int = 2) -> list[str]:
    # Standalone: with the default port, two runs on one machine at a time would meet in one store and hang.
    return ["torchrun", "--standalone", "--nproc-per-node", str(ranks), *arguments]


SCRIPTS = "tests/launch/scripts"


def script(name: str, *arguments: str) -> list[str]:
    """The command that runs a script of tests/launch/scripts in one process."""
    return ["python", f"{SCRIPTS}/{name}", *arguments]


def start_weighing(*command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """`weighbridge weigh [options] -- command` in a process group of its own, as a terminal would start it."""
    return subprocess.Popen(
        [str(BIN / "weighbridge"), "weigh", *options, "--", *command],
        cwd=ROOT,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )

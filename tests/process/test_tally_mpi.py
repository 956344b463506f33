"""The tally over real MPI ranks, started by mpiexec."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("mpiexec") is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py and mpiexec"
)

PROGRAM = """
import json, time
from mpi4py import MPI
from weighbridge import Tally
from weighbridge.errors import CollectiveError

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
tally = Tally(comm, limit=2)
tally.add("loss", [1.0, 2.0, 4.0][: 3 - rank])
if rank == 2:
    tally.add("only on rank 2", [9.0])
means = tally.reduce()
said = {"loss": means["loss"].value, "count": means["loss"].count, "only": means["only on rank 2"].value}
if rank == 1:
    time.sleep(6)
else:
    try:
        tally.reduce()
    except CollectiveError as error:
        said["missing"] = error.missing
        said["kept"] = tally.local()["loss"].count
print(json.dumps({"rank": rank, **said}), flush=True)
if rank != 1:
    comm.Abort(0)
"""


def test_three_ranks_and_one_that_stays_away(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("    comm.Abort(0)", "    time.sleep(1)\n    comm.Abort(0)"))
    command = ["mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", "3", sys.executable, str(program)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    said = {
        line["rank"]: line
        for line in map(json.loads, filter(lambda text: text.startswith("{"), done.stdout.splitlines()))
    }
    for rank in (0, 2):
        assert (said[rank]["loss"], said[rank]["count"], said[rank]["only"]) == (11 / 6, 6, 9.0), done.stderr
        assert said[rank]["missing"] == [1]
        assert said[rank]["kept"] == 3 - rank

"""Write benchmarks/RESULTS.md: python benchmarks/run.py [--rows 100000000] [sums reduces rows]"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

import torch
from timing import Line

PARTS = ("sums", "reduces", "rows")


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())
    return f"{name}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"


def versions() -> str:
    from importlib.metadata import version

    wanted = ("torch", "numba", "numpy", "torchmetrics", "duckdb", "pyarrow")
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in wanted)])


def table(found: list[Line]) -> str:
    rows = ["| what | against | ours | theirs | ratio | goal | |", "|---|---|---|---|---|---|---|"]
    for line in found:
        goal = "" if line.goal is None else f"<= {line.goal:g}"
        met = "" if line.goal is None else " met" if line.ratio <= line.goal else " **missed**"
        times = f"{line.ours * 1e3:.3f} ms | {line.theirs * 1e3:.3f} ms"
        rows.append(f"| {line.what} | {line.against} | {times} | {line.ratio:.2f} | {goal}{met} | {line.note} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--rows", type=int, default=100_000_000)
    options = parser.parse_args()
    import reduces
    import rows
    import sums

    load = os.getloadavg()
    found: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            found += sums.lines() if part == "sums" else []
            found += reduces.lines(folder) if part == "reduces" else []
            found += rows.lines(folder, options.rows) if part == "rows" else []
    text = f"""# Results

Medians of runs in turn, both sides of a ratio in one process (rows of Parquet: a process each, in turn, imports
included). One thread a process.

* machine: {machine()}; load average before {load[0]:.1f}, after {os.getloadavg()[0]:.1f} (other work ran beside it
  wherever that is above the number of processes measured)
* {versions()}
* command: `OMP_NUM_THREADS=1 python {" ".join(["benchmarks/run.py", *sys.argv[1:]])}`
* not measured: CUDA, NCCL, MPI, ARM

{table(found)}
"""
    Path(__file__).with_name("RESULTS.md").write_text(text)
    print(text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

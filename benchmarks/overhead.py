"""What weighing costs: the same command weighed and plain, in turn, and the ratios of medians.

    python benchmarks/overhead.py [--pairs 5]

Per-step time is the median over steps after the first three; peak memory is the largest rank's; whole command is the
wall time from start to exit, reports included. The rival is the plain command, run in the same minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
STEPS = 24


@dataclass
class Run:
    step: float  # seconds
    peak: float  # MiB
    whole: float  # seconds


def run(ranks: int, width: int, *, weighed: bool) -> Run:
    """One run of step.py, plain or weighed over all its steps."""
    script = [str(HERE / "step.py"), str(STEPS), str(width)]
    command = (
        [str(BIN / "torchrun"), "--nproc-per-node", str(ranks), *script] if ranks > 1 else [sys.executable, *script]
    )
    if weighed:
        command = [str(BIN / "weighbridge"), "weigh", "--steps", str(STEPS), "--", *command]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "BENCH_OUT": f"{folder}/rank", "OMP_NUM_THREADS": "1"}
        start = time.perf_counter()
        finished = subprocess.run(command, env=environment, capture_output=True, text=True)
        whole = time.perf_counter() - start
        if finished.returncode not in ((0, 1) if weighed else (0,)):
            raise SystemExit(f"{command} failed with {finished.returncode}:\n{finished.stdout}{finished.stderr}")
        lines = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("rank-*")]
    steps = [second for line in lines for second in line["seconds"][3:]]
    return Run(statistics.median(steps), max(line["peak_kib"] for line in lines) / 1024, whole)


def compare(name: str, ranks: int, width: int, pairs: int) -> str:
    """Print and return one row: plain, weighed and their ratio for step, memory and whole command."""
    runs = [(run(ranks, width, weighed=False), run(ranks, width, weighed=True)) for _ in range(pairs)]
    columns = []
    for field, unit, scale in (("step", "ms", 1e3), ("peak", "MiB", 1.0), ("whole", "s", 1.0)):
        plain = statistics.median(getattr(one, field) for one, _ in runs) * scale
        weighed = statistics.median(getattr(other, field) for _, other in runs) * scale
        ratio = statistics.median(getattr(other, field) / getattr(one, field) for one, other in runs)
        columns.append(f"{field} {plain:8.1f} -> {weighed:8.1f} {unit:3} = {ratio:.3f}x")
    line = f"{name:28}  {'   '.join(columns)}"
    print(line, flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    head = (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}; medians of {options.pairs} pairs, plain -> weighed, {STEPS} steps"
    )
    print(head)
    lines = [
        compare("one process", 1, 192, options.pairs),
        compare("two ranks, DDP, gloo", 2, 160, options.pairs),
    ]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    text = "\n".join(f"    {line}" for line in [head, f"load average at the end {load}", *lines])
    (HERE / "OVERHEAD.md").write_text(
        f"# What weighing costs\n\n`python benchmarks/overhead.py`\n\n{text}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()

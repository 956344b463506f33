"""`weighbridge mean` on Parquet against DuckDB, each in a process of its own; peak memory besides."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from timing import Line

OURS = "from weighbridge.commands.mean import mean; mean()"
THEIRS = (
    "import duckdb, sys; duckdb.execute('SET threads = 1');"
    "print(duckdb.sql(f\"select sum(loss_sum) / sum(count) from '{sys.argv[1]}' where count > 0\").fetchall())"
)


def write(path: str, rows: int) -> None:
    generator = np.random.default_rng(0)
    schema = pa.schema([("loss_sum", pa.float64()), ("count", pa.int64())])
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 4_000_000):
            size = min(4_000_000, rows - start)
            counts = generator.integers(0, 4096, size)
            columns = [pa.array(generator.gamma(2.0, 1.5, size) * counts), pa.array(counts)]
            writer.write_table(pa.table(columns, schema=schema))


def run(program: str, path: str) -> float:
    """Processor seconds of a process of its own: both have one thread, and other work on the machine counts less."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def lines(folder: str, rows: int, repeats: int = 3) -> list[Line]:
    path = os.path.join(folder, "rows.parquet")
    write(path, rows)
    run(OURS, path)
    pairs = [(run(OURS, path), run(THEIRS, path)) for _ in range(repeats)]
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    measure = "import resource, subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]]);"
    told = subprocess.run(
        [sys.executable, "-c", measure + "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)", OURS, path],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    peak = int(told.stdout.split()[-1]) / 2**20
    os.remove(path)
    note = f"processor time; peak memory {peak:.2f} GiB (goal 1)"
    return [Line(f"weighbridge mean, {rows:,} rows of Parquet", "DuckDB, 1 thread", ours, theirs, 2.0, note)]

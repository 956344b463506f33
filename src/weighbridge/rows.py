"""Rows of sums and counts from files: JSON lines, CSV, Parquet or standard input, a batch at a time.

A row has a `loss_sum` and a `count`, and may have a `step`, a `rank`, a `microbatch` and a `name`. Files larger than
memory stream. A row that breaks the contract of a mean is an error with file, line and reason, unless the caller takes
such rows (`bad`), to count and list them: none is dropped in silence.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from weighbridge.errors import InputError, MissingExtra

__all__ = ["ALIASES", "BadRow", "Batch", "parse_columns", "read_rows"]

ALIASES: Mapping[str, tuple[str, ...]] = {
    "loss_sum": ("loss_sum",),
    "count": ("count", "valid_count", "tokens", "num_tokens"),
    "step": ("step",),
    "rank": ("rank",),
    "microbatch": ("microbatch",),
    "name": ("name",),
}
BATCH = 1 << 16
PARQUET_BATCH = 1 << 16  # decoded columns stay in the cache: eight times faster than batches of 1 << 20
INT64 = 1 << 63
ARROW_NUMBERS: Mapping[str, Any] = {"double": np.float64, "float": np.float32, "int32": np.int32, "int64": np.int64}


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that can't be used: where it is (`line` counts from 1) and why."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows, as columns.

    Attributes:
        loss_sum: [N], float64; what it holds does not matter where the count is 0.
        count: [N], int64, at least 0.
        keys: the columns asked for besides, each a list [N] of numbers or strings.
    """

    loss_sum: npt.NDArray[np.float64]
    count: npt.NDArray[np.int64]
    keys: Mapping[str, Sequence[Any]]


Bad = Callable[[BadRow], None]


def parse_columns(text: str) -> dict[str, str]:
    """`--columns loss_sum=nll,count=n` as a dict; raises InputError where it names no column that a row can have.

    >>> parse_columns("loss_sum=nll,count=n")
    {'loss_sum': 'nll', 'count': 'n'}
    """
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for ours, equals, theirs in pairs:
        if not equals or ours.strip() not in ALIASES or not theirs.strip():
            raise InputError(
                f"--columns has {ours + equals + theirs!r}. It maps a column of ours to yours, as in "
                f"loss_sum=nll,count=n; ours are {', '.join(ALIASES)}. Correct it."
            )
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def read_rows(
    file: str,
    *,
    columns: Mapping[str, str] | None = None,
    keys: Sequence[str] = (),
    form: str = "",
    bad: Bad | None = None,
) -> Iterator[Batch]:
    """The rows of `file` in batches.

    Args:
        file: a path, or "-" for standard input.
        columns: which column of the file stands for which of ours, where the names are not understood.
        keys: further columns to read: "step", "rank", "microbatch", "name".
        form: "jsonl", "csv" or "parquet"; "" goes by the file's ending, and by the first character of the input.
        bad: takes rows that can't be used; None raises at the first.

    Raises:
        InputError: the file can't be read, lacks a column, or has a row that can't be used.
        MissingExtra: it is Parquet, and pyarrow is not installed.
    """
    wanted = {ours: (columns or {}).get(ours) for ours in ("loss_sum", "count", *keys)}
    chosen = form or _form_of(file)
    if chosen == "parquet":
        yield from _parquet(file, wanted, bad)
        return
    with _opened(file) as (stream, first):
        if not chosen:
            chosen = "jsonl" if first.lstrip()[:1] in ("{", "[", "") else "csv"
        records = _json_lines(stream, first) if chosen == "jsonl" else _csv_lines(stream, first, file, wanted)
        yield from _batches(records, _Collector(file, wanted, bad))


def _form_of(file: str) -> str:
    endings = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
    return endings.get(Path(file).suffix.lower(), "")


@contextmanager
def _opened(file: str) -> Iterator[tuple[TextIO, str]]:
    """The text stream and its first line."""
    if file == "-":
        yield sys.stdin, sys.stdin.readline()
        return
    try:
        with open(file, encoding="utf-8", newline="") as stream:
            yield stream, stream.readline()
    except OSError as error:
        raise InputError(
            f"{file} can't be opened: {error.strerror}. Pass a file that is there, or - for stdin."
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not UTF-8 text. Rows are JSON lines, CSV or Parquet. Pass --format.") from None


def _json_lines(stream: TextIO, first: str) -> Iterator[tuple[int, Any]]:
    """Line numbers with what is on them; a string where it is no JSON."""
    number = 0
    line = first
    while line:
        number += 1
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                yield number, f"it is no JSON ({error.msg} at column {error.colno})"
        line = stream.readline()


def _csv_lines(stream: TextIO, first: str, file: str, wanted: Mapping[str, str | None]) -> Iterator[tuple[int, Any]]:
    header = next(csv.reader(io.StringIO(first)), [])
    names = [name.strip() for name in header]
    for ours, given in wanted.items():
        _find(ours, given, names, f"{file} has the columns {', '.join(names) or '(none)'}")
    reader = csv.reader(stream)
    for cells in reader:
        if cells and len(cells) != len(names):
            yield reader.line_num + 1, f"it has {len(cells)} cells where the header has {len(names)}"
        elif cells:
            yield reader.line_num + 1, dict(zip(names, cells, strict=True))


def _find(ours: str, given: str | None, names: Sequence[str], there: str) -> str:
    """The file's name for the column `ours`."""
    known = (given,) if given else ALIASES[ours]
    for name in known:
        if name in names:
            return name
    raise InputError(
        f"{there}, none of which is {' or '.join(known)}. Every row needs its {ours}. Say which column it is with "
        f"--columns {ours}=..."
    )


class _Collector:
    """Checks rows one by one and hands them on as columns."""

    def __init__(self, file: str, wanted: Mapping[str, str | None], bad: Bad | None) -> None:
        self.file = "standard input" if file == "-" else file
        self.wanted = wanted
        self.bad = bad
        self.keys = [key for key in wanted if key not in ("loss_sum", "count")]
        self.clear()

    def clear(self) -> None:
        self.sums: list[float] = []
        self.counts: list[int] = []
        self.found: dict[str, list[Any]] = {key: [] for key in self.keys}

    def batch(self) -> Batch:
        made = Batch(np.array(self.sums, dtype=np.float64), np.array(self.counts, dtype=np.int64), self.found)
        self.clear()
        return made

    def add(self, line: int, record: Any) -> None:
        reason, sum_, count, keys = self._read(record)
        if reason:
            self.refuse(line, reason)
            return
        self.sums.append(sum_)
        self.counts.append(count)
        for key, value in zip(self.keys, keys, strict=True):
            self.found[key].append(value)

    def refuse(self, line: int, reason: str) -> None:
        """Hand the row to who takes bad rows, or raise."""
        row = BadRow(self.file, line, reason)
        if self.bad is None:
            raise InputError(f"{row} Correct the row, or pass --skip-bad-rows to list and leave out such rows.")
        self.bad(row)

    def _read(self, record: Any) -> tuple[str, float, int, list[Any]]:
        nothing: tuple[str, float, int, list[Any]] = ("", 0.0, 0, [])
        if isinstance(record, str):
            return (f"{record}.", *nothing[1:])
        if isinstance(record, list):
            if len(record) != 2 or self.keys:
                return (f"it is a list of {len(record)}. A list is [loss_sum, count].", *nothing[1:])
            record = {"loss_sum": record[0], "count": record[1]}
            cells = [record["loss_sum"], record["count"]]
        elif isinstance(record, dict):
            cells = []
            for ours, given in self.wanted.items():
                name = next((name for name in ((given,) if given else ALIASES[ours]) if name in record), None)
                if name is None:
                    return (f"it has no {given or ours}. Every row needs one.", *nothing[1:])
                cells.append(record[name])
        else:
            return (f"it is {json.dumps(record)}. A row is an object or a list.", *nothing[1:])
        count, reason = _as_count(cells[1])
        if reason:
            return (reason, *nothing[1:])
        value, reason = (0.0, "") if count == 0 else _as_sum(cells[0])
        return reason, value, count, cells[2:]


def _as_count(cell: Any) -> tuple[int, str]:
    """The count, or why it is none."""
    rule = "A count is a whole number of at least 0."
    value: Any = cell
    if isinstance(cell, str):
        try:
            value = int(cell)
        except ValueError:
            try:
                value = float(cell)
            except ValueError:
                value = None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < INT64:
        return 0, f"count is {'missing' if cell in ('', None) else cell}. {rule}"
    return value, ""


def _as_sum(cell: Any) -> tuple[float, str]:
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        try:
            return float(cell), ""
        except OverflowError:
            return 0.0, "loss_sum is larger than a float64 can hold. A loss sum is one number."
    if isinstance(cell, str) and cell.strip():
        try:
            return float(cell), ""
        except ValueError:
            pass
    return 0.0, f"loss_sum is {'missing' if cell in ('', None) else cell}. A loss sum is one number."


def _batches(records: Iterator[tuple[int, Any]], collector: _Collector) -> Iterator[Batch]:
    for line, record in records:
        collector.add(line, record)
        if len(collector.sums) >= BATCH:
            yield collector.batch()
    yield collector.batch()


def _parquet(file: str, wanted: Mapping[str, str | None], bad: Bad | None) -> Iterator[Batch]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise MissingExtra("Reading Parquet needs pyarrow, which is not installed. Run: pip install pyarrow") from None
    try:
        opened = io.BytesIO(sys.stdin.buffer.read()) if file == "-" else file
        source = parquet.ParquetFile(opened, pre_buffer=False)  # else it reads ahead without a limit
    except (OSError, ArrowException) as error:
        raise InputError(f"{file} can't be read as Parquet: {error}. Pass a Parquet file, or --format.") from None
    names = {
        ours: _find(
            ours, given, source.schema_arrow.names, f"{file} has the columns {', '.join(source.schema_arrow.names)}"
        )
        for ours, given in wanted.items()
    }
    collector = _Collector(file, wanted, bad)
    done = 0
    needed = list(dict.fromkeys(names.values()))
    for batch in source.iter_batches(batch_size=PARQUET_BATCH, columns=needed, use_threads=False):
        columns = {ours: batch.column(name) for ours, name in names.items()}
        yield _arrow_batch(columns, collector, done)
        done += batch.num_rows


def _arrow_batch(columns: Mapping[str, Any], collector: _Collector, done: int) -> Batch:
    """One batch; by whole columns where they are sound, row by row where something in them is not."""
    sums, counts = columns["loss_sum"], columns["count"]
    sound = not sums.null_count and not counts.null_count
    if sound and str(counts.type) == "int64" and str(sums.type) in ("double", "float", "int32"):
        numbers = _as_numpy(counts)
        if int(numbers.view(np.uint64).max(initial=0)) < INT64:  # one pass: as unsigned, a negative one is larger
            keys = {key: columns[key].to_pylist() for key in collector.keys}
            return Batch(_as_numpy(sums).astype(np.float64, copy=False), numbers, keys)
    lists = [columns[ours].to_pylist() for ours in collector.wanted]
    named = [given or ALIASES[ours][0] for ours, given in collector.wanted.items()]
    for offset, cells in enumerate(zip(*lists, strict=True)):
        collector.add(done + offset + 1, dict(zip(named, cells, strict=True)))
    return collector.batch()


def _as_numpy(column: Any) -> npt.NDArray[Any]:
    """The memory of a column without nulls; pyarrow's own way imports pandas, which takes longer than 1e7 rows."""
    dtype = ARROW_NUMBERS[str(column.type)]
    if not len(column):
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(column.buffers()[1], dtype=dtype)[column.offset :][: len(column)]

"""`weighbridge mean` and `weighbridge explain`, and the files they read."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from weighbridge.commands.explain import explain
from weighbridge.commands.mean import mean
from weighbridge.errors import InputError
from weighbridge.mean import Mean
from weighbridge.rows import BadRow, _as_numpy, read_rows

ROWS = [(1.5, 3), (math.nan, 0), (6.0, 2), (0.1, 1), (2.0**60, 4)]


def run(command: object, *arguments: str, text: str = "", status: int = 0) -> str:
    result: Result = CliRunner().invoke(command, arguments, input=text)  # type: ignore[arg-type]
    if isinstance(result.exception, InputError):
        return str(result.exception)
    assert result.exit_code == status, result.output
    return result.output


def written(folder: Path, kind: str) -> str:
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(f'{{"loss_sum": {json.dumps(s)}, "num_tokens": {n}, "x": 1}}\n' for s, n in ROWS))
    elif kind == "csv":
        path.write_text("x,loss_sum,tokens\n" + "".join(f"1,{s!r},{n}\n" for s, n in ROWS))
    else:
        table = pa.table({"loss_sum": [s for s, _ in ROWS], "valid_count": [n for _, n in ROWS]})
        parquet.write_table(table, path, row_group_size=2)
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_format_gives_the_same_bits(tmp_path: Path, kind: str) -> None:
    told = json.loads(run(mean, written(tmp_path, kind), "--json"))
    expected = Mean.from_rows(ROWS)
    assert told == {"mean": expected.value, "count": 10, "rows": 5, "digest": expected.digest()}


def test_rows_from_standard_input() -> None:
    assert run(mean, "-", text="[1, 0]\n\n[6, 2]\n") == "3.0  (2 counted in 2 rows)\n"
    assert run(mean, "-", text="loss_sum,count\n6,2\n") == "3.0  (2 counted in 1 row)\n"
    assert run(mean, "-", text="") == "none, nothing was counted  (0 counted in 0 rows)\n"
    assert "3 of them in rows that are not finite" in run(mean, "-", text="[NaN, 3]\n")


def test_by_step_rank_and_name() -> None:
    text = "step,rank,name,loss_sum,count\n10,0,loss,6,2\n2,1,loss,1,1\n2,0,kl,3,1\n2,0,loss,5,2\n"
    assert run(mean, "-", "--by", "step", text=text).splitlines() == [
        "step 2: 2.25  (4 counted in 3 rows)",
        "step 10: 3.0  (2 counted in 1 row)",
    ]
    assert [json.loads(line)["mean"] for line in run(mean, "-", "--by", "name", "--json", text=text).splitlines()] == [
        3,
        2.4,
    ]
    assert run(mean, "-", "--by", "rank", "--by", "name", text=text).count("\n") == 3


def test_own_column_names(tmp_path: Path) -> None:
    text = '{"nll": 6, "n": 2}\n'
    assert "it has no loss_sum. Every row needs one." in run(mean, "-", text=text)
    assert run(mean, "-", "--columns", "loss_sum=nll,count=n", text=text).startswith("3.0")
    assert "--columns has 'sum=nll'" in run(mean, "-", "--columns", "sum=nll", text=text)
    told = run(mean, "-", text="nll,count\n1,1\n")
    assert "- has the columns nll, count, none of which is loss_sum." in told


BAD = [
    ('{"loss_sum": 1, "count": -3}', "count is -3. A count is a whole number of at least 0."),
    ('{"loss_sum": 1, "count": 1.5}', "count is 1.5."),
    ('{"loss_sum": 1, "count": null}', "count is missing."),
    ('{"loss_sum": 1, "count": NaN}', "count is nan."),
    ('{"loss_sum": "x", "count": 1}', "loss_sum is x."),
    ('{"loss_sum": null, "count": 1}', "loss_sum is missing."),
    ('{"count": 1}', "it has no loss_sum."),
    ("[1, 2, 3]", "it is a list of 3."),
    ("3", "it is 3. A row is an object or a list."),
    ("{", "it is no JSON ("),
    (f'{{"loss_sum": 1, "count": {2**63}}}', f"count is {2**63}."),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_a_bad_row_is_an_error_or_is_listed(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"[6, 2]\n{line}\n[6, 1]\n")
    told = run(mean, str(path))
    assert told.startswith(f"{path}, line 2: {reason}")
    assert told.endswith("Correct the row, or pass --skip-bad-rows to list and leave out such rows.")
    result = CliRunner().invoke(mean, [str(path), "--skip-bad-rows"])
    assert result.stdout == "4.0  (3 counted in 2 rows)\n"
    assert result.stderr.startswith(f"1 bad row left out:\n  {path}, line 2: {reason}")


def test_bad_rows_of_csv_and_parquet_are_named(tmp_path: Path) -> None:
    assert "standard input, line 3: it has 1 cells where the header has 2." in run(
        mean, "-", text="loss_sum,count\n1,1\n2\n"
    )
    path = str(tmp_path / "rows.parquet")
    parquet.write_table(pa.table({"loss_sum": [1.0, None, 2.0], "count": [1.0, 2.0, 0.5]}), path)
    found: list[BadRow] = []
    (batch,) = read_rows(path, bad=found.append)
    assert batch.count.tolist() == [1]
    assert [(row.line, row.reason.split(".")[0]) for row in found] == [(2, "loss_sum is missing"), (3, "count is 0")]
    assert "can't be opened" in run(mean, str(tmp_path / "none.csv"))
    (tmp_path / "text.parquet").write_text("[1, 1]")
    assert "can't be read as Parquet" in run(mean, str(tmp_path / "text.parquet"))


def test_many_batches_are_one_mean(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    sums, counts = generator.normal(0, 1e5, 150_001), generator.integers(0, 9, 150_001)
    path = tmp_path / "rows.csv"
    path.write_text(
        "loss_sum,count\n" + "".join(f"{s!r},{n}\n" for s, n in zip(sums.tolist(), counts.tolist(), strict=True))
    )
    assert json.loads(run(mean, str(path), "--json"))["digest"] == Mean.from_columns(sums, counts).digest()


def test_explain_names_the_rule_and_what_was_right() -> None:
    told = run(explain, "-", "--reported", "2.0", text="[1, 1]\n[9, 3]\n", status=1)
    assert told.startswith("2.0 was reported; the token-mean is 2.5.\n\nmean-of-rank-means gives 2\n")
    assert "To change: Divide each rank's loss sum by the number of tokens of all ranks" in told
    right = run(explain, "-", "--reported", "2.5", text="[1, 1]\n[9, 3]\n")
    assert "The reported value is right, to its printed precision." in right
    assert "mean-of-rank-means gives 2" in right.split("Ruled out:")[1]


ACCUMULATED = "".join(
    f'{{"rank": {rank}, "loss_sum": {loss}, "count": {count}}}\n'
    for rank, loss, count in [(0, 1.0, 1), (0, 9.0, 3), (0, 2.0, 5), (1, 3.0, 7), (1, 8.0, 2), (1, 1.0, 4)]
)


@pytest.mark.parametrize(
    ("reported", "rule", "status"),
    [
        ("1.09090909", "The reported value is right", 0),
        ("1.12820513", "mean-of-rank-means gives", 1),
        ("1.51309524", "mean-of-microbatch-means gives", 1),
        ("2.18181818", "scaled (times W) gives", 1),
        ("17.25", "No rule that weighbridge knows gives it.", 3),
    ],
)
def test_explain_with_accumulation(reported: str, rule: str, status: int) -> None:
    told = run(explain, "-", "--by", "rank", "--reported", reported, text=ACCUMULATED, status=status)
    assert rule in "\n".join(told.splitlines()[:4])
    record = json.loads(
        run(explain, "-", "--by", "rank", "--reported", reported, "--json", text=ACCUMULATED, status=status)
    )
    assert record["right"] == pytest.approx(24 / 22)


def test_explain_refuses_what_it_cannot_compare() -> None:
    assert "The reported value is 'two'" in run(explain, "-", "--reported", "two", text="[1, 1]\n")
    assert "loss_sum is nan on rank 0" in run(explain, "-", "--reported", "2", text="[NaN, 1]\n")
    assert "objective is 'mean'" in run(explain, "-", "--reported", "2", "--objective", "mean", text="[1, 1]\n")
    assert "Nothing was counted" in run(explain, "-", "--reported", "2", text="[1, 0]\n", status=3)


def test_a_slice_of_a_column_is_read_from_its_memory() -> None:
    column = pa.array([1.5, 2.5, 3.5, 4.5]).slice(1, 2)
    assert _as_numpy(column).tolist() == [2.5, 3.5]
    assert _as_numpy(pa.array([], type=pa.int64())).tolist() == []


def test_reading_parquet_loads_neither_pandas_nor_numba(tmp_path: Path) -> None:
    """Each takes longer to load than a hundred thousand rows take to read, or ten million."""
    path = tmp_path / "rows.parquet"
    counts = np.arange(100_000) % 7
    parquet.write_table(pa.table({"loss_sum": counts * 1.5, "count": counts}), path)
    code = (
        "import sys; from weighbridge.commands.mean import mean; mean(sys.argv[1:], standalone_mode=False);"
        "print(sorted({'pandas', 'numba', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["1.5  (299995 counted in 100000 rows)", "[]"]

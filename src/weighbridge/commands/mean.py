"""`weighbridge mean`: the token mean of rows of sums and counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np

from weighbridge.errors import InputError
from weighbridge.mean import Mean
from weighbridge.rows import BadRow, Batch, parse_columns, read_rows

__all__ = ["mean"]

LISTED = 20  # bad rows that are shown one by one
Key = tuple[Any, ...]


class Skipped:
    """Bad rows, counted, the first of them kept to be listed."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[BadRow] = []

    def take(self, row: BadRow) -> None:
        self.count += 1
        if len(self.first) < LISTED:
            self.first.append(row)

    def tell(self) -> None:
        """Say on stderr which rows were left out."""
        if not self.count:
            return
        click.echo(f"{self.count} bad row{'s' if self.count > 1 else ''} left out:", err=True)
        for row in self.first:
            click.echo(f"  {row}", err=True)
        if self.count > len(self.first):
            click.echo(f"  and {self.count - len(self.first)} more", err=True)


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--by", multiple=True, type=click.Choice(["step", "rank", "name"]), help="One mean for each; repeatable.")
@click.option("--columns", default="", metavar="OURS=YOURS,...", help="Names of your columns: loss_sum=nll,count=n.")
@click.option("--format", "form", type=click.Choice(["jsonl", "csv", "parquet"]), help="Where the ending doesn't say.")
@click.option(
    "--skip-bad-rows", is_flag=True, help="List bad rows and leave them out, instead of stopping at the first."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def mean(
    files: Sequence[str], by: Sequence[str], columns: str, form: str | None, skip_bad_rows: bool, as_json: bool
) -> None:
    """The token mean of rows of loss sums and counts: the sum of the sums over the sum of the counts.

    FILES hold JSON lines, CSV or Parquet; - is standard input. A row is an object with a loss_sum and a count (or
    valid_count, tokens, num_tokens), or a list [loss_sum, count]. A row whose count is 0 contributes nothing, whatever
    its sum holds. The sum is exact: the same bits for every order and split of the rows.

    \b
    $ printf '[1, 0]\\n[6, 2]\\n' | weighbridge mean -
    3.0  (2 counted in 2 rows)
    """
    mapping, keys, skipped = parse_columns(columns), tuple(dict.fromkeys(by)), Skipped()
    groups: dict[Key, tuple[Mean, int]] = {}
    for file in files:
        read = read_rows(file, columns=mapping, keys=keys, form=form or "", bad=skipped.take if skip_bad_rows else None)
        for batch in read:
            for key, merged, rows in _grouped(batch, keys):
                before, rows_before = groups.get(key, (None, 0))
                groups[key] = (merged if before is None else before + merged, rows_before + rows)
    if not keys:
        groups.setdefault((), (Mean(), 0))
    for key in sorted(groups, key=_order):
        _say(dict(zip(keys, key, strict=True)), *groups[key], as_json)
    skipped.tell()


def _grouped(batch: Batch, keys: Sequence[str]) -> Iterator[tuple[Key, Mean, int]]:
    """The merged rows of each group of a batch, and how many they are."""
    if not keys:
        yield (), Mean.from_columns(batch.loss_sum, batch.count), batch.count.size
        return
    places: dict[Key, list[int]] = {}
    for index, key in enumerate(zip(*(map(_plain, batch.keys[key]) for key in keys), strict=True)):
        try:
            places.setdefault(key, []).append(index)
        except TypeError:
            raise InputError(
                f"A row has {key!r} for {' and '.join(keys)}. It is a number or a text. Correct it."
            ) from None
    for key, indices in places.items():
        rows = np.array(indices)
        yield key, Mean.from_columns(batch.loss_sum[rows], batch.count[rows]), rows.size


def _plain(value: Any) -> Any:
    """A number written as text (all of a CSV file is text) as that number, so that files of two kinds agree."""
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value


def _order(key: Key) -> list[tuple[bool, float, str]]:
    """Numbers by size, then texts by letter; a number written as text counts as a number."""
    parts = []
    for part in key:
        try:
            parts.append((False, float(part), ""))
        except (TypeError, ValueError):
            parts.append((True, 0.0, str(part)))
    return parts


def _say(key: dict[str, Any], found: Mean, rows: int, as_json: bool) -> None:
    if as_json:
        value = found.value
        plain = None if value is None or value - value != 0 else value  # NaN and infinities are no JSON
        record = {**key, "mean": plain, "count": found.count, "rows": rows, "digest": found.digest()}
        if found.total.nonfinite:
            record["nonfinite"] = {"nan": found.total.nan, "+inf": found.total.pos_inf, "-inf": found.total.neg_inf}
        click.echo(json.dumps(record))
        return
    named = "  ".join(f"{name} {value}" for name, value in key.items())
    value_text = "none, nothing was counted" if found.value is None else repr(found.value)
    odd = f"; {found.total.nonfinite} of them in rows that are not finite" if found.total.nonfinite else ""
    lines = "1 row" if rows == 1 else f"{rows} rows"
    click.echo(f"{named + ': ' if named else ''}{value_text}  ({found.count} counted in {lines}{odd})")

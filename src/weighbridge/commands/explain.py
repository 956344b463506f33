"""`weighbridge explain`: which rule gives a reported value, and what was right."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence

import click

from weighbridge.commands.mean import Skipped
from weighbridge.explain import Explanation, RuleValue, story_of, tables_from
from weighbridge.explain import explain as explain_rows
from weighbridge.matching import Tier
from weighbridge.rows import Batch, parse_columns, read_rows

__all__ = ["explain"]

RIGHT, WRONG, UNKNOWN = 0, 1, 3


@click.command()
@click.argument("file")
@click.option("--reported", required=True, metavar="VALUE", help="The value as it was printed, with all its digits.")
@click.option(
    "--objective", default="token-mean", show_default=True, help="token-mean, sequence-mean, sum, constant:X."
)
@click.option(
    "--by", multiple=True, type=click.Choice(["step", "rank", "microbatch"]), help="Columns that the rows have."
)
@click.option("--columns", default="", metavar="OURS=YOURS,...", help="Names of your columns: loss_sum=nll,count=n.")
@click.option("--format", "form", type=click.Choice(["jsonl", "csv", "parquet"]), help="Where the ending doesn't say.")
@click.option(
    "--skip-bad-rows", is_flag=True, help="List bad rows and leave them out, instead of stopping at the first."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def explain(
    context: click.Context,
    file: str,
    reported: str,
    objective: str,
    by: Sequence[str],
    columns: str,
    form: str | None,
    skip_bad_rows: bool,
    as_json: bool,
) -> None:
    """Every rule that gives the reported VALUE for the rows of FILE, and those that are ruled out.

    Each row is what one rank summed and counted; with --by rank, the rows of a rank are its microbatches in order.
    Exit status: 0 the objective gives the value, 1 another rule does, 3 no rule does.

    \b
    $ printf '[1, 1]\\n[9, 3]\\n' | weighbridge explain - --reported 2.0
    """
    mapping, keys, skipped = parse_columns(columns), tuple(dict.fromkeys(by)), Skipped()
    read: Iterator[Batch] = read_rows(
        file, columns=mapping, keys=keys, form=form or "", bad=skipped.take if skip_bad_rows else None
    )
    found = explain_rows(tables_from(read, keys), reported, objective=objective)
    click.echo(_as_json(found) if as_json else _as_text(found, reported))
    skipped.tell()
    context.exit(_status(found))


def _status(found: Explanation) -> int:
    if found.is_right:
        return RIGHT
    return WRONG if found.fits else UNKNOWN


def _as_json(found: Explanation) -> str:
    def plain(each: RuleValue) -> dict[str, object]:
        return {**dataclasses.asdict(each), "tier": each.tier.name.lower()}

    record = {
        "reported": found.reported, "within": found.within, "objective": found.objective, "right": found.right,
        "fits": [plain(each) for each in found.fits], "ruled_out": [plain(each) for each in found.ruled_out],
    }  # fmt: skip
    return json.dumps(record)


def _as_text(found: Explanation, reported: str) -> str:
    if found.right is None:
        return "Nothing was counted: no rule gives a value."
    lines = [f"{reported} was reported; the {found.objective} is {found.right!r}."]
    others = [each for each in found.fits if each.tier is not Tier.OBJECTIVE]
    if found.is_right:
        lines.append("The reported value is right, to its printed precision.")
    elif not others:
        lines.append("No rule that weighbridge knows gives it.")
    else:
        first = others.pop(0)
        story, remedy = story_of(first.rule)
        lines += ["", _named(first), f"  {story}", f"  To change: {remedy}"]
    if others:
        lines += ["", "By these rows and digits it can't be told from:"]
        lines += [f"  {_named(each)}" for each in others]
    if found.ruled_out:
        lines += ["", "Ruled out:"]
        lines += [f"  {_named(each)}" for each in found.ruled_out]
    return "\n".join(lines)


def _named(each: RuleValue) -> str:
    parts = [part for part in (each.scope, f"times {each.factor}" if each.factor else "", each.reach) if part]
    return f"{each.rule}{' (' + ', '.join(parts) + ')' if parts else ''} gives {each.value:.10g}"

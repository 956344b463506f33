"""`weighbridge cases`: the catalogue of failure mechanisms, each one executed."""

from __future__ import annotations

import time
from pathlib import Path

import click

from weighbridge.cases.catalogue import MECHANISMS, find_entries, load_catalogue

__all__ = ["cases"]

_root_option = click.option(
    "--catalogue",
    "root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=MECHANISMS,
    show_default="the one that comes with weighbridge",
    help="A folder of entries.",
)
_program = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def cases() -> None:
    """Failure mechanisms: a contract, a program that breaks it, a fix that is none, and the repair; all executed."""


@cases.command("list")
@_root_option
def list_command(root: Path) -> None:
    """What there is."""
    from weighbridge.cases.terminal import print_list

    print_list(load_catalogue(root))


@cases.command()
@click.argument("case")
@_root_option
def show(case: str, root: Path) -> None:
    """One entry, with the outcome tables of its programs, which are run for it."""
    from weighbridge.cases.terminal import print_entry
    from weighbridge.cases.verify import verify_entries

    print_entry(verify_entries(find_entries(load_catalogue(root), (case,)))[0])


@cases.command()
@click.argument("program", type=_program)
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
@click.pass_context
def run(context: click.Context, program: Path, as_json: bool) -> None:
    """Run any program of the catalogue's format, confined, and show what was observed.

    A program is one Python file that prints one JSON object on its last line, {"observations": [{"check", "actual",
    "expected", "passed"}, ...], "passed": true|false}, and exits 0 if all passed, else 1.
    Exit status: 0 if every check passed and nothing was wrong with the run, else 1.
    """
    from weighbridge.cases.record import make_record
    from weighbridge.cases.runner import run_program
    from weighbridge.cases.terminal import print_record, to_json

    source = program.read_bytes()
    record = make_record(source, run_program({"program.py": source}))
    if as_json:
        click.echo(to_json(record.model_dump()))
    else:
        print_record(record)
    context.exit(0 if record.passed else 1)


@cases.command()
@click.argument("case", nargs=-1)
@_root_option
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("weighbridge-out/cases"))
@click.option("--jobs", type=click.IntRange(1), help="Programs at a time; as many as there are cores, if not given.")
@click.pass_context
def verify(context: click.Context, case: tuple[str, ...], root: Path, out: Path, jobs: int | None) -> None:
    """Execute everything: failing and unsuccessful must fail, and differently; the repair must pass.

    Each program runs at every variant. The records are written below --out. Exit status: 0 if all entries hold, else 1.
    """
    from weighbridge.cases.terminal import print_verified
    from weighbridge.cases.verify import verify_entries, write_records

    began = time.monotonic()
    verified = verify_entries(find_entries(load_catalogue(root), case), jobs=jobs)
    write_records(verified, out / "records")
    print_verified(verified, time.monotonic() - began)
    click.echo(f"Records in {out / 'records'}.")
    context.exit(0 if all(one.holds for one in verified) else 1)


@cases.command()
@click.argument("case")
@click.argument("candidate", type=_program)
@_root_option
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses the held-back values of N.")
@click.option("--json", "as_json", is_flag=True, help="Print the grade as JSON.")
@click.pass_context
def grade(context: click.Context, case: str, candidate: Path, root: Path, seed: int, as_json: bool) -> None:
    """Grade the `solve` in CANDIDATE.py against an entry's fixtures, at its variants and at held-back ones.

    Exit status: 0 if every check passes, else 1.
    """
    from weighbridge.cases.grade import grade_candidate, grade_json
    from weighbridge.cases.terminal import print_grade

    entry = find_entries(load_catalogue(root), (case,))[0]
    result = grade_candidate(entry, candidate.read_bytes(), seed=seed)
    if as_json:
        click.echo(grade_json(result))
    else:
        print_grade(result)
    context.exit(0 if result.passed else 1)


@cases.command()
@_root_option
@click.option("--ratios", default="80/10/10", show_default=True, help="Whole percentages that sum to 100.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides between groups of equal size.")
@click.option("--json", "as_json", is_flag=True, help="Print the split as JSON.")
def split(root: Path, ratios: str, seed: int, as_json: bool) -> None:
    """Evaluation splits that never separate an evaluation group."""
    from weighbridge.cases.split import parse_ratios, split_entries
    from weighbridge.cases.terminal import to_json

    parts = split_entries(load_catalogue(root), ratios=parse_ratios(ratios), seed=seed)
    if as_json:
        click.echo(to_json(parts))
        return
    for label, names in parts.items():
        click.echo(f"{label} ({len(names)})")
        for name in names:
            click.echo(f"  {name}")


@cases.command()
@_root_option
@click.option("--tier", type=click.Choice(["open", "member"]), required=True, help="open holds back every repair.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="A new or empty folder.")
def publish(root: Path, tier: str, out: Path) -> None:
    """Write the catalogue as a static site, from programs that are run for it."""
    from weighbridge.cases.publish.site import publish_site
    from weighbridge.cases.publish.tiers import Tier

    count = publish_site(load_catalogue(root), tier=Tier(tier), out=out)
    click.echo(f"{count} entries, {tier} tier. Open {out / 'index.html'}")

"""`weighbridge weigh`: its options, what it calls, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weighbridge.errors import InputError

if TYPE_CHECKING:
    from weighbridge.outcome import Outcome

__all__ = ["weigh"]

EXIT_STATUS = {"right": 0, "wrong": 1, "inconclusive": 3}
EXIT_INTERRUPTED = 130
FILE = click.Path(path_type=Path)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--objective", default="token-mean", show_default=True, metavar="NAME",
              help="What you mean: token-mean, sequence-mean, sum, or constant:X.")  # fmt: skip
@click.option("--steps", type=int, metavar="N",
              help="Optimizer steps to weigh.  [default: as many as the logged numbers need, at most 32]")  # fmt: skip
@click.option("--keep-running", is_flag=True, help="Let the command go on after the weighed steps.")
@click.option("--uneven", is_flag=True, help="Mask labels to counts that tell rules apart.")
@click.option("--tracer/--no-tracer", default=True, show_default=True, help="Weigh the logged numbers too.")
@click.option("--timeout", type=float, default=1800.0, show_default=True, metavar="SECONDS",
              help="Time until the weighed steps must be done.")  # fmt: skip
@click.option("--coefficient", "coefficients", multiple=True, metavar="NAME=VALUE",
              help="What a named loss term is multiplied by; may be given several times.")  # fmt: skip
@click.option("--json", "json_file", type=FILE, metavar="FILE", help="Write what was found as JSON.")
@click.option("--html", "html_file", type=FILE, metavar="FILE", help="Write a page that opens without a network.")
@click.option("--record", "record_folder", type=FILE, metavar="DIR", help="Keep the records of the run in DIR.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def weigh(
    objective: str,
    steps: int | None,
    keep_running: bool,
    uneven: bool,
    tracer: bool,
    timeout: float,
    coefficients: tuple[str, ...],
    json_file: Path | None,
    html_file: Path | None,
    record_folder: Path | None,
    command: tuple[str, ...],
) -> int:
    """Run a training command, unchanged, and find out how much each token weighed in the gradient and in every
    logged number, whether that is right, which rule explains it, and what to change.

    \b
    weighbridge weigh -- torchrun --nproc-per-node 2 train.py --lr 1e-4
    weighbridge weigh --json weights.json -- accelerate launch train.py
    weighbridge weigh -- python train.py

    Exit status: 0 right, 1 wrong, 2 usage, 3 could not tell, 130 interrupted.
    """
    from weighbridge.cli_progress import ProgressLines
    from weighbridge.weigh.session import WeighOptions, weigh_command

    options = WeighOptions(objective, steps, keep_running, uneven, tracer, timeout, _coefficients(coefficients))
    _check_outputs(json_file, html_file)
    weighing = weigh_command(command, options, record_folder=record_folder, on_progress=ProgressLines(sys.stderr))
    try:
        _report(weighing.outcome, json_file, html_file)
    except Exception as error:
        if weighing.record_folder is not None:
            error.add_note(f"The records of the run lie in {weighing.record_folder}")
        raise
    if weighing.result.ended_by == "interrupt":
        return EXIT_INTERRUPTED
    return EXIT_STATUS[weighing.outcome.verdict]


def _coefficients(texts: Sequence[str]) -> dict[str, float]:
    pairs = [_coefficient(text) for text in texts]
    for name, _ in pairs:
        if [other for other, _ in pairs].count(name) > 1:
            raise InputError(f"--coefficient names {name!r} twice. A term has one coefficient. Leave out one of them.")
    return dict(pairs)


def _coefficient(text: str) -> tuple[str, float]:
    name, equals, value = text.rpartition("=")
    try:
        if not (name and equals):
            raise ValueError
        return name, float(value)
    except ValueError:
        raise InputError(
            f"--coefficient is {text!r}. It is a name, an equals sign and a number. Write, for example, router=0.01"
        ) from None


def _check_outputs(json_file: Path | None, html_file: Path | None) -> None:
    from weighbridge.reports.json import check_writable

    if json_file is not None:
        check_writable(json_file, "--json")
    if html_file is not None:
        check_writable(html_file, "--html")


def _report(outcome: Outcome, json_file: Path | None, html_file: Path | None) -> None:
    from weighbridge.reports.json import write_json
    from weighbridge.reports.terminal import print_outcome

    if json_file is not None:  # files first: they are what is left when the terminal is gone
        write_json(outcome, json_file)
    if html_file is not None:
        from weighbridge.reports.html import write_html

        write_html(outcome, html_file)
    print_outcome(outcome)

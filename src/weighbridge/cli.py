"""The command line: parses, calls, prints.

A command's module is imported when that command runs, so that `weighbridge --help` is quick. To add a command, add one
line to `COMMANDS`.

Exit status: 0 right, 1 wrong, 2 a usage error, 3 could not tell, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from weighbridge import __version__
from weighbridge.errors import WeighbridgeError

__all__ = ["COMMANDS", "main", "weighbridge"]

EXIT_USAGE, EXIT_UNKNOWN, EXIT_INTERRUPTED = 2, 3, 130

# name -> ("module:attribute", one line for the list of commands)
COMMANDS: Mapping[str, tuple[str, str]] = {
    "weigh": ("weighbridge.cli_weigh:weigh", "Run a training command and weigh its tokens."),
    "mean": ("weighbridge.commands.mean:mean", "The token mean of rows of loss sums and counts."),
    "explain": ("weighbridge.commands.explain:explain", "Which rules give a reported value from such rows."),
    "cases": ("weighbridge.commands.cases:cases", "The catalogue of failure mechanisms: show, run, verify, grade."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="weighbridge")
def weighbridge() -> None:
    """How much does each token weigh in your distributed training step?

    \b
    weighbridge weigh -- torchrun --nproc-per-node 2 train.py
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit status; nothing but a message reaches the user, whatever happens."""
    try:
        status: Any = weighbridge.main(
            list(arguments) if arguments is not None else None, prog_name="weighbridge", standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except WeighbridgeError as error:
        _say(str(error))
        return EXIT_USAGE
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - stays open to the end, so that the last flush has a target
        return EXIT_UNKNOWN
    except Exception as error:
        return _say_unexpected(error)
    return status if isinstance(status, int) else 0


def _say_unexpected(error: Exception) -> int:
    if os.environ.get("WEIGHBRIDGE_DEBUG") == "1":
        traceback.print_exception(error)
        return EXIT_UNKNOWN
    notes = " ".join(f"{note}." for note in getattr(error, "__notes__", ()))
    _say(
        f"{type(error).__name__}: {error}. This is a fault in weighbridge, so it could not tell. {notes} "
        "Set WEIGHBRIDGE_DEBUG=1 to see where it happened."
    )
    return EXIT_UNKNOWN


def _say(text: str) -> None:
    click.echo(f"weighbridge: {text}", err=True)


def main() -> NoReturn:
    """The program `weighbridge`."""
    sys.exit(run())


if __name__ == "__main__":
    main()

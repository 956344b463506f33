"""Writes an outcome as JSON, and any report file so that it is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from weighbridge.errors import InputError
from weighbridge.outcome import Outcome

__all__ = ["check_writable", "to_json", "write_json", "write_whole"]


def to_json(outcome: Outcome) -> str:
    """The outcome as JSON text; NaN and infinities become null, as JSON has neither."""
    return outcome.model_dump_json(by_alias=True, indent=2) + "\n"


def write_json(outcome: Outcome, path: Path) -> None:
    """Write the `--json` file."""
    write_whole(path, to_json(outcome))


def write_whole(path: Path, text: str) -> None:
    """Write `text` in UTF-8, so that a reader sees the old file or the new one and never a part."""
    if path.exists() and not path.is_file():  # /dev/stdout, a named pipe: there is nothing to replace
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def check_writable(path: Path, option: str) -> None:
    """Make sure, before hours of work, that a report can be written to `path`.

    Raises:
        InputError: it can't.
    """
    advice = f"Pass another file to {option}."
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder. {option} needs a file to write to. {advice}")
    if path.exists() and not path.is_file():
        return
    try:
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
        if path.exists():
            with path.open("ab"):
                pass
    except OSError as error:
        raise InputError(
            f"{str(path)!r} can't be written: {error.strerror}. {option} needs a file in an existing folder that you "
            f"may write. {advice}"
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

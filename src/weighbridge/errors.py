"""Every error that weighbridge raises itself.

    WeighbridgeError
    ├── InputError(ValueError)        what was given breaks a rule: a row, a count, an option
    ├── RecordError(RuntimeError)     a record of a weighed run can't be read or doesn't fit together
    └── MissingExtra(ImportError)     something optional is not installed

Each message has three parts, always in this order: the value that is wrong, the rule it breaks, what to do.
"""

from __future__ import annotations

__all__ = ["InputError", "MissingExtra", "RecordError", "WeighbridgeError"]


class WeighbridgeError(Exception):
    """The root of all errors that weighbridge raises on purpose."""


class InputError(WeighbridgeError, ValueError):
    """A value given by the user breaks a rule that the message names."""


class RecordError(WeighbridgeError, RuntimeError):
    """A record of a weighed run can't be read, or its ranks don't fit together."""


class MissingExtra(WeighbridgeError, ImportError):
    """An optional dependency is not installed; the message gives the command that installs it."""

    @classmethod
    def of(cls, what: str, extra: str) -> MissingExtra:
        """The error for `what` (a verb phrase, such as "Weighing Lightning") that needs the extra named `extra`."""
        return cls(f"{what} needs {extra}, which is not installed. Run: pip install 'weighbridge[{extra}]'")

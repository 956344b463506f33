"""Every error that weighbridge raises itself.

    WeighbridgeError
    ├── InputError(ValueError)        what was given breaks a rule: a row, a count, an option
    │   └── NonFiniteError            a NaN or an infinity where the caller asked to be told
    ├── CollectiveError(RuntimeError) ranks could not be brought together: one is missing, or they disagree
    ├── WeightError(RuntimeError)     a training step was checked, and its tokens don't weigh what they should
    ├── RecordError(RuntimeError)     a record of a weighed run can't be read or doesn't fit together
    └── MissingExtra(ImportError)     something optional is not installed

Each message has three parts, always in this order: the value that is wrong, the rule it breaks, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "CollectiveError",
    "InputError",
    "MissingExtra",
    "NonFiniteError",
    "RecordError",
    "WeighbridgeError",
    "WeightError",
]


class WeighbridgeError(Exception):
    """The root of all errors that weighbridge raises on purpose."""


class InputError(WeighbridgeError, ValueError):
    """A value given by the user breaks a rule that the message names."""


class NonFiniteError(InputError):
    """A NaN or an infinity was met under `nonfinite="raise"`."""


class CollectiveError(WeighbridgeError, RuntimeError):
    """Ranks could not be brought together within the limit, or hold things that don't fit together.

    Attributes:
        missing: ranks of the group that did not take part, in ascending order; empty where that is not the matter.
    """

    def __init__(self, message: str, *, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class WeightError(WeighbridgeError, RuntimeError):
    """A training step was checked against its own microbatches, and a token does not weigh what it should."""


class RecordError(WeighbridgeError, RuntimeError):
    """A record of a weighed run can't be read, or its ranks don't fit together."""


class MissingExtra(WeighbridgeError, ImportError):
    """An optional dependency is not installed; the message gives the command that installs it."""

    @classmethod
    def of(cls, what: str, extra: str) -> MissingExtra:
        """The error for `what` (a verb phrase, such as "Weighing Lightning") that needs the extra named `extra`."""
        return cls(f"{what} needs {extra}, which is not installed. Run: pip install 'weighbridge[{extra}]'")

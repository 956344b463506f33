"""What the command line tells the weighed processes, through one environment variable."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """Options of a weighing that its processes need.

    Attributes:
        steps: optimizer steps to weigh; None for as many as the tracer needs to go round the pieces, at most 32.
        keep_running: go on after the weighed steps, without probe and tracer.
        uneven: mask labels in the batches of data loaders to counts that tell rules apart.
        tracer: add constants to the losses of single pieces, to read the weights of logged numbers.
    """

    steps: int | None = None
    keep_running: bool = False
    uneven: bool = False
    tracer: bool = True

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Options:
        """Options from `to_text`; keys of another version are left out."""
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})

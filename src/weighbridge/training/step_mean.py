"""The mean loss of a step, as `GradientNormalizer.finish` hands it back."""

from __future__ import annotations

from functools import cached_property

import torch

from weighbridge.exact import ExactSum
from weighbridge.mean import Exactness, Mean

__all__ = ["StepMean"]


class StepMean:
    """The mean loss of a step over all ranks; copied from the device when it is first looked at.

    Attributes:
        lanes: the exact state, int64 [70].
    """

    def __init__(self, lanes: torch.Tensor, exactness: Exactness) -> None:
        self.lanes = lanes
        self._exactness = exactness

    @cached_property
    def mean(self) -> Mean:
        """The pair itself."""
        return Mean(ExactSum.from_lanes(self.lanes.tolist()), exactness=self._exactness)

    @property
    def value(self) -> float | None:
        """The mean loss; None where the step had no token."""
        return self.mean.value

    @property
    def count(self) -> int:
        """Tokens of the step over all ranks."""
        return self.mean.count

    def __repr__(self) -> str:
        return f"Step{self.mean!r}"

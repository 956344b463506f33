"""A look at real gradients beside the probe's: do the ranks agree about them?

A wrapper that weighbridge does not know may have collected its parameters before the probe joined. Then it reduces
those, and leaves the probe out: the probe's gradient differs between ranks, and no other does. The sums of a few
gradients on every rank tell that from ranks that really drift apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weighbridge.weigh import probe

__all__ = ["Beside"]

LOOKED_AT = 4  # parameters
SMALL = 1 << 16  # elements of a parameter that is looked at


class Beside:
    """A few small parameters of the probed module, chosen when they first have gradients."""

    def __init__(self) -> None:
        self._chosen: list[nn.Parameter] | None = None

    def sums(self, owner: nn.Module) -> list[float] | None:
        """Sum of squares of each one's gradient on this rank; None where nothing can be said, as for shards."""
        if self._chosen is None:
            held = [each for each in owner.parameters() if _is_whole(each) and not probe.is_probe(each)]
            self._chosen = [each for each in held if each.grad is not None][:LOOKED_AT]
        found = [each.grad for each in self._chosen if each.grad is not None]
        if not found:
            return None
        sums: list[float] = torch.stack([each.detach().double().square().sum().cpu() for each in found]).tolist()
        return sums


def _is_whole(parameter: Any) -> bool:
    sharded = hasattr(parameter, "to_local") or getattr(parameter, "_fsdp_flattened", False)
    return parameter.requires_grad and not sharded and parameter.numel() <= SMALL

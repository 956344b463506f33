"""Loss sums and token counts of one step, kept where the losses are until the step ends.

A sum that comes with its count is only put aside: all of a step are made exact at once, since the first value costs as
much as the next thousand. Token losses are summed exactly as they come, because they need not be kept then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from weighbridge.exact import WIDE, add_lanes, exact_lanes, widen_lanes
from weighbridge.mean import Exactness

__all__ = ["StepCounts"]


class StepCounts:
    """The exact sums and counts of a step's terms, on this rank.

    Args:
        terms: their names.
    """

    def __init__(self, terms: Iterable[str]) -> None:
        self._rows: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {term: [] for term in terms}
        self._lanes: dict[str, torch.Tensor] = {}
        self._summed: set[str] = set()

    def __bool__(self) -> bool:
        """Whether anything was added, if only a count of 0."""
        return bool(self._lanes or self._summed)

    def add_tokens(self, term: str, losses: torch.Tensor, mask: torch.Tensor) -> None:
        """The `losses` of tokens where `mask` (bool, same shape) is True."""
        self._add(term, _wide(exact_lanes(losses.detach(), mask)))

    def add_sum(self, term: str, total: torch.Tensor, tokens: torch.Tensor) -> None:
        """A loss sum [] and how many tokens are in it, int64 [], on one device."""
        self._rows[term].append((total.detach(), tokens))
        self._summed.add(term)

    def exactness(self, term: str) -> Exactness:
        """Exact over tokens; or over rows, as soon as one sum was handed in."""
        return Exactness.ROWS if term in self._summed else Exactness.TOKENS

    def lanes(self, device: torch.device) -> torch.Tensor:
        """All terms' states on `device`, int64 [terms, 70], zero for those without an entry; nothing is lost by it."""
        for term, rows in self._rows.items():
            if rows:
                self._add(term, _exact_rows(*zip(*rows, strict=True)))
                rows.clear()
        nothing = torch.zeros(WIDE.lanes, dtype=torch.int64, device=device)
        return torch.stack([self._lanes.get(term, nothing).to(device) for term in self._rows])

    def _add(self, term: str, lanes: torch.Tensor) -> None:
        held: Any = self._lanes.get(term)
        made: Any = lanes if held is None else add_lanes(held, lanes.to(held.device))
        self._lanes[term] = made


def _wide(lanes: Any) -> torch.Tensor:
    """A state as a tensor in the wide layout."""
    wide: Any = widen_lanes(lanes) if lanes.shape[0] != WIDE.lanes else lanes
    return wide if isinstance(wide, torch.Tensor) else torch.from_numpy(np.array(wide))


def _exact_rows(totals: tuple[torch.Tensor, ...], counts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Sums already taken, and their counts, as one state; nothing depends on the values."""
    dtype = torch.float64 if any(total.dtype == torch.float64 for total in totals) else torch.float32
    values, tokens = torch.stack([total.to(dtype) for total in totals]), torch.stack(counts)
    lanes = _wide(exact_lanes(values, tokens > 0))
    flags = torch.stack([torch.ones_like(tokens, dtype=torch.bool), values.isnan(), values == torch.inf])
    lanes[WIDE.limbs : -1] = (flags * tokens).sum(1)
    lanes[-1] = ((values == -torch.inf) * tokens).sum()
    return lanes

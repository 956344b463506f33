"""The factor that turns a sum of losses into a part of the token mean of the whole step.

With N tokens in the step, over all ranks and microbatches, every token should weigh 1/N. A wrapper that averages
gradients over W ranks divides by W on the way, so the loss sum is multiplied by W/N; one that adds them up leaves 1/N.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, overload

import torch

from weighbridge.collectives import DEFAULT_LIMIT, Collective, collective_for
from weighbridge.errors import InputError

__all__ = ["loss_scale", "sum_counts"]

Count: TypeAlias = "int | torch.Tensor"
Scale: TypeAlias = "torch.Tensor"


@overload
def loss_scale(
    valid_tokens: Count, group: Any = None, *, divisor: float | None = None, limit: float = DEFAULT_LIMIT
) -> Scale: ...


@overload
def loss_scale(
    valid_tokens: Mapping[str, Count | tuple[Count, float]],
    group: Any = None,
    *,
    divisor: float | None = None,
    limit: float = DEFAULT_LIMIT,
) -> dict[str, Scale]: ...


def loss_scale(
    valid_tokens: Any, group: Any = None, *, divisor: float | None = None, limit: float = DEFAULT_LIMIT
) -> Scale | dict[str, Scale]:
    """What to multiply this rank's loss sums by, so that every token of the step weighs the same. One all-reduce.

    Call it once a step, on every rank, before the first backward; a rank without tokens passes 0.

    Args:
        valid_tokens: tokens of this rank in all microbatches of the step; an int, or an integer tensor, which is not
            copied from its device. Or a dict with an entry for each term of the loss, a count or a pair (count,
            coefficient): every term is then a mean over its own count.
        group: the ranks that share the denominator: a process group, a mesh (with DP x CP, both axes), or None.
        divisor: what the wrapper divides gradients by. None: the number of ranks (DDP, FSDP); 1 where it adds them up.
        limit: seconds to wait for other ranks.

    Returns:
        divisor / N as a float64 tensor [], on the device of the count; 0 tokens in the whole step give `divisor`.
        For a dict, one of these each, times its coefficient.

    Raises:
        InputError: a count is negative or not a whole number.
        CollectiveError: a rank did not take part within the limit.

    >>> float(loss_scale(8))
    0.125
    >>> {name: float(scale) for name, scale in loss_scale({"main": 8, "mtp": (4, 0.5)}).items()}
    {'main': 0.125, 'mtp': 0.125}
    """
    ranks = collective_for(group, limit=limit)
    over = float(ranks.world_size if divisor is None else divisor)
    named = valid_tokens if isinstance(valid_tokens, Mapping) else {"": valid_tokens}
    pairs = {name: term if isinstance(term, tuple) else (term, 1.0) for name, term in sorted(named.items())}
    counts = [_as_count(count, name) for name, (count, _) in pairs.items()]
    device = next((count.device for count in counts if count.device.type != "cpu"), torch.device("cpu"))
    totals = sum_counts(torch.stack([count.to(device, non_blocking=True) for count in counts]), ranks)
    scales = over / totals.clamp(min=1).double()
    found = {name: scales[index] * pairs[name][1] for index, name in enumerate(pairs)}
    return found if isinstance(valid_tokens, Mapping) else found[""]


def sum_counts(counts: torch.Tensor, ranks: Collective) -> torch.Tensor:
    """The int64 sum over ranks of `counts` [N], on their device; torch groups don't go by way of the host."""
    direct = getattr(ranks, "sum_tensor", None)
    if direct is not None:
        summed: torch.Tensor = direct(counts)
        return summed
    return torch.from_numpy(ranks.sum(counts)).to(counts.device)


def _as_count(count: Any, name: str, device: torch.device | None = None) -> torch.Tensor:
    """A count as int64 [], on `device` if one is given, without waiting for it."""
    term = f" of {name!r}" if name else ""
    if isinstance(count, torch.Tensor):
        if count.numel() != 1 or count.is_floating_point() or count.is_complex():
            raise InputError(
                f"valid_tokens{term} is a tensor of {count.dtype} {list(count.shape)}. A count is one whole number. "
                "Pass mask.sum()."
            )
        if count.device.type == "cpu" and int(count) < 0:
            raise InputError(f"valid_tokens{term} is {int(count)}. A count is a whole number of at least 0.")
        return count.detach().reshape(()).to(device, torch.int64, non_blocking=True)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise InputError(f"valid_tokens{term} is {count!r}. A count is a whole number of at least 0. Pass an int.")
    return torch.full((), count, dtype=torch.int64, device=device)  # filled there: a copy would wait for the device

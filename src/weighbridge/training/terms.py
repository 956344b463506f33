"""Several terms of one loss, each a mean over its own tokens: a gradient for each, until the counts are known.

The terms' denominators are known at the end of the step, and by then one gradient could no longer be taken apart. So
each term has its own backward and its own gradients, and `combine` adds them up with their final factors. That costs as
many backwards and as much memory for gradients as there are terms; where tokens can be counted ahead, `loss_scale` with
a dict does without.

FSDP2 reduces each term's gradients as it goes. DDP reduces at the first backward after a forward only, so there the
gradients stay local, and are reduced in `combine`: once, whatever the number of terms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from weighbridge.collectives import Collective, collective_for, say_ranks
from weighbridge.errors import InputError
from weighbridge.training.gradients import Gradients, multiply

__all__ = ["TermGradients", "agreed_coefficients"]

BUCKET = 1 << 22  # elements that are reduced in one go

Held = dict[torch.nn.Parameter, torch.Tensor]


def agreed_coefficients(terms: Mapping[str, float], ranks: Collective) -> dict[str, float]:
    """The terms' coefficients in one order on all ranks; a collective over `ranks`.

    Raises:
        InputError: there is none, a coefficient is not a finite number, or ranks were given different ones.
    """
    if not isinstance(terms, Mapping) or not terms:
        raise InputError(
            f"terms is {terms!r}. It is a dict of the loss's terms and their coefficients: {{'main': 1.0}}."
        )
    for name, value in terms.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"The coefficient of {name!r} is {value!r}. It is a finite number. Pass a float.")
    mine = {name: float(terms[name]) for name in sorted(terms)}
    everyone = [json.loads(text) for text in ranks.gather(json.dumps(mine))]
    other = [rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]]
    if other:
        raise InputError(
            f"The terms of rank 0 are {everyone[0]}, those of {say_ranks(other)} differ: {everyone[other[0]]}. "
            "All ranks of a group have the same terms and coefficients. Pass the same everywhere."
        )
    return mine


class TermGradients:
    """The gradients of each term, summed over the microbatches of the step.

    Args:
        gradients: the model's.
        world_size: number of ranks that share a denominator.
        limit: seconds to wait for other ranks.

    Raises:
        InputError: several terms don't work with this kind of wrapper.
    """

    def __init__(self, gradients: Gradients, *, world_size: int, limit: float) -> None:
        model = gradients.module
        ddp = isinstance(model, torch.nn.parallel.DistributedDataParallel)
        sharded = any(hasattr(parameter, "to_local") for parameter in model.parameters())
        if type(gradients) is not Gradients or not (ddp or sharded or world_size == 1):
            raise InputError(
                f"Several terms of a loss need DDP, FSDP2 or one process; the model is a {type(model).__name__}. Count "
                "each term's tokens before the first backward, and use loss_scale({'main': tokens, ...})."
            )
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._held: dict[str, Held] = {}
        self._ranks: Any = None
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model.require_backward_grad_sync = False  # as in `no_sync`, for good
            self._ranks = collective_for(model.process_group, limit=limit)

    @property
    def reduces(self) -> bool:
        """Whether `combine` adds up over ranks: then nothing else divides."""
        return self._ranks is not None

    @contextmanager
    def of(self, term: str) -> Iterator[None]:
        """Inside it, `.grad` of the parameters are the term's."""
        self._show(self._held.setdefault(term, {}))
        yield
        self._held[term] = {each: each.grad for each in self._parameters if each.grad is not None}
        self._show({})

    def combine(self, scales: Mapping[str, torch.Tensor]) -> None:
        """Put the sum over terms of each one's gradients times its scale [] into `.grad`; a new step begins."""
        total: Held = {}
        for term, held in self._held.items():
            keys = list(held)
            if not keys:
                continue
            parts = [_local(each) for each in held.values()]
            multiply(parts, scales[term])
            for key, part in zip(keys, parts, strict=True):
                if key in total:
                    _local(total[key]).add_(part)
                else:
                    total[key] = held[key]
        if self._ranks is not None:
            total = self._reduced(total)
        self._held = {}
        self._show(total)

    def _show(self, held: Held) -> None:
        for parameter in self._parameters:
            parameter.grad = held.get(parameter)

    def _reduced(self, total: Held) -> Held:
        """The sum over ranks; a parameter that no rank's loss reached is zero there, as in DDP."""
        found = {each: total.get(each, torch.zeros_like(each)) for each in self._parameters}
        for bucket in _buckets(list(found.values())):
            flat = torch.cat([each.reshape(-1) for each in bucket])
            self._ranks.sum_in_place(flat)
            for each, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                each.copy_(part.view_as(each))
        return found


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors of one dtype and device, `BUCKET` elements or so at a time, in the same order on all ranks."""
    bucket: list[torch.Tensor] = []
    for tensor in tensors:
        alike = bucket and (bucket[0].dtype, bucket[0].device) == (tensor.dtype, tensor.device)
        if bucket and (not alike or sum(each.numel() for each in bucket) + tensor.numel() > BUCKET):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket

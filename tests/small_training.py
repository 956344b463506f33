"""A small model wrapped in every way, uneven batches, and the gradient of one float64 process that sees all tokens."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

COUNTS = [[1, 15, 0], [4, 2, 7], [0, 0, 0], [3, 0, 20]]  # tokens by rank and microbatch
WORDS, WIDTH, LENGTH = 13, 8, 24


def model_of(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, WORDS)).to(dtype)


def batch(rank: int, microbatch: int, counts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + microbatch)
    words = torch.randint(0, WORDS, (2, LENGTH), generator=generator)
    labels = torch.randint(0, WORDS, (2 * LENGTH,), generator=generator)
    labels[counts[rank][microbatch] :] = -100
    return words, labels


def losses_of(model: nn.Module, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(words).flatten(0, 1), labels, reduction="none")


def reference(counts: list[list[int]], world_size: int) -> list[torch.Tensor]:
    model = model_of(torch.float64)
    total = sum(sum(each) for each in counts[:world_size])
    for rank in range(world_size):
        for microbatch in range(len(counts[rank])):
            (losses_of(model, *batch(rank, microbatch, counts)).sum() / max(total, 1)).backward()
    return [parameter.grad for parameter in model.parameters()]  # type: ignore[misc]


def off(model: nn.Module, counts: list[list[int]], world_size: int) -> float:
    """The largest difference of a gradient from the reference, relative to the largest entry of that."""
    worst = 0.0
    for parameter, right in zip(model.parameters(), reference(counts, world_size), strict=True):
        gradient = parameter.grad
        assert gradient is not None
        whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        worst = max(worst, float((whole.double() - right).abs().max() / right.abs().max()))
    return worst


def wrapped(kind: str, world_size: int) -> tuple[nn.Module, nn.Module]:
    """The model as a user wraps it, and the module whose parameters hold the gradients."""
    from torch.distributed.fsdp import fully_shard

    model = model_of()
    if kind.startswith("ddp"):
        ddp = DistributedDataParallel(model)
        return ddp, ddp.module
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
        return fully_shard(model, mesh=mesh), model
    if kind.startswith("fsdp2"):
        if kind != "fsdp2 root":
            fully_shard(model[1])
        fully_shard(model)
        if kind == "fsdp2 factors":
            for module, factor in ((model[1], 1.0), (model, 3.0)):
                module.set_force_sum_reduction_for_comms(True)  # gloo can't scale while it reduces
                module.set_gradient_divide_factor(factor)
        return model, model
    return model, model


def window(model: nn.Module, kind: str, microbatch: int, last: int) -> contextlib.AbstractContextManager[Any]:
    if kind == "ddp no_sync" and microbatch < last:
        return model.no_sync()  # type: ignore[operator, no-any-return]
    if kind == "fsdp2 no sync":
        model.set_requires_gradient_sync(microbatch == last)  # type: ignore[operator]
    return contextlib.nullcontext()

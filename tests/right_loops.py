"""Right loops on any counts: plain accumulation with gradients averaged by hand, and DDP with no_sync."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from loops import Counts, Model, average, microbatch
from weighbridge import report


def train(rank: int, world_size: int, kind: str, steps: list[Counts], seed: int) -> None:
    """Every step divides by its tokens on all ranks, and logs the mean over them."""
    torch.manual_seed(seed)
    model: nn.Module = Model(torch.float32)
    wrapped = nn.parallel.DistributedDataParallel(model) if kind == "DDP" and world_size > 1 else model
    descent = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(seed + rank)
    for counts in steps:
        total = sum(sum(tokens) for own in counts for tokens in own)
        value = torch.zeros((), dtype=torch.float64)
        for m, tokens in enumerate(counts[rank]):
            inputs, labels = microbatch(generator, tokens)
            last = m == len(counts[rank]) - 1
            with contextlib.nullcontext() if last or wrapped is model else wrapped.no_sync():
                logits = wrapped(inputs)
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
                value += loss.detach().double()
                (loss * (world_size / total)).backward()
        if wrapped is model:
            average(model, world_size)
        descent.step()
        descent.zero_grad()
        if world_size > 1:
            dist.all_reduce(value)
        report("loss", value / total)

"""Loops over a mesh of data and tensor parallelism, for tests of the weighing."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from fsdp1_loops import STEPS, batch
from loops import VOCABULARY

MICROBATCHES = 2


def train(rank: int, world_size: int, wrapper: str, how: str) -> None:
    """Ranks 0 and 1 share a model, and so do 2 and 3; "other data" feeds each rank its own all the same."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    warnings.filterwarnings("ignore")
    torch.manual_seed(11)
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("dp", "tp"))
    model: nn.Module = nn.Sequential(
        nn.Embedding(VOCABULARY, 12), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, VOCABULARY)
    )
    if how != "other data":
        parallelize_module(model, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
    if wrapper == "fsdp2":
        fully_shard(model, mesh=mesh["dp"])
    elif wrapper == "ddp":
        model = nn.parallel.DistributedDataParallel(model, process_group=mesh["dp"].get_group())
    descent = torch.optim.SGD(model.parameters(), lr=0.01)
    own = rank if how == "other data" else rank // 2
    for step in range(STEPS):
        mine = [batch(step, own, m) for m in range(MICROBATCHES)]
        total = torch.tensor(sum(int((labels != -100).sum()) for _, labels in mine))
        dist.all_reduce(total, group=mesh["dp"].get_group())
        for ids, labels in mine:
            logits = model(ids).flatten(0, 1)
            if how == "wrong":
                loss = F.cross_entropy(logits, labels.flatten()) / MICROBATCHES
            else:
                loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") * (world_size // 2) / total
            loss.backward()
        descent.step()
        descent.zero_grad()

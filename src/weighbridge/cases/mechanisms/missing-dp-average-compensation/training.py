"""The loss sum is divided by the tokens of all ranks, and DDP divides by the world size once more.

    torchrun --nproc-per-node 2 training.py             the fault
    torchrun --nproc-per-node 2 training.py --repair    the repair
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

REPAIR = "--repair" in sys.argv
STEPS = 6

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 40)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
draw = torch.Generator().manual_seed(1 + rank)


def batch(*supervised):
    """Token ids and next-token labels of one sequence for each count; labels after the first `count` are masked."""
    ids = torch.randint(40, (len(supervised), 17), generator=draw)
    labels = ids[:, 1:].clone()
    for row, count in zip(labels, supervised):
        row[count:] = -100
    return ids[:, :-1], labels


def loss_of(inputs, labels, reduction):
    return F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), reduction=reduction)


def over_ranks(value):
    """The sum of a number over all ranks."""
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total


for step in range(STEPS):
    inputs, labels = batch(*[(2, 3), (12, 9)][rank])
    tokens = over_ranks(int((labels != -100).sum()))
    loss = loss_of(inputs, labels, "sum") / tokens
    if REPAIR:
        loss = loss * world_size  # DDP averages over ranks
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()

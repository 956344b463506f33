"""Rank 0 logs its own last microbatch.

    torchrun --nproc-per-node 2 training.py             the fault
    torchrun --nproc-per-node 2 training.py --repair    the repair

Rank 0 prints what is reported, and the rows [sum, count] that it should be made of.
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

REPAIR = "--repair" in sys.argv

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 40)).double()
draw = torch.Generator().manual_seed(1 + rank)


def batch(*supervised):
    """Token ids and next-token labels of one sequence for each count; labels after the first `count` are masked."""
    ids = torch.randint(40, (len(supervised), 17), generator=draw)
    labels = ids[:, 1:].clone()
    for row, count in zip(labels, supervised):
        row[count:] = -100
    return ids[:, :-1], labels


def loss_and_count(inputs, labels):
    """The sum of the losses over the supervised tokens, and their number."""
    with torch.no_grad():
        loss_sum = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), reduction="sum")
    return loss_sum.item(), int((labels != -100).sum())


def over_ranks(*values):
    """The sums of some numbers over all ranks."""
    totals = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(totals)
    return totals.tolist()


def tell(reported, rows, kind="mean"):
    """Rank 0 prints what it reports, beside the rows of all ranks."""
    gathered = [None] * world_size
    dist.all_gather_object(gathered, rows)
    if rank == 0:
        everything = [row for own in gathered for row in own]
        print(json.dumps({"kind": kind, "reported": reported, "rows": everything}), flush=True)


rows = [loss_and_count(*batch(*counts)) for counts in [[(2, 3), (9,)], [(5,), (12, 4)]][rank]]
if REPAIR:
    total, count = over_ranks(sum(loss for loss, _ in rows), sum(tokens for _, tokens in rows))
    logged = total / count
else:
    logged = rows[-1][0] / rows[-1][1]
tell(logged, rows)

dist.barrier()
dist.destroy_process_group()

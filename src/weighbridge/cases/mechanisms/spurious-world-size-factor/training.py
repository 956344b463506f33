"""The loss that was scaled against DDP's average is also summed over the ranks and logged.

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


loss_sum, tokens = loss_and_count(*batch(*[(2, 3), (12, 9)][rank]))
(all_tokens,) = over_ranks(tokens)
to_backward = world_size * loss_sum / all_tokens
(logged,) = over_ranks(loss_sum / all_tokens if REPAIR else to_backward)
tell(logged, [(loss_sum, tokens)])

dist.barrier()
dist.destroy_process_group()

"""DistributedDataParallel with gradient accumulation, wrong and right.

torchrun --nproc-per-node 2 examples/ddp.py --loss mean         every microbatch counts the same
torchrun --nproc-per-node 2 examples/ddp.py --loss token-mean   every token counts the same
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from prose import answers, batch
from tiny import TinyLM, seed_everything, shifted
from torch.nn.parallel import DistributedDataParallel

import weighbridge

parser = argparse.ArgumentParser()
parser.add_argument("--loss", choices=["mean", "token-mean"], default="mean")
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--optimizer", choices=["AdamW", "SGD"], default="AdamW")
parser.add_argument("--clip", type=float, default=1.0)
options = parser.parse_args()

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
seed_everything()
model = DistributedDataParallel(TinyLM())
optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=1e-3)
items = answers(world_size * options.accumulation * options.batch * options.steps)[rank::world_size]

for step in range(options.steps):
    window = [batch([items.pop(0) for _ in range(options.batch)]) for _ in range(options.accumulation)]
    tokens = torch.tensor(sum(int((part["labels"][:, 1:] != -100).sum()) for part in window))
    dist.all_reduce(tokens)
    logged = torch.zeros(())
    for part in window:
        logits, labels = shifted(model(part["input_ids"]), part["labels"])
        if options.loss == "mean":
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / options.accumulation
        else:
            # DDP averages over ranks, so the sum is scaled by the world size and divided by the tokens of all ranks.
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") * world_size / tokens
        loss.backward()
        logged += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(logged)
    weighbridge.report("loss", logged / world_size)
    if rank == 0:
        print(f"step {step} loss {logged / world_size:.4f}", flush=True)

dist.destroy_process_group()

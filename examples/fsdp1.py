"""FSDP1 (`FullyShardedDataParallel`) with accumulation, wrong and right.

torchrun --nproc-per-node 2 examples/fsdp1.py --loss mean
torchrun --nproc-per-node 2 examples/fsdp1.py --loss token-mean --original
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from prose import answers, batch
from tiny import Block, TinyLM, seed_everything, shifted
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import weighbridge

parser = argparse.ArgumentParser()
parser.add_argument("--loss", choices=["mean", "token-mean"], default="mean")
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--original", action="store_true", help="use_orig_params=True")
options = parser.parse_args()

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
seed_everything()
model = FullyShardedDataParallel(
    TinyLM(),
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    use_orig_params=options.original,
    device_id=torch.device("cpu"),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
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
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") * world_size / tokens
        loss.backward()
        logged += loss.detach()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(logged)
    weighbridge.report("loss", logged / world_size)
    if rank == 0:
        print(f"step {step} loss {logged / world_size:.4f}", flush=True)

dist.destroy_process_group()

"""FSDP2 (`fully_shard`) with accumulation, a layer at a time, wrong and right.

torchrun --nproc-per-node 2 examples/fsdp2.py --loss mean
torchrun --nproc-per-node 2 examples/fsdp2.py --loss token-mean
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from prose import answers, batch
from tiny import TinyLM, seed_everything, shifted
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import weighbridge

parser = argparse.ArgumentParser()
parser.add_argument("--loss", choices=["mean", "token-mean"], default="mean")
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--reduce", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mesh", choices=["1d", "2d"], default="1d")
parser.add_argument("--checkpointing", action="store_true")
options = parser.parse_args()

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
seed_everything()
if options.mesh == "2d":
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("replicate", "shard"))
else:
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("shard",))
policy = MixedPrecisionPolicy()
if options.reduce == "bfloat16":
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)

model = TinyLM()
for layer in model.layers:
    if options.checkpointing:
        inner = layer.feed.forward
        layer.feed.forward = lambda hidden, inner=inner: checkpoint(inner, hidden, use_reentrant=False)
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
items = answers(world_size * options.accumulation * options.batch * options.steps)[rank::world_size]

for step in range(options.steps):
    window = [batch([items.pop(0) for _ in range(options.batch)]) for _ in range(options.accumulation)]
    tokens = torch.tensor(sum(int((part["labels"][:, 1:] != -100).sum()) for part in window))
    dist.all_reduce(tokens)
    logged = torch.zeros(())
    for part in window:
        logits, labels = shifted(model(part["input_ids"]), part["labels"])
        flat = logits.float().flatten(0, 1)
        if options.loss == "mean":
            loss = F.cross_entropy(flat, labels.flatten()) / options.accumulation
        else:
            loss = F.cross_entropy(flat, labels.flatten(), reduction="sum") * world_size / tokens
        loss.backward()
        logged += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(logged)
    weighbridge.report("loss", logged / world_size)
    if rank == 0:
        print(f"step {step} loss {logged / world_size:.4f}", flush=True)

dist.destroy_process_group()

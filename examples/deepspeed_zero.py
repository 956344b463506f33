"""DeepSpeed ZeRO with a mean loss: every microbatch counts the same.

    torchrun --nproc-per-node 2 examples/deepspeed_zero.py --stage 2

On a machine without GPUs set DS_ACCELERATOR=cpu.
"""

import argparse

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from prose import answers, batch
from tiny import TinyLM, shifted
from zero_on_gloo import wait_for_every_gather

import weighbridge

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--loss", choices=["mean", "token-mean"], default="mean")
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--steps", type=int, default=12)
options = parser.parse_args()

deepspeed.init_distributed("gloo")
wait_for_every_gather()
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = TinyLM()
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": options.accumulation,
        "zero_optimization": {"stage": options.stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    },
)
items = answers(world_size * options.accumulation * 2 * options.steps)[rank::world_size]

for step in range(options.steps):
    window = [batch([items.pop(0) for _ in range(2)]) for _ in range(options.accumulation)]
    tokens = torch.tensor(sum(int((part["labels"][:, 1:] != -100).sum()) for part in window))
    dist.all_reduce(tokens)
    logged = torch.zeros(())
    for part in window:
        logits, labels = shifted(engine(part["input_ids"]), part["labels"])
        flat, targets = logits.flatten(0, 1), labels.flatten()
        if options.loss == "mean":
            loss = F.cross_entropy(flat, targets)
        else:
            # The engine divides by the accumulation steps and averages over ranks: both are multiplied back.
            loss = F.cross_entropy(flat, targets, reduction="sum") * options.accumulation * world_size / tokens
        engine.backward(loss)
        engine.step()
        logged += loss.detach() / options.accumulation
    dist.all_reduce(logged)
    weighbridge.report("loss", logged / world_size)
    if rank == 0:
        print(f"step {step} loss {logged / world_size:.4f}", flush=True)

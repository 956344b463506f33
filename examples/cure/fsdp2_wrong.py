"""FSDP2 (`fully_shard`) with gradient accumulation, wrong: every microbatch of every rank counts the same."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from setting import STEPS, TinyLM, microbatches, seed_everything, shifted
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
seed_everything()
model = TinyLM()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    mean = torch.zeros(())
    batches = microbatches(step, rank=rank, world_size=world_size)
    for batch in batches:
        logits, labels = shifted(model(batch["input_ids"]), batch["labels"])
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / len(batches)
        loss.backward()
        mean += loss.detach() / world_size
    dist.all_reduce(mean)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step} loss {mean:.4f}", flush=True)
dist.destroy_process_group()

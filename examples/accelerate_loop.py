"""A training loop with Accelerate's `accumulate()`, wrong and right.

    accelerate launch --multi_gpu --num_processes 2 examples/accelerate_loop.py --loss mean
    accelerate launch --multi_gpu --num_processes 2 examples/accelerate_loop.py --loss token-mean

On a machine without GPUs `--multi_gpu` with `Accelerator(cpu=True)` runs two gloo ranks; `--cpu` would run one process.
The right loop is the recipe in Accelerate's guide for samples of variable size: count the window's tokens on all
ranks first, sum the losses, and scale by ranks times accumulation over that count.
"""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from prose import answers, batch
from tiny import TinyLM, seed_everything, shifted

import weighbridge

parser = argparse.ArgumentParser()
parser.add_argument("--loss", choices=["mean", "token-mean"], default="mean")
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--steps", type=int, default=12)
options = parser.parse_args()

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=options.accumulation)
seed_everything()
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(answers(256), batch_size=2, collate_fn=batch)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

batches = iter(loader)
for step in range(options.steps):
    window = [next(batches) for _ in range(options.accumulation)]
    tokens = accelerator.reduce(torch.tensor(sum(int((part["labels"][:, 1:] != -100).sum()) for part in window)))
    logged = torch.zeros(())
    for part in window:
        with accelerator.accumulate(model):
            logits, labels = shifted(model(part["input_ids"]), part["labels"])
            flat, targets = logits.flatten(0, 1), labels.flatten()
            if options.loss == "mean":
                loss = F.cross_entropy(flat, targets)
            else:
                # accumulate() divides by the accumulation steps, and DDP by the ranks: both are multiplied back.
                scale = accelerator.num_processes * options.accumulation / tokens
                loss = F.cross_entropy(flat, targets, reduction="sum") * scale
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        logged += loss.detach() / options.accumulation
    weighbridge.report("loss", accelerator.reduce(logged, reduction="mean"))
    accelerator.print(f"step {step} loss {accelerator.reduce(logged, reduction='mean'):.4f}", flush=True)

"""One plain process with gradient accumulation, wrong and right.

python examples/plain.py --loss mean
python examples/plain.py --loss token-mean
"""

import argparse

import torch
import torch.nn.functional as F
from prose import answers, batch
from tiny import TinyLM, seed_everything, shifted

import weighbridge

parser = argparse.ArgumentParser()
parser.add_argument("--loss", choices=["mean", "token-mean"], default="mean")
parser.add_argument("--accumulation", type=int, default=4)
parser.add_argument("--steps", type=int, default=12)
options = parser.parse_args()

seed_everything()
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
items = answers(options.accumulation * 2 * options.steps)

for step in range(options.steps):
    window = [batch([items.pop(0) for _ in range(2)]) for _ in range(options.accumulation)]
    tokens = sum(int((part["labels"][:, 1:] != -100).sum()) for part in window)
    optimizer.zero_grad()
    logged = 0.0
    for part in window:
        logits, labels = shifted(model(part["input_ids"]), part["labels"])
        if options.loss == "mean":
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / options.accumulation
        else:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / tokens
        loss.backward()
        logged += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    weighbridge.report("loss", logged)
    print(f"step {step} loss {logged:.4f}", flush=True)

"""One optimizer step with Accelerate, accumulation 3; the argument says how the loss is taken."""

import json
import sys

import torch
from accelerate import Accelerator
from common import RATE, Model, items, leave, losses_of, off
from torch.utils.data import DataLoader

from weighbridge import GradientNormalizer

accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
inner = Model()
optimizer = torch.optim.SGD(inner.parameters(), lr=RATE)
model, optimizer, loader = accelerator.prepare(inner, optimizer, DataLoader(items(), batch_size=2))
normalizer = GradientNormalizer(model, backward=accelerator.backward)
mean = None
for batch in loader:
    with accelerator.accumulate(model):
        losses, mask = losses_of(model, batch)
        if sys.argv[1] == "ours":
            normalizer.backward(losses, mask)
            if accelerator.sync_gradients:
                mean = normalizer.finish()
        else:
            accelerator.backward(losses.sum() / mask.sum().clamp(min=1))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    told = {"off": off(inner, clip=0.05), "count": mean.count if mean else 0, "divisor": normalizer.divisor}
    print(json.dumps(told), flush=True)
leave()

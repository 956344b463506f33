"""Accelerate's `accumulate()`, wrong: every microbatch of every rank counts the same."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from setting import ACCUMULATION, STEPS, TinyLM, batch, data, seed_everything, shifted

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
seed_everything()
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(data(2 * ACCUMULATION * 2 * STEPS), batch_size=2, collate_fn=batch)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
mean = 0.0
for part in loader:
    with accelerator.accumulate(model):
        logits, labels = shifted(model(part["input_ids"]), part["labels"])
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        accelerator.backward(loss)
        mean += accelerator.reduce(loss.detach(), reduction="mean") / ACCUMULATION
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            accelerator.print(f"loss {mean:.4f}", flush=True)
            mean = 0.0
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()

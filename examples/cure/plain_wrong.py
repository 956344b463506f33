"""One process with gradient accumulation, wrong: every microbatch counts the same."""

import torch
import torch.nn.functional as F
from setting import STEPS, TinyLM, microbatches, seed_everything, shifted

seed_everything()
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(STEPS):
    mean = 0.0
    batches = microbatches(step)
    for batch in batches:
        logits, labels = shifted(model(batch["input_ids"]), batch["labels"])
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / len(batches)
        loss.backward()
        mean += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {mean:.4f}", flush=True)

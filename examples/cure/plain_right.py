"""One process with gradient accumulation, right: every token counts the same."""

import torch
import torch.nn.functional as F
from setting import STEPS, TinyLM, microbatches, seed_everything, shifted

import weighbridge

seed_everything()
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
normalizer = weighbridge.GradientNormalizer(model)
for step in range(STEPS):
    batches = microbatches(step)
    for batch in batches:
        logits, labels = shifted(model(batch["input_ids"]), batch["labels"])
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        normalizer.backward(losses, labels.flatten() != -100)
    mean = normalizer.finish().value
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {mean:.4f}", flush=True)

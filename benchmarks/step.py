"""A training step of a few hundred milliseconds, timed: what `overhead.py` runs plain and weighed.

Writes one JSON line a rank to the file named by BENCH_OUT-<rank>: seconds of each step, and peak memory in KiB.
"""

import json
import os
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

steps, width = int(sys.argv[1]), int(sys.argv[2])
ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if ranks > 1 else 0
torch.set_num_threads(1)
torch.manual_seed(0)
vocabulary, batch, length = 4096, 4, 128
layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
model: nn.Module = nn.Sequential(
    nn.Embedding(vocabulary, width),
    nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
    nn.Linear(width, vocabulary),
)
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
generator = torch.Generator().manual_seed(rank)
seconds = []
for step in range(steps):
    start = time.perf_counter()
    for microbatch in range(2):
        tokens = torch.randint(0, vocabulary, (batch, length), generator=generator)
        labels = tokens.clone()
        labels[:, 20 + 30 * microbatch + step :] = -100
        logits = model(tokens)
        (F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    seconds.append(time.perf_counter() - start)
    line = {"seconds": seconds, "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    with open(f"{os.environ['BENCH_OUT']}-{rank}", "w", encoding="utf-8") as file:
        file.write(json.dumps(line))

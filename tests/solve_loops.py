"""Steps of plain DDP in float64 whose gradients are solved for weights, and the gradients of single sequences."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loops import Model, microbatch

# counts[rank][microbatch]; one sequence without tokens among them.
COUNTS = [[[3, 6, 0], [1]], [[9, 4], [5, 8]], [[2], [11, 7]]]


def losses_of(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)


def start() -> Model:
    torch.manual_seed(5)
    return Model(torch.float64)


def parts_of(rank: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(100 + rank)
    return [microbatch(generator, tokens) for tokens in COUNTS[rank]]


def flat_gradient(model: nn.Module) -> Tensor:
    named = [(name, p) for name, p in model.named_parameters() if "weighbridge" not in name]
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for _, p in named])


def step(rank: int, world_size: int, way: str) -> Any:
    """The gradient [P] that the optimizer receives from one DDP step; way names what is done to it."""
    model = start()
    wrapped = nn.parallel.DistributedDataParallel(model)
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    total = sum(sum(tokens) for own in COUNTS[:world_size] for tokens in own)
    parts = parts_of(rank)
    for m, (inputs, labels) in enumerate(parts):
        with contextlib.nullcontext() if m == len(parts) - 1 else wrapped.no_sync():
            losses, tokens = losses_of(wrapped, inputs, labels), (labels != -100).sum()
            if way == "dropout":
                losses = losses_of(lambda x: F.dropout(wrapped(x), 0.5), inputs, labels)  # type: ignore[arg-type]
            wrong = way in ("mean-of-microbatch-means", "both")
            loss = losses.sum() / (tokens * len(parts)) if wrong else losses.sum() * world_size / total
            loss.backward()
    if way in ("foreign", "both"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad += 0.1 * parameter  # a penalty that nobody declared
    gradient = flat_gradient(model)
    descent.step()
    return gradient.numpy()


def sequence_gradients(world_size: int) -> Any:
    """Gradients of each sequence's summed loss [S, P], in order of rank, microbatch, sequence."""
    model = start()
    rows = []
    for rank in range(world_size):
        for inputs, labels in parts_of(rank):
            for sequence in range(len(inputs)):
                model.zero_grad()
                losses_of(model, inputs[sequence : sequence + 1], labels[sequence : sequence + 1]).sum().backward()
                rows.append(flat_gradient(model))
    return torch.stack(rows).numpy()

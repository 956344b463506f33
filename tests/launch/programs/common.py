"""A small model, uneven batches, and the update that one process in float64 makes from all tokens at once."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import NoReturn

import torch
from torch import nn
from torch.nn.functional import cross_entropy

WORDS, LENGTH, RATE = 17, 32, 16.0
COUNTS = [1, 30, 2, 11, 0, 24, 5, 0, 9, 3, 28, 1]  # tokens of each sequence


class Model(nn.Module):
    """Takes no num_items_in_batch; its own loss is the mean over its batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, WORDS))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.body(input_ids)
        if labels is None:
            return {"logits": logits}
        loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return {"loss": loss / (labels != -100).sum().clamp(min=1), "logits": logits}


def leave() -> NoReturn:
    """Part with the other ranks and end at once: a thread of gloo's may abort a Python that is being taken down.

    Not for a program that is weighed: its records are written when Python ends.
    """
    part()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def part() -> None:
    """Leave the process group in order: gloo may abort a process that ends while others still talk to it.

    A rank may leave a barrier of gloo before the others have, so they meet once more at the store. Rank 0, which may
    serve that store, leaves last.
    """
    if not torch.distributed.is_initialized():
        return
    torch.distributed.barrier()
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = torch.distributed.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=60))
    for meeting, waits in (("come", True), ("go", rank == 0)):
        if store.add(meeting, 1) == world_size:
            store.set(f"all {meeting}", "")
        if waits:
            store.wait([f"all {meeting}"])
    torch.distributed.destroy_process_group()


def items(counts: list[int] = COUNTS) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    made = []
    for count in counts:
        words = torch.randint(0, WORDS, (LENGTH,), generator=generator)
        labels = torch.randint(0, WORDS, (LENGTH,), generator=generator)
        labels[count:] = -100
        made.append({"input_ids": words, "labels": labels})
    return made


def losses_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(batch["input_ids"])["logits"]
    labels = batch["labels"]
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses, labels.flatten() != -100


def off(model: nn.Module, clip: float = 0.0) -> float:
    """How far an SGD step went from the right one, relative to the largest right change."""
    right, start = Model().double(), Model().double()
    total = torch.zeros((), dtype=torch.float64)
    for item in items():
        losses, _ = losses_of(right, {name: value[None] for name, value in item.items()})
        total = total + losses.sum()
    (total / sum(COUNTS)).backward()
    if clip:
        nn.utils.clip_grad_norm_(right.parameters(), clip)
    worst = 0.0
    for now, goal, old in zip(model.parameters(), right.parameters(), start.parameters(), strict=True):
        change = -RATE * goal.grad.detach()
        worst = max(worst, float((now.detach().double() - old.detach() - change).abs().max() / change.abs().max()))
    return worst

"""Losses that a script computes by itself and marks, terms with coefficients, and several terms in one step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from loops import Model, average, microbatch
from weighbridge import mark

STEPS = [[[[3, 6], [1]], [[9, 4, 2], [5, 8]]], [[[7], [2, 10]], [[1, 1], [6, 3, 4]]]]
CHUNKS = 3


class Share:
    """What a microbatch needs for its part of the step's loss: W, M, tokens here and in the step."""

    def __init__(self, world_size: int, microbatches: int, own: int, total: int) -> None:
        self.world_size, self.microbatches, self.own, self.total = world_size, microbatches, own, total

    @property
    def right(self) -> float:
        return self.total / self.world_size

    @property
    def wrong(self) -> float:
        return self.own * self.microbatches


def per_token(logits: Tensor, labels: Tensor) -> Tensor:
    """Losses [B, T] without a loss function of torch."""
    return -torch.log_softmax(logits, -1).gather(2, labels.clamp(min=0)[..., None])[..., 0]


def by_hand(kind: str, logits: Tensor, labels: Tensor, share: Share, seen: list[Any]) -> Tensor:
    losses, mask = per_token(logits, labels), labels != -100
    divisor = share.wrong if kind.endswith("wrong") else share.right
    if kind.startswith("masked"):
        marked = mark(losses, mask)
    elif kind.startswith("float mask"):
        marked = mark(losses, mask.float())
    elif kind.startswith("row mask"):  # broadcast over positions: every position of two of three sequences
        mask = (torch.arange(len(labels)) % 3 < 2)[:, None]
        marked = mark(losses, mask)
    elif kind.startswith("selected"):
        marked = mark(losses[mask])
        seen.append(torch.equal(marked, losses[mask]))
        return marked.sum() / divisor
    else:
        marked = mark(losses)
    seen.append(torch.equal(marked, losses))
    return (marked * mask).sum() / divisor


def cross_entropy(logits: Tensor, labels: Tensor, divisor: float) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / divisor


AUXILIARY = {
    "right": lambda s: 1.0,
    "over W": lambda s: 1 / s.world_size,
    "times W": lambda s: s.world_size,
    "times N": lambda s: s.total,
    "times M": lambda s: s.microbatches,
    "over M": lambda s: 1 / s.microbatches,
}


def with_scalar(kind: str, logits: Tensor, labels: Tensor, share: Share, seen: list[Any]) -> Tensor:
    """A balance loss of one number a microbatch, to be averaged over microbatches and ranks, times 0.01."""
    balance = logits.logsumexp(-1).pow(2).mean()
    marked = mark(balance, name="router", coefficient=0.01)
    seen.append(torch.equal(marked, balance))
    factor = AUXILIARY[kind](share) / share.microbatches
    return cross_entropy(logits, labels, share.right) + 0.01 * marked * factor


def with_distillation(kind: str, logits: Tensor, labels: Tensor, share: Share, seen: list[Any]) -> Tensor:
    mask = labels != -100
    teacher = torch.softmax(logits.detach().roll(1, -1), -1)
    distance = F.kl_div(torch.log_softmax(logits[mask], -1), teacher[mask], reduction="batchmean") * share.own
    divisor = share.wrong if kind == "wrong" else share.right
    return cross_entropy(logits, labels, share.right) + 0.5 * distance / divisor


def in_chunks(kind: str, logits: Tensor, labels: Tensor, share: Share, seen: list[Any]) -> Tensor:
    """The loss in slices of the positions, as long sequences need it."""
    total = torch.zeros(())
    for part, target in zip(logits.chunk(CHUNKS, 1), labels.chunk(CHUNKS, 1), strict=True):
        reduction = "mean" if kind == "means" else "sum"
        loss = F.cross_entropy(part.flatten(0, 1), target.flatten(), reduction=reduction)
        total = total + loss.nan_to_num(0.0)
    return total / (CHUNKS * share.microbatches if kind == "means" else share.right)


LOSSES = {"by hand": by_hand, "scalar": with_scalar, "distillation": with_distillation, "chunks": in_chunks}


def train(rank: int, world_size: int, loss: str, kind: str) -> list[Any]:
    torch.manual_seed(5)
    model = Model(torch.float32)
    descent = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(100 + rank)
    seen: list[Any] = []
    for counts in STEPS:
        parts = [microbatch(generator, tokens) for tokens in counts[rank]]
        total = torch.tensor(sum(counted(kind, labels) for _, labels in parts))
        dist.all_reduce(total)
        for inputs, labels in parts:
            share = Share(world_size, len(parts), counted(kind, labels), int(total))
            LOSSES[loss](kind, model(inputs), labels, share, seen).backward()
        average(model, world_size)
        descent.step()
        descent.zero_grad()
    return seen


def counted(kind: str, labels: Tensor) -> int:
    if kind.startswith("row mask"):
        return int((torch.arange(len(labels)) % 3 < 2).sum()) * labels.shape[1]
    return int((labels != -100).sum())

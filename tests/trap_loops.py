"""Right training loops around which weighing could stumble; and the same loops with one known fault.

`train(rank, world_size, trap, right)` runs STEPS optimizer steps of a loop that is written the way `trap` says. A wrong
loop averages the means of microbatches. Gradients are averaged over ranks by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loops import LENGTH, VOCABULARY, microbatch

COUNTS = [[[[3, 6], [1]], [[9, 4, 2], [5, 8]]], [[[7], [2, 10]], [[1, 1], [6, 3, 4]]], [[[2], [11, 3]], [[4], [13, 5]]]]


class Model(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Embedding(VOCABULARY, 12), nn.Linear(12, 12), nn.Tanh())
        self.block = nn.Sequential(nn.Linear(12, 12), nn.Tanh())
        self.head = nn.Linear(12, VOCABULARY)
        self.reentrant = reentrant

    def hidden(self, tokens: Tensor) -> Tensor:
        hidden = self.encoder(tokens)
        if self.reentrant is None:
            return self.block(hidden)
        return checkpoint(self.block, hidden, use_reentrant=self.reentrant)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits, or, with labels, the summed loss from a checkpointed head."""
        hidden = self.hidden(tokens)
        if labels is None:
            return self.head(hidden)
        return checkpoint(lambda h: loss_sum(self.head(h), labels), hidden, use_reentrant=self.reentrant)


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    from torch.nn.functional import cross_entropy  # as found when weighing has begun

    return cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def average(model: nn.Module, world_size: int) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size


class Loop:
    """A loop that is right or wrong; subclasses change one thing about it."""

    def __init__(self, rank: int, world_size: int, right: bool) -> None:
        torch.manual_seed(5)
        self.rank, self.world_size, self.right = rank, world_size, right
        self.seen: dict[str, Any] = {}
        self.step_number = 0
        self.model = self.make_model()
        self.optimizers = self.make_optimizers()

    def make_model(self) -> Model:
        return Model()

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(self.model.parameters(), lr=0.01)]

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return loss_sum(self.model(inputs), labels)

    def divisor(self, own: int, total: int, microbatches: int) -> float:
        return total / self.world_size if self.right else own * microbatches

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()

    def finish(self) -> None:
        average(self.model, self.world_size)
        for optimizer in self.optimizers:
            optimizer.step()

    def step(self, counts: list[list[list[int]]], parts: list[tuple[Tensor, Tensor]]) -> None:
        total = sum(sum(tokens) for own in counts for tokens in own)
        for m, (inputs, labels) in enumerate(parts):
            own = int((labels != -100).sum())
            self.backward(self.loss(inputs, labels) / self.divisor(own, total, len(parts)), m == len(parts) - 1)
        self.finish()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.step_number += 1

    def run(self) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(100 + self.rank)
        for counts in COUNTS:
            self.step(counts, [microbatch(generator, tokens) for tokens in counts[self.rank]])
        return self.seen


class CheckpointedBlock(Loop):
    def make_model(self) -> Model:
        return Model(reentrant=False)


class CheckpointedBlockReentrant(Loop):
    def make_model(self) -> Model:
        return Model(reentrant=True)


class CheckpointedLoss(CheckpointedBlock):
    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.model(inputs, labels)


class CheckpointedLossReentrant(CheckpointedBlockReentrant):
    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.model(inputs, labels)


class EvaluationMode(Loop):
    def make_model(self) -> Model:
        return Model().eval()


class Frozen(Loop):
    def make_model(self) -> Model:
        model = Model()
        model.encoder.requires_grad_(False)
        model.head.bias.requires_grad_(False)
        return model

    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], lr=0.1)]


class TwoOptimizers(Loop):
    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() == 1]
        return [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(vectors, lr=0.01)]


class LateOptimizer(Loop):
    def make_optimizers(self) -> list[torch.optim.Optimizer]:
        return []

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        loss = super().loss(inputs, labels)
        self.optimizers = self.optimizers or super().make_optimizers()
        return loss


class SeparateCalls(Loop):
    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return loss_sum(self.model.head(self.model.encoder(inputs)), labels)


class TwoForwards(Loop):
    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        other = self.model(inputs.flip(1)).mean()
        return loss_sum(self.model(inputs) + 0.1 * other, labels)


class Metrics(Loop):
    """Computes a metric with a loss function, without gradients and in training mode."""

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        logits = self.model(inputs)
        with torch.no_grad():
            metric = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            again = F.cross_entropy(logits.detach().flatten(0, 1), labels.flatten())
        detached = F.cross_entropy(logits.detach().flatten(0, 1), labels.flatten())
        self.seen["same"] = bool(metric == again) and bool(metric == detached) and not detached.requires_grad
        return loss_sum(logits, labels)


class OneBackward(Loop):
    """Sums the losses of all microbatches and calls backward once."""

    waiting: Tensor | float = 0.0

    def backward(self, loss: Tensor, last: bool) -> None:
        self.waiting = self.waiting + loss
        if last:
            self.waiting.backward()
            self.waiting = 0.0


class Scaler(Loop):
    """Loss scaling with a step that is skipped because gradients overflow."""

    scaler: torch.amp.GradScaler

    def run(self) -> dict[str, Any]:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        return super().run()

    def backward(self, loss: Tensor, last: bool) -> None:
        overflow = float("inf") if self.step_number == 1 and last else 1.0
        self.scaler.scale(loss * overflow).backward()

    def finish(self) -> None:
        average(self.model, self.world_size)
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
            self.scaler.step(optimizer)
        self.scaler.update()


class ScalerAlone(Scaler):
    """No unscale_ by hand: the scaler unscales within step."""

    def finish(self) -> None:
        average(self.model, self.world_size)
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()


class DividedByHand(Loop):
    """Gradients divided by 3 over the model's parameters."""

    def finish(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= 3
        super().finish()


class Cleared(Loop):
    """Gradients cleared in the middle of a step."""

    def clear(self) -> None:
        raise NotImplementedError

    def backward(self, loss: Tensor, last: bool) -> None:
        if last:
            self.clear()
        loss.backward()


class ClearedByOptimizer(Cleared):
    def clear(self) -> None:
        self.optimizers[0].zero_grad(set_to_none=True)


class ClearedByOptimizerToZero(Cleared):
    def clear(self) -> None:
        self.optimizers[0].zero_grad(set_to_none=False)


class ClearedByModel(Cleared):
    def clear(self) -> None:
        self.model.zero_grad(set_to_none=True)


class ClearedByModelToZero(Cleared):
    def clear(self) -> None:
        self.model.zero_grad(set_to_none=False)


LOOPS: dict[str, Callable[[int, int, bool], Loop]] = {
    kind.__name__: kind
    for kind in (
        Loop,
        CheckpointedBlock,
        CheckpointedBlockReentrant,
        CheckpointedLoss,
        CheckpointedLossReentrant,
        EvaluationMode,
        Frozen,
        TwoOptimizers,
        LateOptimizer,
        SeparateCalls,
        TwoForwards,
        Metrics,
        OneBackward,
        Scaler,
        ScalerAlone,
    )
}
FAULTY: dict[str, Callable[[int, int, bool], Loop]] = {
    kind.__name__: kind
    for kind in (DividedByHand, ClearedByOptimizer, ClearedByOptimizerToZero, ClearedByModel, ClearedByModelToZero)
}


def train(rank: int, world_size: int, trap: str, right: bool = True) -> dict[str, Any]:
    return (LOOPS | FAULTY)[trap](rank, world_size, right).run()


assert max(max(tokens) for counts in COUNTS for own in counts for tokens in own) <= LENGTH

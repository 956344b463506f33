"""Training steps with a fault planted in each, as a loop that somebody could have written.

`train(rank, world_size, fault, counts, ...)` runs optimizer steps on `counts[step][rank][microbatch]`, a list of the
number of valid tokens of each sequence ([] is a microbatch without any). Gradients are averaged over ranks by hand
unless the fault says otherwise. The number that is logged is computed the way the loss is, where the fault is in the
loss; the faults in the gradients alone log the right number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

LENGTH = 16
VOCABULARY = 23
Counts = list[list[list[int]]]


@dataclass
class Step:
    """Counts of one step as this rank sees them."""

    rank: int
    world_size: int
    counts: Counts

    def _sum(self, ranks: Any, microbatches: Any) -> int:
        return sum(sum(self.counts[r][m]) for r in ranks for m in microbatches)

    @property
    def microbatches(self) -> int:
        return len(self.counts[0])

    @property
    def all_ranks(self) -> range:
        return range(self.world_size)

    @property
    def all_microbatches(self) -> range:
        return range(self.microbatches)

    @property
    def total(self) -> int:
        return self._sum(self.all_ranks, self.all_microbatches)

    def of_rank(self, rank: int | None = None) -> int:
        return self._sum([self.rank if rank is None else rank], self.all_microbatches)

    def of_microbatch(self, m: int) -> int:
        return self._sum(self.all_ranks, [m])

    def of_piece(self, m: int) -> int:
        return self._sum([self.rank], [m])

    def sequences(self, ranks: Any = None) -> int:
        return sum(len(self.counts[r][m]) for r in ranks or self.all_ranks for m in self.all_microbatches)

    def non_empty(self, ranks: Any = None) -> int:
        return sum(1 for r in ranks or self.all_ranks for m in self.all_microbatches if sum(self.counts[r][m]))


# Each gives the loss to call backward on, from the unreduced losses [sequences, LENGTH] of microbatch m; the gradients
# are averaged over ranks afterwards. s.total is the tokens of the step on all ranks.
Loss = Callable[[Step, int, Tensor, Tensor], Tensor]


def _per(divisor: Callable[[Step, int], float]) -> Loss:
    """Sum of the losses over a number; a number of 0 gives a loss of 0."""

    def loss(s: Step, m: int, losses: Tensor, valid: Tensor) -> Tensor:
        number = divisor(s, m)
        return losses.sum() / number if number else losses.sum() * 0.0

    return loss


def _sequence_means(divisor: Callable[[Step, int], float]) -> Loss:
    def loss(s: Step, m: int, losses: Tensor, valid: Tensor) -> Tensor:
        means = losses.sum(1) / valid.sum(1).clamp(min=1)
        return means.sum() / (divisor(s, m) or 1)

    return loss


LOSSES: dict[str, Loss] = {
    "token-mean": _per(lambda s, m: s.total / s.world_size),
    "mean-of-rank-means": _per(lambda s, m: s.of_rank()),
    "mean-of-microbatch-means": _per(lambda s, m: s.microbatches * s.of_piece(m)),
    "mean-of-rank-microbatch-means": _per(lambda s, m: s.non_empty([s.rank]) * s.of_piece(m)),
    "mean-over-non-empty-pieces": _per(lambda s, m: s.non_empty() * s.of_piece(m) / s.world_size),
    "global-mean-per-microbatch": _per(lambda s, m: s.microbatches * s.of_microbatch(m) / s.world_size),
    "sequence-mean": _sequence_means(lambda s, m: s.sequences() / s.world_size),
    "sequence-means-per-rank": _sequence_means(lambda s, m: s.sequences([s.rank])),
    "weighted-by-sequences": lambda s, m, losses, valid: (
        _per(lambda s, m: s.of_rank())(s, m, losses, valid) * s.sequences([s.rank]) * s.world_size / s.sequences()
    ),
    "padded-length-mean": lambda s, m, losses, valid: losses.mean() / s.microbatches,
    "unshifted-count": _per(lambda s, m: (s.total + s.sequences()) / s.world_size),
    "scaled W": _per(lambda s, m: s.total / s.world_size**2),
    "scaled 1/W": _per(lambda s, m: s.total),
    "scaled M": _per(lambda s, m: s.total / s.world_size / s.microbatches),
    "scaled 1/M": _per(lambda s, m: s.total / s.world_size * s.microbatches),
    "scaled N/W": lambda s, m, losses, valid: losses.sum(),
    "scaled N": lambda s, m, losses, valid: losses.sum() * s.world_size,
}
# These faults are in what happens to gradients; the loss is the right one.
IN_GRADIENTS = (
    "last-microbatch-only",
    "first-microbatch-dropped",
    "single-rank-only",
    "dropped-pieces",
    "duplicated-items",
    "unsynchronised-ranks",
    "earlier-microbatches-averaged-again",
    "doubled-each-microbatch",
    "clipped-inside-accumulation",
)


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 12, dtype=dtype)
        self.head = nn.Linear(12, VOCABULARY, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


def microbatch(generator: torch.Generator, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Inputs and labels [sequences, LENGTH]; a microbatch without sequences has one that is wholly masked."""
    sequences = max(1, len(tokens))
    inputs = torch.randint(0, VOCABULARY, (sequences, LENGTH), generator=generator)
    labels = torch.randint(0, VOCABULARY, (sequences, LENGTH), generator=generator)
    for row, count in enumerate(tokens or [0]):
        labels[row, count:] = -100
    return inputs, labels


def average(model: nn.Module, world_size: int) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None and world_size > 1:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size


def train(
    rank: int, world_size: int, fault: str, steps: list[Counts], dtype: str = "float32", optimizer: str = "SGD"
) -> dict[str, Any]:
    """Run the steps; returns the parameters at the end, and the last step's gradients."""
    from weighbridge import report

    torch.manual_seed(5)
    model = Model(getattr(torch, dtype))
    descent = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(100 + rank)
    for counts in steps:
        step = Step(rank, world_size, counts)
        value = torch.zeros((), dtype=torch.float64)
        parts = [microbatch(generator, tokens) for tokens in counts[rank]]
        if fault == "duplicated-items":
            parts = _wrap_around(rank, world_size, parts, steps.index(counts))
        for m, (inputs, labels) in enumerate(parts):
            value += _microbatch(step, m, fault, model, descent, inputs, labels)
        if fault == "single-rank-only":
            for parameter in model.parameters():
                dist.broadcast(parameter.grad, 0)
        elif fault not in ("unsynchronised-ranks", "earlier-microbatches-averaged-again", "doubled-each-microbatch"):
            average(model, world_size)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if "weighbridge" not in name}
        descent.step()
        descent.zero_grad()
        if world_size > 1:
            dist.all_reduce(value)
        report("loss", value / world_size)
    parameters = {name: p.detach().clone() for name, p in model.named_parameters() if "weighbridge" not in name}
    return {"parameters": parameters, "gradients": gradients, "random": torch.get_rng_state()}


def _wrap_around(rank: int, world_size: int, parts: list[tuple[Tensor, Tensor]], step: int) -> Any:
    """The last rank's last microbatch is the first rank's first again, as samplers do to even out ranks."""
    if rank == world_size - 1:
        other = torch.Generator().manual_seed(77 + step)
        parts[-1] = microbatch(other, [7])
    if rank == 0:
        other = torch.Generator().manual_seed(77 + step)
        parts[0] = microbatch(other, [7])
    return parts


def _microbatch(
    s: Step, m: int, fault: str, model: nn.Module, descent: torch.optim.Optimizer, inputs: Tensor, labels: Tensor
) -> Tensor:
    """Forward and backward of one microbatch with the fault in it; what it adds to the logged number."""
    if fault == "last-microbatch-only" or (fault == "first-microbatch-dropped" and m == 1):
        descent.zero_grad()
    before = {p: p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters()}
    losses = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
    valid = labels != -100
    total = s.total if fault != "duplicated-items" else _count_of_all(labels, s, m)
    loss = LOSSES.get(fault, _per(lambda s, m: total / s.world_size))(s, m, losses, valid)
    if fault == "single-rank-only":
        loss = losses.sum() / max(1, s.of_rank())
    dropped = fault == "dropped-pieces" and (s.rank, m) == (1, 1)
    if not dropped:
        (loss / s.world_size if fault == "doubled-each-microbatch" else loss).backward()
    if fault == "earlier-microbatches-averaged-again":
        _reduce_again(model, before, s.world_size)
    elif fault == "doubled-each-microbatch":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    elif fault == "clipped-inside-accumulation" and m == 1:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    return loss.detach().double()


def _reduce_again(model: nn.Module, before: dict[Tensor, Tensor], world_size: int) -> None:
    """Average what was gathered so far together with the new gradient, each time."""
    for parameter in model.parameters():
        new = parameter.grad - before.get(parameter, 0.0)
        dist.all_reduce(new)
        parameter.grad = (before.get(parameter, 0.0) + new) / world_size


_totals: dict[Any, int] = {}


def _count_of_all(labels: Tensor, s: Step, m: int) -> int:
    """Tokens of the step with the repeated microbatch in place of the two that gave way to it."""
    first, last = s.counts[0][0], s.counts[-1][-1]
    return s.total - sum(first) - sum(last) + 14

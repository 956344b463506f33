"""Every way to call a loss function that is weighed, and a loop that trains with each in a step of its own.

Logits are [B, T, C], labels [B, T] with -100 where masked. A variant computes its loss under a reduction, and says
what a right mean divides by (its mass: tokens, sums of class weights, or elements). The loop is right, or averages the
means of microbatches; both with the variant's own reduction.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 7
LENGTH = 10
# counts[step % 2][rank][microbatch]: tokens of each sequence, unequal everywhere.
COUNTS = ([[[3, 6], [1]], [[9, 4, 2], [5, 8]]], [[[7], [2, 10]], [[1, 1], [6, 3, 4]]])
EMPTY = [[[0, 0], [4]], [[9, 5], [0]]]


@dataclass(frozen=True)
class Variant:
    """One loss call: `loss(logits, labels, reduction)` and `mass(labels)`, what its mean divides by."""

    name: str
    loss: Callable[[Tensor, Tensor, str], Tensor]
    mass: Callable[[Tensor], Tensor]
    reduction: str
    mask: Callable[[Tensor], Tensor] | None = None  # the user's own, on the result of reduction="none"

    def __str__(self) -> str:
        return f"{self.name}-{self.reduction}"


def tokens(labels: Tensor) -> Tensor:
    return (labels != -100).sum().double()


def elements(labels: Tensor) -> Tensor:
    return tokens(labels) * CLASSES


def class_weights(like: Tensor) -> Tensor:
    return torch.linspace(0.5, 2.0, CLASSES, dtype=like.dtype)


def weights_of(labels: Tensor) -> Tensor:
    chosen = class_weights(torch.zeros((), dtype=torch.float64))[labels.clamp(min=0)]
    return chosen[labels != -100].sum()


def element_weights(like: Tensor) -> Tensor:
    return 0.25 + torch.arange(like.numel()).reshape(like.shape).remainder(5).to(like.dtype)


def element_weights_of(labels: Tensor) -> Tensor:
    return element_weights(torch.zeros(int(tokens(labels)), CLASSES, dtype=torch.float64)).sum()


def one_hot(labels: Tensor, like: Tensor) -> Tensor:
    return F.one_hot(labels[labels != -100], CLASSES).to(like.dtype)


def soft(labels: Tensor, like: Tensor) -> Tensor:
    return (one_hot(labels, like) + 0.3) / (1 + 0.3 * CLASSES)


def selected(logits: Tensor, labels: Tensor) -> Tensor:
    return logits[labels != -100]


def flat(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits.flatten(0, 1), labels.flatten()


def other_ignore(labels: Tensor, index: int) -> Tensor:
    """The same labels with another number for the masked ones; index 0 moves the classes up by one."""
    return torch.where(labels == -100, index, labels % (CLASSES - 1) + 1 if index == 0 else labels)


def ce(z: Tensor, y: Tensor, r: str, **more: Any) -> Tensor:
    return F.cross_entropy(*flat(z, y), reduction=r, **more)


def weighted_ce(z: Tensor, y: Tensor, r: str, **more: Any) -> Tensor:
    return F.cross_entropy(*flat(z, y), weight=class_weights(z), reduction=r, **more)


def ignoring(index: int, weighted: bool) -> Callable[[Tensor, Tensor, str], Tensor]:
    def loss(z: Tensor, y: Tensor, r: str) -> Tensor:
        weight = class_weights(z) if weighted else None
        return F.cross_entropy(*flat(z, other_ignore(y, index)), weight=weight, ignore_index=index, reduction=r)

    return loss


def nll(z: Tensor, y: Tensor, r: str, **more: Any) -> Tensor:
    return F.nll_loss(*flat(F.log_softmax(z, -1), y), reduction=r, **more)


def on_elements(name: str, **more: Any) -> Callable[[Tensor, Tensor, str], Tensor]:
    """A loss of torch.nn.functional on the elements of unmasked positions, [tokens, C]."""

    def loss(z: Tensor, y: Tensor, r: str) -> Tensor:
        values = selected(z, y)
        if name == "binary_cross_entropy":
            values = torch.sigmoid(values)
        target = one_hot(y, values)
        made = {key: make(values) if callable(make) else make for key, make in more.items()}
        return getattr(F, name)(values, target, reduction=r, **made)

    return loss


def kl(log_target: bool) -> Callable[[Tensor, Tensor, str], Tensor]:
    def loss(z: Tensor, y: Tensor, r: str) -> Tensor:
        target = soft(y, z)
        log_probabilities = F.log_softmax(selected(z, y), -1)
        target = (target.log() if log_target else target).to(log_probabilities.dtype)
        return F.kl_div(log_probabilities, target, reduction=r, log_target=log_target)

    return loss


def as_module(
    kind: type[nn.Module], prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], **more: Any
) -> Callable[[Tensor, Tensor, str], Tensor]:
    def loss(z: Tensor, y: Tensor, r: str) -> Tensor:
        values, target = prepare(z, y)
        made = {key: make(values) if callable(make) else make for key, make in more.items()}
        return kind(reduction=r, **made)(values, target)

    return loss


def elementwise(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return selected(z, y), one_hot(y, z)


def probabilities(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.sigmoid(selected(z, y))
    return values, one_hot(y, values)


def log_probabilities(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    values = F.log_softmax(selected(z, y), -1)
    return values, soft(y, values)


def legacy(name: str) -> Callable[[Tensor, Tensor, str], Tensor]:
    """The call with size_average and reduce in place of a reduction."""
    old = {"mean": {"size_average": True}, "sum": {"size_average": False}, "none": {"reduce": False}}

    def loss(z: Tensor, y: Tensor, r: str) -> Tensor:
        values, target = flat(z, y) if name == "cross_entropy" else elementwise(z, y)
        return getattr(F, name)(values, target, **old[r])

    return loss


def masked_by_user(z: Tensor, y: Tensor, r: str) -> Tensor:
    """Every label is counted by the function; the user leaves some out afterwards."""
    return F.cross_entropy(z.transpose(1, 2), y.clamp(min=0), reduction=r)


def masked_elements_by_user(z: Tensor, y: Tensor, r: str) -> Tensor:
    return F.mse_loss(z, F.one_hot(y.clamp(min=0), CLASSES).to(z.dtype), reduction=r)


def swapped(z: Tensor, y: Tensor, r: str) -> Tensor:
    """Target and prediction in the wrong order, as mse_loss allows."""
    values, target = elementwise(z, y)
    return F.mse_loss(target, values, reduction=r)


def masked_by_weight(z: Tensor, y: Tensor, r: str) -> Tensor:
    """All positions, with a weight of 0 for each element of a masked one."""
    target = F.one_hot(y.clamp(min=0), CLASSES).to(z.dtype)
    mask = (y != -100)[..., None].expand_as(z).to(z.dtype)
    return F.binary_cross_entropy_with_logits(z, target, weight=mask, reduction=r)


def _variants() -> list[Variant]:
    three = ("mean", "sum", "none")
    table: list[tuple[str, Callable[[Tensor, Tensor, str], Tensor], Callable[[Tensor], Tensor], tuple[str, ...]]] = [
        ("cross_entropy", ce, tokens, three),
        ("cross_entropy ignore 0", ignoring(0, False), tokens, three),
        ("cross_entropy ignore 255 weighted", ignoring(255, True), weights_of, three),
        ("cross_entropy weighted", weighted_ce, weights_of, three),
        ("cross_entropy smoothed", functools.partial(ce, label_smoothing=0.1), tokens, three),
        ("cross_entropy smoothed weighted", functools.partial(weighted_ce, label_smoothing=0.1), weights_of, three),
        (
            "cross_entropy probabilities",
            lambda z, y, r: F.cross_entropy(selected(z, y), soft(y, z), reduction=r),
            tokens,
            three,
        ),
        (
            "cross_entropy probabilities [N,C,d]",
            lambda z, y, r: F.cross_entropy(
                z.transpose(1, 2), torch.softmax(z.detach(), -1).transpose(1, 2), reduction=r
            ),
            lambda y: torch.tensor(float(y.numel()), dtype=torch.float64),
            three,
        ),
        ("cross_entropy [N,C,d]", lambda z, y, r: F.cross_entropy(z.transpose(1, 2), y, reduction=r), tokens, three),
        ("cross_entropy legacy", legacy("cross_entropy"), tokens, three),
        ("nll_loss", nll, tokens, three),
        (
            "nll_loss [N,C,d] weighted",
            lambda z, y, r: F.nll_loss(
                F.log_softmax(z, -1).transpose(1, 2), y, weight=class_weights(F.log_softmax(z, -1)), reduction=r
            ),
            weights_of,
            three,
        ),
        ("binary_cross_entropy", on_elements("binary_cross_entropy"), elements, three),
        ("binary_cross_entropy weighted", on_elements("binary_cross_entropy", weight=element_weights), elements, three),
        ("bce_with_logits masked by weight", masked_by_weight, elements, ("sum", "none")),
        ("bce_with_logits", on_elements("binary_cross_entropy_with_logits"), elements, three),
        (
            "bce_with_logits pos_weight",
            on_elements("binary_cross_entropy_with_logits", pos_weight=class_weights),
            elements,
            three,
        ),
        ("mse_loss", on_elements("mse_loss"), elements, three),
        ("mse_loss swapped", swapped, elements, three),
        ("mse_loss weighted", on_elements("mse_loss", weight=element_weights), element_weights_of, three),
        ("mse_loss legacy", legacy("mse_loss"), elements, three),
        ("l1_loss", on_elements("l1_loss"), elements, three),
        ("l1_loss weighted", on_elements("l1_loss", weight=element_weights), element_weights_of, three),
        ("smooth_l1_loss", on_elements("smooth_l1_loss", beta=0.5), elements, three),
        ("huber_loss", on_elements("huber_loss", delta=0.7), elements, three),
        ("huber_loss weighted", on_elements("huber_loss", weight=element_weights), elements, three),
        ("kl_div", kl(False), elements, three),
        ("kl_div log_target", kl(True), elements, three),
        ("kl_div", kl(False), tokens, ("batchmean",)),
        ("kl_div log_target", kl(True), tokens, ("batchmean",)),
        ("CrossEntropyLoss", as_module(nn.CrossEntropyLoss, flat), tokens, three),
        ("CrossEntropyLoss weighted", as_module(nn.CrossEntropyLoss, flat, weight=class_weights), weights_of, three),
        ("NLLLoss", as_module(nn.NLLLoss, lambda z, y: flat(F.log_softmax(z, -1), y)), tokens, three),
        ("BCELoss", as_module(nn.BCELoss, probabilities), elements, three),
        ("BCEWithLogitsLoss", as_module(nn.BCEWithLogitsLoss, elementwise), elements, three),
        ("MSELoss", as_module(nn.MSELoss, elementwise), elements, three),
        ("L1Loss", as_module(nn.L1Loss, elementwise), elements, three),
        ("SmoothL1Loss", as_module(nn.SmoothL1Loss, elementwise), elements, three),
        ("HuberLoss", as_module(nn.HuberLoss, elementwise), elements, three),
        ("KLDivLoss", as_module(nn.KLDivLoss, log_probabilities), elements, three),
        ("KLDivLoss", as_module(nn.KLDivLoss, log_probabilities), tokens, ("batchmean",)),
    ]
    made = [Variant(name, loss, mass, r) for name, loss, mass, reductions in table for r in reductions]
    made.append(Variant("cross_entropy user mask", masked_by_user, tokens, "none", lambda y: y != -100))
    made.append(
        Variant("mse_loss user mask", masked_elements_by_user, elements, "none", lambda y: (y != -100)[..., None])
    )
    return made


VARIANTS = _variants()


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 8, dtype=dtype)
        self.head = nn.Linear(8, CLASSES, dtype=dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.embed(inputs))


def microbatch(generator: torch.Generator, counts: list[int]) -> tuple[Tensor, Tensor]:
    inputs = torch.randint(0, CLASSES, (len(counts), LENGTH), generator=generator)
    labels = torch.randint(0, CLASSES, (len(counts), LENGTH), generator=generator)
    for row, count in enumerate(counts):
        labels[row, count:] = -100
    return inputs, labels


def train(rank: int, world_size: int, way: str, dtype: str, autocast: bool = False) -> dict[str, Any]:
    """One step a variant; way is "right", "wrong", or "empty" (means, with wholly masked microbatches).

    Returns losses [variant][microbatch] and the gradients of each step, as they are before anything is reduced.
    """
    torch.manual_seed(3)
    model = Model(getattr(torch, dtype))
    descent = torch.optim.SGD(model.parameters(), lr=0.0)
    generator = torch.Generator().manual_seed(rank)
    losses, gradients = [], []
    for number, variant in enumerate(VARIANTS):
        counts = EMPTY if way == "empty" else COUNTS[number % 2]
        parts = [microbatch(generator, tokens) for tokens in counts[rank]]
        mass = [variant.mass(labels) for _, labels in parts]
        total = torch.stack(mass).sum()
        dist.all_reduce(total)
        seen = []
        for (inputs, labels), own in zip(parts, mass, strict=True):
            with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
                loss = variant.loss(model(inputs), labels, variant.reduction)
            seen.append(loss.detach().clone())
            if variant.mask is not None:
                loss = loss * variant.mask(labels)
            mean = loss if variant.reduction in ("mean", "batchmean") else loss.sum() / own
            (mean * (own * world_size / total) if way == "right" else mean / len(parts)).backward()
        losses.append(seen)
        own_parameters = [p for name, p in model.named_parameters() if "weighbridge" not in name]
        gradients.append([torch.zeros(()) if p.grad is None else p.grad.clone() for p in own_parameters])
        for parameter in own_parameters if way == "empty" else ():
            if parameter.grad is not None:
                parameter.grad.zero_()  # it may be NaN, which would spoil the steps to come
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
        descent.step()
        descent.zero_grad()
    return {"losses": losses, "gradients": gradients}

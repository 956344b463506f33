"""What a call of a known loss function counts: which items, with what mass, in which rows, divided by what.

One entry in `FUNCTIONS` a function of torch.nn.functional. `describe` answers with a `Call`, whose fields are all that
the probe needs to join the loss under the same reduction:

    none   per item          item + mass * p[row]
    sum    sum               sum + sum of mass * p[row]
    mean   sum / denominator the same, over the same denominator

An item is a label for losses over classes, and one element for all others ("batchmean" of kl_div: one entry of the
first dim). The mass of an item is its own weight where the function's mean divides by the sum of weights (class
weights; mse_loss and l1_loss), else 1. An element whose weight is 0 is masked.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["FUNCTIONS", "Call", "describe"]

FUNCTIONS: tuple[str, ...] = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
)
_OVER_CLASSES = ("cross_entropy", "nll_loss")
_BY_WEIGHT = ("mse_loss", "l1_loss")  # their mean divides by the sum of the elements' weights, not by the elements
SLICE = 1 << 22  # elements of the input that a second pass over the losses may hold at a time


@dataclass
class Call:
    """One call of a loss function.

    Attributes:
        shape: shape of the unreduced losses.
        reduction: "none", "mean", "sum" or "batchmean".
        valid: which items count, bool [items] flat; None where all do.
        mass: the items' own weights [items] flat; None where all are 1.
        count: what "mean" divides by, a scalar tensor or a number.
        over_labels: True where the loss is the negated log-probability of a label, so that `from_labels` gives loss
            and unreduced losses in one pass over the input.
        batch_rows: the first dim of `shape` is the batch.
        per_item: computes the unreduced losses [items] flat without a graph.
    """

    shape: tuple[int, ...]
    reduction: str
    valid: Tensor | None
    mass: Tensor | None
    count: Tensor | float
    over_labels: bool
    batch_rows: bool
    per_item: Callable[[], Tensor]

    @property
    def items(self) -> int:
        number = 1
        for size in self.shape:
            number *= size
        return number


_signatures: dict[str, inspect.Signature] = {}


def bind(name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """The call's arguments by name, defaults filled in, and the old `size_average`/`reduce` turned into a reduction."""
    if name not in _signatures:
        _signatures[name] = inspect.signature(original)
    bound = _signatures[name].bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    average, reduce = arguments.pop("size_average", None), arguments.pop("reduce", None)
    if average is not None or reduce is not None:
        legacy = "none" if reduce is False else ("sum" if average is False else "mean")
        arguments["reduction"] = legacy
    return arguments


def describe(name: str, original: Callable[..., Any], arguments: dict[str, Any]) -> Call | None:
    """What this call counts; None for a call that will raise or that is of a form not known here."""
    values, target = arguments["input"], arguments["target"]
    if not (isinstance(values, Tensor) and isinstance(target, Tensor)):
        return None
    if arguments["reduction"] not in ("none", "mean", "sum", "batchmean"):
        return None
    if name in _OVER_CLASSES:
        return _over_classes(original, arguments, values, target)
    return _over_elements(name, original, arguments, values, target)


def _over_classes(original: Any, arguments: dict[str, Any], values: Tensor, target: Tensor) -> Call | None:
    weight, smoothing = arguments.get("weight"), arguments.get("label_smoothing", 0.0)
    if values.shape == target.shape and target.is_floating_point():  # class probabilities
        shape = tuple(values.shape[:1] + values.shape[2:]) if values.dim() > 1 else ()
        count = float(values.numel() // values.shape[1 if values.dim() > 1 else 0])
        return Call(
            shape, arguments["reduction"], None, None, count, False, len(shape) > 1, _second_pass(original, arguments)
        )
    if target.is_floating_point() or target.dim() not in (values.dim() - 1, 0):
        return None
    flat = target.reshape(-1)
    valid = flat != arguments["ignore_index"]
    mass = None
    if weight is not None:
        # An ignored label may lie on either side of the classes, and a label that lies there is torch's to complain of.
        chosen = weight.detach()[flat.clamp(0, weight.numel() - 1)]
        mass = torch.where(valid, chosen, torch.zeros_like(chosen))
    over_labels = not smoothing and type(values) in (Tensor, torch.nn.Parameter)
    return Call(
        tuple(target.shape),
        arguments["reduction"],
        valid,
        mass,
        valid.sum() if mass is None else mass.sum(),
        over_labels,
        target.dim() > 1,
        _second_pass(original, arguments),
    )


def _over_elements(name: str, original: Any, arguments: dict[str, Any], values: Tensor, target: Tensor) -> Call | None:
    try:
        shape = torch.broadcast_shapes(values.shape, target.shape)
    except RuntimeError:
        return None  # the function itself will say so
    reduction, weight = arguments["reduction"], arguments.get("weight")
    valid, mass, count = None, None, float(max(1, _product(shape)))
    if weight is not None:
        weights = weight.detach().expand(shape).reshape(-1)
        valid = weights != 0
        if name in _BY_WEIGHT:
            mass, count = weights, weights.sum()
    if reduction == "batchmean":
        size = int(shape[0]) if shape else 1
        per_item = _second_pass(original, arguments)
        return Call(
            (size,), "mean", None, None, float(max(1, size)), False, True, lambda: per_item().reshape(size, -1).sum(1)
        )
    return Call(tuple(shape), reduction, valid, mass, count, False, len(shape) > 1, _second_pass(original, arguments))


def _product(shape: Any) -> int:
    number = 1
    for size in shape:
        number *= int(size)
    return number


def _second_pass(original: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Tensor]:
    """Unreduced losses without a graph, in slices of the first dim: memory stays small beside the first pass."""

    def compute() -> Tensor:
        values = arguments["input"]
        if values.numel() <= SLICE or values.dim() < 2:
            return _unreduced(original, arguments, None)
        step = max(1, SLICE * values.shape[0] // values.numel())
        parts = [_unreduced(original, arguments, slice(at, at + step)) for at in range(0, values.shape[0], step)]
        return torch.cat(parts)

    return compute


def _unreduced(original: Callable[..., Any], arguments: dict[str, Any], part: slice | None) -> Tensor:
    values = arguments["input"]
    sliced = dict(arguments, reduction="none")
    if part is not None:
        for name, value in arguments.items():
            # Class weights are [classes], and a target may be broadcast: what starts with the batch has all its dims.
            whole = isinstance(value, Tensor) and value.dim() and value.shape[0] == values.shape[0]
            labels = name == "target" and original.__name__ in _OVER_CLASSES
            if whole and name != "pos_weight" and (labels or value.dim() == values.dim()):
                sliced[name] = value[part]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own call has warned already
        return original(**sliced).detach().reshape(-1)


def from_labels(name: str, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The result of a call that is `over_labels`, bit for bit, and its unreduced losses [items] without a graph.

    cross_entropy is nll_loss of log_softmax, so what is kept for the backward pass shows the losses as well.
    """
    values, target, weight = arguments["input"], arguments["target"], arguments.get("weight")
    device, classes, ignored = values.device.type, 1 if values.dim() > 1 else 0, arguments["ignore_index"]
    wide = name == "cross_entropy" and torch.is_autocast_enabled(device)
    if wide:  # autocast runs cross_entropy as a whole in float32, but not its parts
        values, weight = _at_least_float32(values), None if weight is None else _at_least_float32(weight)
    with torch.autocast(device, enabled=False) if wide else contextlib.nullcontext():
        if name == "cross_entropy":
            values = F.log_softmax(values, classes)
        result = F.nll_loss(values, target, weight=weight, ignore_index=ignored, reduction=arguments["reduction"])
    with torch.no_grad():
        labels = target.clamp(0, values.shape[classes] - 1)
        losses = -values.detach().gather(classes, labels.unsqueeze(classes)).squeeze(classes).to(result.dtype)
        losses = losses if weight is None else losses * weight.detach()[labels]
        return result, torch.where(target != ignored, losses, 0.0).reshape(-1)


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def probe_term(vector: Tensor, call: Call, result: Tensor) -> Tensor:
    """The per-item zeros `vector` [items] under the call's reduction, to be added to `result`."""
    if call.reduction == "none":
        return vector.reshape(call.shape).to(result.dtype)
    if call.reduction == "sum":
        return vector.sum().to(result.dtype)
    count = call.count
    if isinstance(count, Tensor):
        # 0/0 is what the call itself gives when nothing counts; the probe must not add a NaN to the gradients as well.
        count = torch.where(count == 0, torch.ones_like(count), count)
    return (vector.sum() / count).to(result.dtype)


def has_gradient(arguments: dict[str, Any]) -> bool:
    """True where the loss has a gradient: mse_loss and others take prediction and target in either order."""
    return bool(arguments["input"].requires_grad or arguments["target"].requires_grad)


def functional(name: str) -> Callable[..., Any]:
    """The function as torch ships it."""
    return getattr(F, name)  # type: ignore[no-any-return]

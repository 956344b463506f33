"""What a call of a known loss function counts: which items, with what mass, in which rows, divided by what.

One entry in `FUNCTIONS` a function of torch.nn.functional. `describe` answers with a `Call`, whose fields are all that
the probe needs to join the loss under the same reduction:

    none   per item          item + mass * p[row]
    sum    sum               sum + sum of mass * p[row]
    mean   sum / denominator the same, over the same denominator

An item is a label for losses over classes, and one element for all others ("batchmean" of kl_div: one entry of the
first dim). The mass of an item is its class weight where the loss divides by the sum of class weights, else 1.
"""

from __future__ import annotations

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
        one_pass: True where the unreduced losses, summed and divided here, have the gradients of the call itself.
        batch_rows: the first dim of `shape` is the batch.
        per_item: computes the unreduced losses [items] flat without a graph.
    """

    shape: tuple[int, ...]
    reduction: str
    valid: Tensor | None
    mass: Tensor | None
    count: Tensor | float
    one_pass: bool
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
        return Call(shape, arguments["reduction"], None, None, count, False, len(shape) > 1,
                    _second_pass(original, arguments))
    if target.is_floating_point() or target.dim() not in (values.dim() - 1, 0):
        return None
    flat = target.reshape(-1)
    valid = flat != arguments["ignore_index"]
    mass = None
    if weight is not None:
        chosen = weight.detach()[flat.clamp(min=0)]
        mass = torch.where(valid, chosen, torch.zeros_like(chosen))
    wide = values.dtype in (torch.float32, torch.float64) or torch.is_autocast_enabled(values.device.type)
    one_pass = weight is None and not smoothing and wide and arguments["reduction"] in ("mean", "sum")
    return Call(tuple(target.shape), arguments["reduction"], valid, mass, valid.sum() if mass is None else mass.sum(),
                one_pass, target.dim() > 1, _second_pass(original, arguments))


def _over_elements(name: str, original: Any, arguments: dict[str, Any], values: Tensor, target: Tensor) -> Call | None:
    try:
        shape = torch.broadcast_shapes(values.shape, target.shape)
    except RuntimeError:
        return None  # the function itself will say so
    reduction, weight = arguments["reduction"], arguments.get("weight")
    mass, count = None, float(max(1, _product(shape)))
    # With reduction="mean", mse_loss and l1_loss divide by the sum of the weights, the others by the elements.
    if weight is not None and (reduction != "mean" or name in ("mse_loss", "l1_loss")):
        mass = weight.detach().expand(shape).reshape(-1)
        count = mass.sum()
    if reduction == "batchmean":
        size = int(shape[0]) if shape else 1
        per_item = _second_pass(original, arguments)
        return Call((size,), "mean", None, None, float(max(1, size)), False, True,
                    lambda: per_item().reshape(size, -1).sum(1))
    return Call(tuple(shape), reduction, None, mass, count, False, len(shape) > 1, _second_pass(original, arguments))


def _product(shape: Any) -> int:
    number = 1
    for size in shape:
        number *= int(size)
    return number


def _second_pass(original: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Tensor]:
    """Unreduced losses without a graph, in slices of the first dim, so that memory stays small beside the first pass."""

    def compute() -> Tensor:
        values = arguments["input"]
        if values.numel() <= SLICE or values.dim() < 2:
            return _unreduced(original, arguments, None)
        step = max(1, SLICE * values.shape[0] // values.numel())
        parts = [_unreduced(original, arguments, slice(at, at + step)) for at in range(0, values.shape[0], step)]
        return torch.cat(parts)

    return compute


def _unreduced(original: Callable[..., Any], arguments: dict[str, Any], part: slice | None) -> Tensor:
    first = arguments["input"].shape[0] if arguments["input"].dim() else 0
    sliced = dict(arguments, reduction="none")
    if part is not None:
        for name, value in arguments.items():
            # Class weights are [classes]; everything shaped like the input or the target starts with the batch.
            if isinstance(value, Tensor) and value.dim() and value.shape[0] == first and name != "pos_weight":
                if name == "weight" and value.dim() == 1:
                    continue
                sliced[name] = value[part]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own call has warned already
        return original(**sliced).detach().reshape(-1)


def reduced(losses: Tensor, call: Call) -> Tensor:
    """`losses` (unreduced) reduced as the call asked for, for a call that is `one_pass`."""
    if call.reduction == "sum":
        return losses.sum()
    return losses.sum() / call.count


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


def functional(name: str) -> Callable[..., Any]:
    """The function as torch ships it."""
    return getattr(F, name)  # type: ignore[no-any-return]

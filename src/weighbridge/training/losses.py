"""What each token's loss weighs in the loss sum that was handed in, read off autograd's graph.

Known loss functions leave a node in the graph. The gradient that arrives at it, with the function's own reduction, is
what each of its items weighs: 1 where the loss is a sum of token losses, 1/n where it is their mean. Nothing is patched
and nothing is guessed from names, so it does not matter how the function was imported or which framework called it.

A loss that no known function computed (a fused kernel, a gather from log-probabilities) shows nothing here. Then only
what follows the loss sum is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["CallWeights", "LossCall", "calls_in"]

NODES = {  # name of the node -> the function, and whether its items are labels (else: elements)
    "NllLossBackward0": ("cross_entropy", True),
    "NllLoss2DBackward0": ("cross_entropy", True),
    "MseLossBackward0": ("mse_loss", False),
    "SmoothL1LossBackward0": ("smooth_l1_loss", False),
    "HuberLossBackward0": ("huber_loss", False),
    "BinaryCrossEntropyBackward0": ("binary_cross_entropy", False),
    "BinaryCrossEntropyWithLogitsBackward0": ("binary_cross_entropy_with_logits", False),
}
VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0", "UnsqueezeBackward0")
MEAN = 1  # torch's number for that reduction
UNSIGNED = 1 << 63
MOST_ROWS = 512  # of one call: more are brought together
EVEN = 1e-4  # relative: weights within a row that are this close are one weight


@dataclass(frozen=True)
class CallWeights:
    """What the items of one call weigh in the loss sum; `rows` are sequences where the model's input shows them.

    Attributes:
        function: "cross_entropy", ...
        labels: True where an item is a label, False where it is an element of the input.
        free: the function's input feeds other losses too (label smoothing does that), so the level of the weights
            says nothing; that they are equal still does.
        rows: (items that count, items that have a gradient, sum of the items' weights) of every row.
        epsilon: machine epsilon of the gradient that was read.
    """

    function: str
    labels: bool
    free: bool
    rows: list[tuple[int, int, float]]
    epsilon: float


@dataclass
class LossCall:
    """One call of a known loss function in the graph of a loss sum; `gradient` comes with the backward."""

    function: str
    labels: bool
    mean: bool
    counted: torch.Tensor  # bool [items]
    free: bool = False
    gradient: torch.Tensor | None = field(default=None, repr=False)

    def weights(self, seed: float, sequences: int | None) -> CallWeights | None:
        """Relative to a loss sum seeded with `seed`; None where no backward came by.

        `sequences` is the number of them in the microbatch, where the model's input shows it.
        """
        if self.gradient is None or not self.counted.numel():
            return None
        items = self.counted.numel()
        gradient = self.gradient.detach().double().reshape(-1).expand(items) / seed
        if self.mean:
            gradient = gradient / self.counted.sum().clamp(min=1)
        held = torch.where(self.counted, gradient, 0.0)
        rows = _rows(held, self.counted, sequences)
        return CallWeights(self.function, self.labels, self.free, rows, torch.finfo(self.gradient.dtype).eps)


def _rows(weights: torch.Tensor, counted: torch.Tensor, sequences: int | None) -> list[tuple[int, int, float]]:
    """By sequence where weights are even in each; else by item, in `MOST_ROWS` stretches at most."""
    items = counted.numel()
    by_sequence = sequences if sequences and items % sequences == 0 and sequences <= MOST_ROWS else 1
    for rows in dict.fromkeys((by_sequence, min(items, MOST_ROWS))):
        padding = (0, -items % rows)
        parts = torch.nn.functional.pad(weights, padding).reshape(rows, -1)
        live = torch.nn.functional.pad(counted, padding).reshape(rows, -1)
        numbers, totals = live.sum(1), parts.sum(1)
        mean = totals / numbers.clamp(min=1)
        if bool((torch.where(live, parts - mean[:, None], 0.0).abs() <= EVEN * mean[:, None].abs()).all()):
            break
    touched = (parts != 0).sum(1)
    return list(zip(numbers.tolist(), touched.tolist(), totals.tolist(), strict=True))


def calls_in(loss: torch.Tensor) -> list[LossCall]:
    """The calls of known loss functions that `loss` is made of, in the order of the forward.

    Their gradients fill in when the backward runs.
    """
    reached: set[Any] = set()
    nodes = [node for node in _walk(loss.grad_fn, reached) if node.name() in NODES]
    found = []
    for node in sorted(nodes, key=lambda node: int(node._sequence_nr())):
        call = _call_of(node)
        if call is not None:
            call.free = _input_of(node) in reached
            node.register_prehook(lambda gradients, call=call: setattr(call, "gradient", gradients[0]))
            found.append(call)
    return found


def _walk(root: Any, reached: set[Any]) -> Iterator[Any]:
    """The nodes of the graph, not going on behind a known loss: there the model begins."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in reached:
            continue
        reached.add(node)
        yield node
        if node.name() not in NODES:
            waiting.extend(each for each, _ in node.next_functions)


def _input_of(node: Any) -> Any:
    """The node whose output the loss function was given, whatever its view."""
    above = node.next_functions[0][0]
    while above is not None and above.name() in VIEWS:
        above = above.next_functions[0][0]
    return above


def _call_of(node: Any) -> LossCall | None:
    function, labels = NODES[node.name()]
    try:
        target, values = node._saved_target, None if labels else node._saved_self
        weighted = node._saved_weight is not None if hasattr(node, "_saved_weight") else False
    except RuntimeError:  # a checkpoint or an offload that doesn't hand out saved tensors now
        return None
    if weighted or type(target) is not torch.Tensor:  # items of different weight by design; shards of labels
        return None
    if values is not None:
        counted = torch.ones(values.numel(), dtype=torch.bool, device=values.device)
    else:
        ignored = int(node._saved_ignore_index)
        counted = target.reshape(-1) != (ignored - 2 * UNSIGNED if ignored >= UNSIGNED else ignored)
    return LossCall(function, labels, int(node._saved_reduction) == MEAN, counted)

"""What each microbatch put into each parameter's gradient, on this rank, before the wrapper reduces it.

Gradients are too large to keep, so each is reduced to a few fingerprints: products with fixed vectors. A fingerprint is
linear: that of a sum is the sum of the fingerprints. So the fingerprints of the reduced gradient say what the wrapper
made of the microbatches, whatever it is and however it is configured.

A hook on a parameter sees the local gradient in every wrapper, because each of them works on what autograd hands it. It
has to be set on the tensor that the forward uses: for FSDP that is the gathered parameter, which is in its module only
during the forward. So hooks are set from forward pre-hooks. All of them are gone after the first step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from weighbridge.training.losses import CallWeights, LossCall, calls_in

__all__ = ["PRINTS", "Key", "Piece", "Watch", "fingerprints", "full"]

PRINTS = 4  # fingerprints of a gradient
CHUNK = 1 << 18
Key = tuple[int, str]  # position of the module, name of the parameter in it


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that may be a DTensor (a collective over its mesh)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def fingerprints(gradient: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Products of a gradient with `PRINTS` fixed vectors: float64 [PRINTS].

    A shard has its own place in the whole: `start` is the index of its first element. The shards' prints add up.
    """
    flat = full(gradient.detach()).reshape(-1)
    total = torch.zeros(PRINTS, dtype=torch.float64, device=flat.device)
    pace = torch.arange(PRINTS, dtype=torch.float64, device=flat.device)[:, None]
    for first in range(0, flat.numel(), CHUNK):
        chunk = flat[first : first + CHUNK].double()
        place = torch.arange(start + first, start + first + chunk.numel(), device=flat.device, dtype=torch.float64)
        total += torch.cos(place * (1.1 + 0.37 * pace) + pace) @ chunk
    return total


@dataclass
class Piece:
    """One term of one microbatch of this rank.

    Attributes:
        term: name of the term, "" where there is only one.
        tokens: how many the user counted, int64 [].
        counted: which ones, bool [items]; None where a sum and a number were handed in.
        sequences: in the model's input; None where that doesn't show.
        calls: of known loss functions.
        seed: the gradient that the loss sum was seeded with, [].
        prints: of the local gradient of every parameter.
    """

    term: str
    tokens: torch.Tensor
    counted: torch.Tensor | None
    sequences: int | None
    calls: list[LossCall]
    seed: torch.Tensor | None = None
    prints: dict[Key, torch.Tensor] = field(default_factory=dict)

    def seeded(self) -> float:
        """What the loss sum was seeded with; all else is relative to that."""
        return 1.0 if self.seed is None else float(self.seed)

    def relative_prints(self) -> list[tuple[Key, list[float]]]:
        """The fingerprints relative to a loss seeded with 1."""
        return [(key, (prints / self.seeded()).tolist()) for key, prints in self.prints.items()]

    def call_weights(self) -> list[CallWeights]:
        """What the items of each known call weigh in the loss sum; after the backward."""
        if self.counted is not None:
            return self._under_the_mask(self.counted)
        found = [call.weights(self.seeded(), self.sequences) for call in self.calls]
        return [weights for weights in found if weights is not None]

    def _under_the_mask(self, mask: torch.Tensor) -> list[CallWeights]:
        """The sum was taken here, so weights are 1; but no more tokens can count than there are labels.

        A mask of positions that the loss ignores (an attention mask over a prompt) counts tokens that have no loss.
        """
        labels = [call for call in self.calls if call.labels]
        if sum(call.counted.numel() for call in labels) != mask.numel():
            return []
        held = torch.cat([call.counted for call in labels])
        held = held if int(held.sum()) < int(mask.sum()) else mask
        sequences = self.sequences if self.sequences and held.numel() % self.sequences == 0 else 1
        rows = [(number, number, float(number)) for number in held.reshape(sequences, -1).sum(1).tolist()]
        return [CallWeights(labels[0].function, True, False, rows, torch.finfo(torch.float32).eps)]


class Watch:
    """Fingerprints of the local gradients, piece by piece, while it is attached to `model`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = list(model.modules())
        self.pieces: list[Piece] = []
        self._sequences: int | None = None
        self._hooked: dict[int, torch.Tensor] = {}  # by id, and held so that no other tensor gets that id
        self._handles: list[Any] = [model.register_forward_pre_hook(self._see_batch, with_kwargs=True)]
        for position, module in enumerate(self.modules):
            hook = module.register_forward_pre_hook(lambda module, _, position=position: self._hook(position, module))
            self._handles.append(hook)

    def begin_piece(
        self, loss: torch.Tensor, tokens: torch.Tensor, *, term: str = "", mask: torch.Tensor | None = None
    ) -> None:
        """The next piece; the gradient that its loss is seeded with is what all others are relative to."""
        counted = None if mask is None else mask.detach().reshape(-1)
        piece = Piece(term, tokens, counted, self._sequences, calls_in(loss))
        self.pieces.append(piece)
        loss.register_hook(lambda seed: setattr(piece, "seed", seed.detach().double()))

    def detach(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._hooked = [], {}

    def forget(self) -> None:
        """Begin the step anew."""
        self.pieces = []

    def parameter(self, key: Key) -> torch.Tensor | None:
        """The parameter as it lies in its module now, sharded or not."""
        module, name = self.modules[key[0]], key[1]
        return module._parameters.get(name)

    def _see_batch(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor) and each.dim() >= 2]
        ids = [each for each in given if each.dim() == 2 and not each.is_floating_point()]
        first = (ids or given or [None])[0]
        self._sequences = None if first is None else int(first.shape[0])

    def _hook(self, position: int, module: torch.nn.Module) -> None:
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.requires_grad or id(parameter) in self._hooked:
                continue
            self._hooked[id(parameter)] = parameter
            key = position, name
            self._handles.append(parameter.register_hook(lambda gradient, key=key: self._take(key, gradient)))

    def _take(self, key: Key, gradient: torch.Tensor) -> None:
        if not self.pieces:
            return
        held, prints = self.pieces[-1].prints, fingerprints(gradient)
        held[key] = held[key] + prints if key in held else prints

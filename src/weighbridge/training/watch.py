"""What each microbatch put into each parameter's gradient, on this rank, before the wrapper reduces it.

Gradients are too large to keep, so each is reduced to a few fingerprints: products with fixed vectors. A fingerprint is
linear: that of a sum is the sum of the fingerprints. So the fingerprints of the reduced gradient say what the wrapper
made of the microbatches, whatever it is and however it is configured.

A hook on a parameter sees the local gradient in every wrapper, because each of them works on what autograd hands it. It
has to be set on the tensor that the forward uses: for FSDP that is the gathered parameter, which is in its module only
during the forward. So hooks are set from forward pre-hooks. All of them are gone after the first step.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["PRINTS", "Key", "Watch", "fingerprints", "full"]

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


class Watch:
    """Fingerprints of the local gradients, microbatch by microbatch, while it is attached to `model`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules = list(model.modules())
        self.pieces: list[dict[Key, torch.Tensor]] = []
        self.seeds: list[torch.Tensor | None] = []
        self._hooked: dict[int, torch.Tensor] = {}  # by id, and held so that no other tensor gets that id
        self._handles: list[Any] = []
        for position, module in enumerate(self.modules):
            hook = module.register_forward_pre_hook(lambda module, _, position=position: self._hook(position, module))
            self._handles.append(hook)

    def begin_piece(self, loss: torch.Tensor) -> None:
        """The next microbatch; the gradient that its loss is seeded with is what all others are relative to."""
        self.pieces.append({})
        self.seeds.append(None)
        index = len(self.seeds) - 1
        loss.register_hook(lambda seed: self._seed(index, seed))

    def detach(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._hooked = [], {}

    def forget(self) -> None:
        """Begin the step anew."""
        self.pieces, self.seeds = [], []

    def local(self) -> list[dict[Key, list[float]]]:
        """The fingerprints of every microbatch, relative to a loss seeded with 1."""
        found = []
        for piece, seed in zip(self.pieces, self.seeds, strict=True):
            scale = 1.0 if seed is None else float(seed)
            found.append({key: (prints / scale).tolist() for key, prints in piece.items()})
        return found

    def parameter(self, key: Key) -> torch.Tensor | None:
        """The parameter as it lies in its module now, sharded or not."""
        module, name = self.modules[key[0]], key[1]
        return module._parameters.get(name)

    def _seed(self, index: int, seed: torch.Tensor) -> None:
        self.seeds[index] = seed.detach().double()

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
        held, prints = self.pieces[-1], fingerprints(gradient)
        held[key] = held[key] + prints if key in held else prints

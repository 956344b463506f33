"""What the outermost forward shows of the batch: how many sequences, how long, and what is in them.

A loss call on flattened logits [B*T, C] no longer shows the batch; the model's inputs do. And two ranks that were
given the same sequence can only be seen by content, because samplers repeat and drop items without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Batch", "digest_rows"]

TELLING = 8  # numbers in a row from which two equal ones are one item; single labels and small tables repeat by nature
SAMPLE = 4096  # elements of a row that its digest looks at


@dataclass
class Batch:
    """The inputs of one outermost forward."""

    size: int | None  # sequences
    length: int | None  # positions a sequence, where the inputs are [B, T]
    inputs: tuple[Tensor, ...]  # the tensors whose first dim is the batch

    @classmethod
    def from_arguments(cls, args: Any, kwargs: Any) -> Batch:
        tensors = [tensor for tensor in _tensors((args, kwargs)) if tensor.dim() >= 1]
        whole = [tensor for tensor in tensors if not tensor.is_floating_point() and tensor.dim() == 2]
        first = (whole or [tensor for tensor in tensors if tensor.dim() >= 2] or tensors or [None])[0]
        if first is None:
            return cls(None, None, ())
        size = int(first.shape[0])
        length = int(first.shape[1]) if first.dim() >= 2 else None
        return cls(size, length, tuple(tensor for tensor in tensors if tensor.shape[0] == size))

    def rows_of(self, items: int, shape: tuple[int, ...], batch_rows: bool) -> int:
        """How many sequences `items` losses of `shape` stand for; 1 where that doesn't show.

        The first dim of a loss call is its batch, unless the model was fed another number of sequences: then it holds
        positions that were selected, and a rule about sequences must not take each of them for one.
        """
        first = int(shape[0]) if shape else items
        if batch_rows and self.size in (None, first):
            return first
        if not self.size or first % self.size:
            return 1
        length = first // self.size
        if length == 1 or (self.length is not None and length in (self.length, self.length - 1)):
            return self.size
        return 1

    def digests(self, rows: int) -> Tensor | None:
        """int64 [rows], equal for equal inputs; None where the rows are not the batch's sequences, or hold so little
        that equal ones are no sign of a repeated item."""
        if not self.inputs or rows != self.size or self._elements(rows) < TELLING:
            return None
        total = torch.zeros(rows, dtype=torch.int64, device=self.inputs[0].device)
        for number, tensor in enumerate(self.inputs):
            total = total * 31 + digest_rows(tensor.to(total.device), number + 1)
        return total

    def _elements(self, rows: int) -> int:
        """Numbers that a row has in all inputs together."""
        return int(sum(tensor.numel() for tensor in self.inputs) // rows)


def _tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth < 4 and isinstance(value, dict):
        for key in value:
            yield from _tensors(value[key], depth + 1)
    elif depth < 4 and isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part, depth + 1)
    elif depth < 4 and hasattr(value, "data") and isinstance(getattr(value, "data", None), dict):
        yield from _tensors(value.data, depth + 1)  # transformers' BatchEncoding


def digest_rows(tensor: Tensor, salt: int) -> Tensor:
    """int64 [rows]: a sum of the row's bits times odd multipliers that depend on the position, modulo 2**64."""
    with torch.no_grad():
        flat = tensor.detach().reshape(tensor.shape[0], -1)
        if flat.shape[1] > SAMPLE:
            flat = flat[:, :: flat.shape[1] // SAMPLE + 1]
        if flat.is_floating_point():
            flat = flat.float().contiguous().view(torch.int32)
        position = torch.arange(flat.shape[1], device=flat.device, dtype=torch.int64)
        multipliers = ((position + salt) * 0x5851F42D4C957F2D + 0x14057B7EF767814F) | 1
        mixed = (flat.to(torch.int64) + 1) * multipliers
        return (mixed ^ (mixed >> 29)).sum(1)

"""Tie the probe to what the probed module returns, where a wrapper looks for it there.

DDP with `find_unused_parameters=True` follows the graph from the outputs of the forward. The probe joins at the loss,
which may come later: DDP would take it for unused, and fail when its gradient arrives after all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

__all__ = ["tied"]

Place = tuple[Any, ...]  # keys and indices from the outputs down to a tensor


def tied(outputs: Any, link: Tensor) -> Any:
    """`outputs` with the zero `link` added to the smallest tensor in them that has a gradient; values stay the same."""
    found = [(tensor.numel(), number, place, tensor) for number, (place, tensor) in enumerate(_tensors(outputs, ()))]
    if not found:
        return outputs
    _, _, place, tensor = min(found)
    return _replaced(outputs, place, tensor + link.to(device=tensor.device, dtype=tensor.dtype))


def _tensors(value: Any, place: Place) -> Iterator[tuple[Place, Tensor]]:
    if isinstance(value, Tensor):
        if value.requires_grad and value.is_floating_point():
            yield place, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _tensors(part, (*place, key))
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _tensors(part, (*place, index))


def _replaced(value: Any, place: Place, tensor: Tensor) -> Any:
    """`value` with `tensor` at `place`; mappings and lists are changed in place, tuples are built anew."""
    if not place:
        return tensor
    first, *rest = place
    part = _replaced(value[first], tuple(rest), tensor)
    if isinstance(value, tuple):
        parts = [part if index == first else old for index, old in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    value[first] = part
    return value

"""The probe: a parameter of zeros whose gradient is the weights.

One slot a row of a piece. `term(slots)` is zero and is added to the losses of a row; what reaches the slot's gradient
when the optimizer is about to step is the row's total weight in the update, because the probe goes through the same
mean or sum, accumulation, all-reduce, divide factor and unscaling as every other parameter of its module.

Two readings of each weight. A slot is two entries with the scales `SCALE` and `SCALE * RATIO`. The first is a power of
two and rounds nothing; the second takes the same path through other roundings. Their difference is the measured
estimate of what rounding did. SCALE is small so that the probe's entries (at most one each, times SCALE) are lost in
the last bit of any gradient norm above 2**-40, and so can't make a clip active that would not have been.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["NAME", "Probe", "find_probe_owner", "is_probe"]

NAME = "weighbridge_probe"
SCALE = 2.0**-30
RATIO = 1.37
MOST_SLOTS = 512  # a rank's slots in one step, on up to 128 ranks
LEAST_SLOTS = 64  # on more ranks: enough for 64 microbatches, without single sequences
TOTAL_SLOTS = 65536


def is_probe(parameter: Any) -> bool:
    """True for the parameter that weighing added, in whatever form a wrapper gave it."""
    return getattr(parameter, "_weighbridge_probe", False)


def find_probe_owner(module: nn.Module) -> nn.Module | None:
    """The module nearest to the root of `module` that holds a probe."""
    level: list[nn.Module] = [module]
    while level:
        for candidate in level:
            if NAME in candidate._parameters:
                return candidate
        level = [child for candidate in level for child in candidate.children()]
    return None


def slots_per_rank(world_size: int) -> int:
    return max(LEAST_SLOTS, min(MOST_SLOTS, TOTAL_SLOTS // world_size))


def attach(module: nn.Module, *, world_size: int, like_neighbours: bool, beside_children: bool = False) -> None:
    """Register a probe on `module`, unless it has one.

    Args:
        module: the module about to be wrapped, or the outermost module of a first training forward.
        world_size: ranks that share the probe.
        like_neighbours: True gives the probe the dtype of the module's first parameter (FSDP2 groups want one dtype);
            False gives float32, or float64 beside float64 parameters, whatever the neighbours are.
        beside_children: False leaves a module alone that has a child with a probe.
    """
    if NAME in module._parameters or (not beside_children and find_probe_owner(module) is not None):
        return
    neighbour = next((p for p in module.parameters() if p.requires_grad), None)
    if neighbour is None:
        return
    wide = torch.float64 if neighbour.dtype == torch.float64 else torch.float32
    dtype = neighbour.dtype if like_neighbours else wide
    zeros = torch.zeros(world_size * slots_per_rank(world_size) * 2, dtype=dtype, device=neighbour.device)
    parameter = nn.Parameter(zeros)
    module.register_parameter(NAME, parameter)
    mark_as_probe(module)
    # A checkpoint shows nothing of the weighing, and one without the probe loads under strict=True.
    module.register_state_dict_post_hook(_leave_out_of_state_dict)
    module.register_load_state_dict_post_hook(_not_missing)


def mark_as_probe(module: nn.Module) -> None:
    """Mark the current probe parameter of `module`; a wrapper may have replaced the object."""
    parameter = module._parameters.get(NAME)
    if parameter is not None:
        parameter._weighbridge_probe = True


def detach(module: nn.Module) -> None:
    """Take the probe off `module`."""
    module._parameters.pop(NAME, None)


def _leave_out_of_state_dict(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    state_dict.pop(prefix + NAME, None)


def _not_missing(module: nn.Module, incompatible: Any) -> None:
    incompatible.missing_keys[:] = [key for key in incompatible.missing_keys if key.rsplit(".", 1)[-1] != NAME]


class Probe:
    """This rank's use of the probe on `owner`: which slots are taken in the running step, and what came back."""

    def __init__(self, owner: nn.Module, *, rank: int, world_size: int) -> None:
        self.owner = owner
        self.rank = rank
        self.world_size = world_size
        self.capacity = slots_per_rank(world_size)
        self.taken = 0
        self._values: Tensor | None = None

    @property
    def parameter(self) -> nn.Parameter | None:
        """The probe as registered now: sharded between steps, whole within a forward."""
        return self.owner._parameters.get(NAME)

    def zero(self) -> None:
        """Make sure of the zeros: a module that was built on the meta device got its memory after the probe joined."""
        if self.parameter is not None:
            with torch.no_grad():
                self.parameter.zero_()

    def refresh(self) -> None:
        """Take the probe's values for the losses to come; called inside the owner's forward, while it is whole."""
        parameter = self.parameter
        # A copy outlives a wrapper that shards the parameter again when the forward ends.
        self._values = None if parameter is None else parameter.clone()

    def pass_through(self, hook: Callable[[Tensor], Tensor | None]) -> None:
        """Losses to come use values whose gradient goes through `hook` first."""
        if self._values is not None and self._values.requires_grad:
            self._values = self._values * 1.0
            self._values.register_hook(hook)

    def forget(self) -> None:
        """A new step begins: all slots are free."""
        self.taken = 0

    def take(self, rows: int) -> tuple[int, int] | None:
        """(first slot, number of slots) for `rows` rows: one each, one for all where slots run short, None for none."""
        left = self.capacity - self.taken
        if rows <= left - LEAST_SLOTS // 2 or (rows == 1 and left > 0):
            first, number = self.taken, rows
        elif left > 0:
            first, number = self.taken, 1
        else:
            return None
        self.taken += number
        return first, number

    def values(self, slots: tuple[int, int]) -> Tensor:
        """Zeros [number of slots] that carry the gradient to the slots, on the probe's device and dtype."""
        if self._values is None:
            self.refresh()
        assert self._values is not None
        first = (self.rank * self.capacity + slots[0]) * 2
        pairs = self._values[first : first + slots[1] * 2].view(-1, 2)
        return pairs[:, 0] * SCALE + pairs[:, 1] * (SCALE * RATIO)

    def read(self, gradient: Tensor) -> tuple[list[tuple[int, float, float]], list[tuple[int, int]]]:
        """The weights in the probe's gradient, as far as this process holds it: see the function `read`."""
        return read(gradient)

    def link(self) -> Tensor:
        """A zero that keeps the probe in the graph and gives it a gradient of zero."""
        if self._values is None:
            self.refresh()
        assert self._values is not None
        return self._values.sum() * 0.0


def read(gradient: Tensor, start: int = 0) -> tuple[list[tuple[int, float, float]], list[tuple[int, int]]]:
    """The weights in a probe's gradient, as far as this process holds it.

    Args:
        gradient: `probe.grad` [entries], plain or sharded.
        start: index of its first entry in the whole, for a shard that doesn't say so itself.

    Returns:
        ([(global slot, first reading, second reading)] for nonzero slots, [(first entry, end)] held by this process).
        Nothing is communicated: the ranks' parts are put together from their records.
    """
    local = gradient
    if hasattr(gradient, "to_local"):
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        _, offsets = compute_local_shape_and_global_offset(gradient.shape, gradient.device_mesh, gradient.placements)
        start = int(offsets[0])
        local = gradient.to_local()
    numbers = local.detach().double().cpu()
    entries = torch.nonzero(numbers).flatten().tolist()
    readings: dict[int, list[float]] = {}
    for entry in entries:
        where = start + entry
        scale = SCALE * RATIO if where % 2 else SCALE
        readings.setdefault(where // 2, [float("nan"), float("nan")])[where % 2] = float(numbers[entry]) / scale
    return [(slot, *pair) for slot, pair in sorted(readings.items())], [(start, start + numbers.numel())]  # type: ignore[misc]

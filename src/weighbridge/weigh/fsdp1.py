"""FSDP1 (`FullyShardedDataParallel`): the probe has a unit of its own, below the outermost one.

FSDP1 flattens the parameters of a module into one, which would take the probe in and give it to the optimizer. In a
unit of its own the probe is a parameter by itself, and goes the same way as all others: gathered for the forward,
reduced and scattered in the backward, under the same `no_sync`, comm hooks and clipping.

Units are made from the inside out, and nothing says which is the last: the probe's unit moves to each new one, if that
holds the one it was in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weighbridge.weigh import optimizers, probe
from weighbridge.weigh.process import place

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["FlatProbe", "adopt", "install", "outermost"]

ALIKE = ("process_group", "cpu_offload", "mixed_precision", "forward_prefetch", "limit_all_gathers", "use_orig_params")


class _Holder(nn.Module):  # type: ignore[misc]
    """A module with nothing but the probe."""

    def __init__(self, like: Tensor, world_size: int) -> None:
        super().__init__()
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        zeros = torch.zeros(world_size * probe.slots_per_rank(world_size) * 2, dtype=dtype, device=like.device)
        self.register_parameter(probe.NAME, nn.Parameter(zeros))

    def forward(self) -> Tensor:
        values: Tensor = getattr(self, probe.NAME)
        return values.clone()


class FlatProbe(probe.Probe):
    """The probe in an FSDP1 unit; `owner` is the module that the outermost unit wraps."""

    def __init__(self, owner: nn.Module, unit: Any) -> None:
        rank, world_size = place()
        super().__init__(owner, rank=rank, world_size=world_size)
        self._unit = unit

    @property
    def parameter(self) -> nn.Parameter | None:
        """The shard of this rank; None between the unit's forward and backward, when it is whole."""
        return next(self._unit.parameters(), None)

    def refresh(self) -> None:
        """Run the unit's forward, inside that of the outermost unit."""
        self._values = self._unit()

    def read(self, gradient: Tensor) -> tuple[list[tuple[int, float, float]], list[tuple[int, int]]]:
        """The weights in this rank's shard: the entries are shared out evenly, in order of rank."""
        whole = self.world_size * self.capacity * 2
        shard = 0 if gradient.numel() == whole else dist.get_rank(self._unit.process_group)
        return probe.read(gradient, shard * gradient.numel())


def outermost(module: nn.Module) -> Any:
    """The FSDP1 unit in `module`, itself included, that has the probe's unit; None where there is none."""
    return next((each for each in module.modules() if probe.NAME in each._modules), None)


def adopt(weigher: Weigher, unit: Any) -> nn.Module:
    """The probe below `unit` is used from now on; the module whose forwards are to be watched."""
    own = unit._modules[probe.NAME]
    _mark(own)
    owner: nn.Module = unit.module
    weigher.wrapped = True
    if getattr(unit, "_inter_node_pg", None) is None:  # else it reduces over two groups, crosswise
        weigher.shares = dist.get_process_group_ranks(unit.process_group)
    weigher.adopt(owner, FlatProbe(owner, own))
    return owner


def install(weigher: Weigher, package: Any) -> None:
    """Hook the class, as users find it in `torch.distributed.fsdp`."""
    wrapper = package.FullyShardedDataParallel
    original = wrapper.__init__

    @functools.wraps(original)
    def wrap(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, module, *args, **kwargs)
        if not weigher.quiet and weigher.probe is None and not isinstance(module, _Holder):
            _settle(wrapper, self, module, kwargs)

    wrapper.__init__ = wrap
    wrapper.clip_grad_norm_ = optimizers.watched_clip(_clip_others(wrapper.clip_grad_norm_), weigher)


def _settle(wrapper: Any, unit: Any, module: nn.Module, kwargs: dict[str, Any]) -> None:
    """Put the probe's unit below `unit`, the outermost one so far."""
    like = next((each for each in unit.parameters() if each.requires_grad), None)
    if like is None:
        return
    below = outermost(module)
    own = None if below is None else below._modules.pop(probe.NAME)
    if own is None:
        alike = {name: kwargs[name] for name in (*ALIKE, "device_id", "device_mesh") if name in kwargs}
        if "device_mesh" in alike:
            alike.pop("process_group", None)
        strategy = unit.sharding_strategy
        own = wrapper(_Holder(like, place()[1]), sharding_strategy=strategy, **alike)
    _mark(own)
    unit.register_module(probe.NAME, own)
    unit.register_state_dict_pre_hook(lambda unit, *_: _hide(unit))
    unit.register_state_dict_post_hook(lambda unit, *_: _show(unit))
    unit.register_load_state_dict_pre_hook(lambda unit, *_: _hide(unit))
    unit.register_load_state_dict_post_hook(lambda unit, *_: _show(unit))


def _mark(own: Any) -> None:
    for parameter in own.parameters():
        parameter._weighbridge_probe = True


def _hide(unit: Any) -> None:
    """A checkpoint shows nothing of the weighing, and one without the probe loads."""
    own = unit._modules.pop(probe.NAME, None)
    if own is not None:
        unit.__dict__["_weighbridge_hidden"] = own


def _show(unit: Any) -> None:
    own = unit.__dict__.pop("_weighbridge_hidden", None)
    if own is not None:
        unit._modules[probe.NAME] = own


def _clip_others(original: Callable[..., Any]) -> Callable[..., Any]:
    """The clip is of the others' gradients; the probe's is multiplied by what they are."""

    @functools.wraps(original)
    def clip(self: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        own = next((each for each in self.parameters() if probe.is_probe(each)), None)
        gradient = None if own is None else own.grad
        if own is None or gradient is None:
            return original(self, max_norm, *args, **kwargs)
        own.grad = None
        norm = original(self, max_norm, *args, **kwargs)
        own.grad = gradient
        gradient.mul_(torch.clamp(float(max_norm) / (norm + 1e-6), max=1.0).to(gradient.device))
        return norm

    return clip

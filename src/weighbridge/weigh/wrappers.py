"""Give the probe to a module before it is wrapped: DDP, fully_shard, DeepSpeed.

A wrapper collects parameters when it wraps, so the probe must be there by then. `fully_shard` is called for layers
first and for the root last, and nothing says which call is the last: each module it is called on gets a probe, and the
one nearest to the root is used; the others stay zeros without gradients.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn

from weighbridge.weigh import fsdp1, optimizers, probe
from weighbridge.weigh.imports import when_imported
from weighbridge.weigh.outputs import tied
from weighbridge.weigh.process import place

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["any_wrapped", "install", "watch_owner"]

_wrapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def any_wrapped() -> bool:
    """True where a wrapped module holds a probe: no other module should get one."""
    return len(_wrapped) > 0


def install(weigher: Weigher) -> None:
    """Hook the wrappers of torch now, those of other libraries when they are imported."""
    _wrap_ddp(weigher)
    when_imported("torch.distributed.fsdp", lambda module: _wrap_fully_shard(weigher, module))
    when_imported("torch.distributed.fsdp", lambda module: fsdp1.install(weigher, module))
    when_imported("deepspeed.runtime.engine", lambda module: _wrap_deepspeed(weigher, module))


def watch_owner(weigher: Weigher, module: nn.Module) -> None:
    """Call the weigher at each forward of `module` from now on, if it is the probe's owner then."""

    def first(module: nn.Module, args: Any, kwargs: Any) -> None:
        # Before a wrapper's own hook: the probe is still in the form that optimizers know.
        if weigher.probe is not None and weigher.probe.owner is module:
            probe.mark_as_probe(module)
            if weigher.training() and weigher.enabled:
                optimizers.join(weigher)
            weigher.begin_forward(args, kwargs)

    def last(module: nn.Module, args: Any) -> None:
        if weigher.probe is not None and weigher.probe.owner is module:
            weigher.refresh()

    def after(module: nn.Module, args: Any, outputs: Any) -> Any:
        its = weigher.probe
        if its is None or its.owner is not module or not weigher.ties_outputs or not weigher.training():
            return None
        return tied(outputs, its.link())

    module.register_forward_pre_hook(first, prepend=True, with_kwargs=True)
    module.register_forward_pre_hook(last)
    module.register_forward_hook(after)


def _wrap_ddp(weigher: Weigher) -> None:
    wrapper = nn.parallel.DistributedDataParallel
    original = wrapper.__init__

    @functools.wraps(original)
    def wrap_with_probe(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not weigher.quiet and weigher.probe is None:
            probe.attach(module, world_size=place()[1], like_neighbours=False)
        original(self, module, *args, **kwargs)
        _remember(weigher, module)
        weigher.wrapped = True
        weigher.ties_outputs = bool(self.find_unused_parameters)
        weigher.shares = dist.get_process_group_ranks(self.process_group)

    wrapper.__init__ = wrap_with_probe


def _remember(weigher: Weigher, module: nn.Module) -> None:
    if probe.NAME in module._parameters and module not in _wrapped:
        _wrapped.add(module)
        watch_owner(weigher, module)


def _wrap_fully_shard(weigher: Weigher, package: Any) -> None:
    original = package.fully_shard

    @functools.wraps(original)
    def shard_with_probe(module: Any, *args: Any, **kwargs: Any) -> Any:
        modules = [module] if isinstance(module, nn.Module) else list(module)
        if not weigher.quiet and weigher.probe is None and len(modules) == 1:
            _attach_own(modules[0])
        result = original(module, *args, **kwargs)
        for wrapped in modules:
            probe.mark_as_probe(wrapped)
            _remember(weigher, wrapped)
        return result

    # State hangs on the function object: fully_shard.state(module) is how FSDP finds its own.
    for holder in [package, *(m for n, m in list(sys.modules.items()) if n.startswith("torch.distributed.") and m)]:
        if getattr(holder, "fully_shard", None) is original:
            holder.fully_shard = shard_with_probe


def _attach_own(module: nn.Module) -> None:
    """A probe of the module's own, also where a child, sharded before, has one."""
    if probe.NAME not in module._parameters and any(p.requires_grad for p in module.parameters()):
        probe.attach(module, world_size=place()[1], like_neighbours=True, beside_children=True)


def _wrap_deepspeed(weigher: Weigher, module: Any) -> None:
    from weighbridge.weigh import deepspeed_hooks

    deepspeed_hooks.install(weigher, module, _remember)

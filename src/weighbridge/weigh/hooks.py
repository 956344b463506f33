"""Everything that is hooked into torch itself, installed right after torch was imported.

Functions are replaced where users look them up; classes get their methods wrapped. What is hooked, and why:

    torch.nn.functional.<losses>      the probe joins here, under the same reduction
    first training forward            finds the outermost module, which gets the probe if no wrapper gave it one
    torch.compile                     runs eagerly while weighing, and the report says so
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from weighbridge.weigh import calls, fsdp1, optimizers, probe, wrappers
from weighbridge.weigh.process import call_site, place

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["install"]


def install(weigher: Weigher) -> None:
    """Hook torch in this process."""
    for name in calls.FUNCTIONS:
        _watch_loss(weigher, name)
    _watch_first_forward(weigher)
    wrappers.install(weigher)
    optimizers.install(weigher)
    _run_compiled_code_eagerly(weigher)


def _watch_loss(weigher: Weigher, name: str) -> None:
    original = getattr(F, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if weigher.probe is None:
            return original(*args, **kwargs)
        return weigher.see(name, original, args, kwargs)

    setattr(F, name, watched)


def _watch_first_forward(weigher: Weigher) -> None:
    """Until the probe has its owner, look at every call of a module; then only at the owner's.

    `nn.Module.__call__` is wrapped for that time: a global forward hook would not be given keyword arguments, and the
    owner's own hooks, which are registered here, still run in this very call.
    """
    original = nn.Module.__call__

    @functools.wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _adopts(weigher, self):
            nn.Module.__call__ = original
        return original(self, *args, **kwargs)

    nn.Module.__call__ = call


def _adopts(weigher: Weigher, module: nn.Module) -> bool:
    """Whether `module`, about to be called, is the outermost one of a first training forward; then it has the probe."""
    if weigher.quiet or not torch.is_grad_enabled() or torch.utils.data.get_worker_info() is not None:
        return False
    if not (module.training or weigher.attach_in_eval):
        return False
    unit = fsdp1.outermost(module)
    if unit is not None:
        wrappers.watch_owner(weigher, fsdp1.adopt(weigher, unit))
        optimizers.strip_all()
        return True
    owner = probe.find_probe_owner(module)
    if owner is None:
        if wrappers.any_wrapped() or not any(p.requires_grad for p in module.parameters()):
            return False
        probe.attach(module, world_size=place()[1], like_neighbours=False)
        wrappers.watch_owner(weigher, module)
        owner = module
    for member in module.modules():
        probe.mark_as_probe(member)
    optimizers.strip_all()
    weigher.adopt(owner)
    return True


def _run_compiled_code_eagerly(weigher: Weigher) -> None:
    original = torch.compile

    @functools.wraps(original)
    def compile_eagerly(*args: Any, **kwargs: Any) -> Any:
        # Libraries compile kernels of their own when they are imported; those hold no loss and stay as they are.
        model = args[0] if args else kwargs.get("model")
        if isinstance(model, nn.Module) or "site-packages" not in call_site():
            torch.compiler.set_stance("force_eager")
            weigher.compiled = True
        return original(*args, **kwargs)

    torch.compile = compile_eagerly

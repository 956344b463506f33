"""The optimizer's side: the probe is among its parameters while gradients gather, and never when it updates.

Whoever walks the parameters must meet the probe: `zero_grad` in the middle of a window, `GradScaler.unscale_`, a clip
over an optimizer's groups. So the probe joins a group when a step's first microbatch begins. But nothing of it may be
left in an update, an optimizer state or a checkpoint. So it leaves the group when the optimizer is about to step,
after its gradient was read, and for as long as a state is saved or loaded. It never takes part in a clip's norm: the
clip is of the others' gradients, and the probe's is multiplied by what they are.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from weighbridge.weigh import probe

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["install", "join", "keeping_probe", "strip_all", "watched_clip"]

_optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
_keep = False  # True while an engine collects parameters and has to find the probe among them


@contextlib.contextmanager
def keeping_probe() -> Iterator[None]:
    """Optimizers that are built inside keep the probe in their groups."""
    global _keep
    _keep = True
    try:
        yield
    finally:
        _keep = False


def install(weigher: Weigher) -> None:
    """Hook optimizers, clips and gradient scalers."""
    _watch_groups()
    _watch_states(weigher)
    register_optimizer_step_pre_hook(functools.partial(_before_step, weigher))
    _watch_clip(weigher)
    _watch_skipped_steps(weigher)


# -- groups -------------------------------------------------------------------------------------------------------


def _watch_groups() -> None:
    original = Optimizer.add_param_group

    @functools.wraps(original)
    def add_without_probe(self: Optimizer, param_group: dict[str, Any]) -> None:
        original(self, param_group)
        _optimizers.add(self)
        if not _keep:
            strip(self)

    Optimizer.add_param_group = add_without_probe


def strip(optimizer: Optimizer) -> bool:
    """Take probes out of the groups; True if there was one."""
    found = False
    for group in optimizer.param_groups:
        if any(probe.is_probe(parameter) for parameter in group["params"]):
            found = True
            group["params"][:] = [parameter for parameter in group["params"] if not probe.is_probe(parameter)]
    return found


def strip_all() -> None:
    """Take probes out of all optimizers: a wrapper may have marked its copy after an optimizer collected it."""
    for optimizer in _optimizers:
        strip(optimizer)


def _watch_states(weigher: Weigher) -> None:
    for name in ("state_dict", "load_state_dict"):
        setattr(Optimizer, name, _without_probe(getattr(Optimizer, name), weigher))


def _without_probe(original: Callable[..., Any], weigher: Weigher) -> Callable[..., Any]:
    """The method, with the probe out of the groups while it runs."""

    @functools.wraps(original)
    def method(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        joined = weigher.engine is None and strip(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            if joined:
                join(weigher)

    return method


def join(weigher: Weigher) -> None:
    """Put the probe at the end of the last group that holds a trainable parameter beside it, unless it is in one.

    At the end: torch.distributed.checkpoint numbers parameters by their place, and the others must keep theirs.
    """
    assert weigher.probe is not None
    parameter = weigher.probe.parameter
    if parameter is None or weigher.engine is not None:
        return
    if any(_holds(optimizer) for optimizer in _optimizers):
        return
    beside = {id(p) for p in weigher.probe.owner.parameters() if p.requires_grad and not probe.is_probe(p)}
    for optimizer in _optimizers:
        for group in reversed(optimizer.param_groups):
            if any(id(member) in beside for member in group["params"]):
                group["params"].append(parameter)
                return


def _holds(optimizer: Optimizer) -> bool:
    return any(probe.is_probe(member) for group in optimizer.param_groups for member in group["params"])


def _shares(owner: torch.nn.Module, optimizer: Optimizer) -> bool:
    """True where the optimizer updates parameters of the probed module too, beside the one that holds the probe."""
    own = {id(parameter) for parameter in owner.parameters()}
    return any(id(member) in own for group in optimizer.param_groups for member in group["params"])


# -- steps --------------------------------------------------------------------------------------------------------


def _before_step(weigher: Weigher, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """Read now, or, where the optimizer runs forward and backward itself, when its closure has run."""
    if weigher.engine is not None:
        return None
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(closure):
        _read(weigher, optimizer)
        return None

    def closure_then_read(*inner: Any, **named: Any) -> Any:
        result = closure(*inner, **named)
        _read(weigher, optimizer)
        return result

    if len(args) > 1:
        return (args[0], closure_then_read, *args[2:]), kwargs
    return args, dict(kwargs, closure=closure_then_read)


def _read(weigher: Weigher, optimizer: Optimizer) -> None:
    if weigher.probe is None:
        # Nothing was attached and yet it trains: in evaluation mode, then.
        weigher.attach_in_eval = not weigher.quiet
        _note_lossless(weigher)
        return
    if not _holds(optimizer):
        weigher.foreign_steps += weigher.enabled and not _shares(weigher.probe.owner, optimizer)
        return
    parameter = weigher.probe.parameter
    strip(optimizer)
    if parameter is None:
        return
    gradient = parameter.grad
    if weigher.enabled and weigher.window.entries:
        weigher.end_step(
            gradient, dtype=parameter.dtype, clips=weigher.take_clips(), optimizer=type(optimizer).__name__
        )
    elif weigher.enabled:
        _note_lossless(weigher)
    parameter.grad = None


def _note_lossless(weigher: Weigher) -> None:
    """Record, once, that an optimizer stepped and no loss was seen: else it would read as if none had stepped."""
    if not weigher.stepped_without_loss and not weigher.quiet:
        weigher.stepped_without_loss = True
        weigher.recorder.write("step-without-loss", step=weigher.step)


def _watch_skipped_steps(weigher: Weigher) -> None:
    """A GradScaler that found infinities skips the optimizer's step: the window is given up with it."""
    scaler = torch.amp.GradScaler
    original = scaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = weigher.step
        result = original(self, optimizer, *args, **kwargs)
        if weigher.probe is not None and weigher.enabled and weigher.step == before and weigher.window.entries:
            weigher.recorder.write("skipped", step=weigher.step)
            weigher.forget_window()
        return result

    scaler.step = step


# -- clips --------------------------------------------------------------------------------------------------------


def _watch_clip(weigher: Weigher) -> None:
    utils = torch.nn.utils
    scale = utils.clip_grads_with_norm_
    replaced = {
        "clip_grad_norm_": watched_clip(_clip_others(utils.clip_grad_norm_, scale), weigher),
        "clip_grads_with_norm_": watched_clip(scale, weigher),
        "get_total_norm": _norm_of_others(utils.get_total_norm, weigher),
    }
    for name, function in replaced.items():
        for holder in (utils, utils.clip_grad):
            if hasattr(holder, name):
                setattr(holder, name, function)


def _norm_of_others(original: Callable[..., Any], weigher: Weigher) -> Callable[..., Any]:
    @functools.wraps(original)
    def norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        parameter = None if weigher.probe is None else weigher.probe.parameter
        if parameter is None or parameter.grad is None:
            return original(tensors, *args, **kwargs)
        members = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        return original([member for member in members if member is not parameter.grad], *args, **kwargs)

    return norm


def _clip_others(original: Callable[..., Any], scale: Callable[..., Any]) -> Callable[..., Any]:
    """clip_grad_norm_ over the others' gradients, and what they are multiplied by for the probe's.

    One more norm in the sum, however small, changes the order in which torch adds them up, and so the last bit.
    """

    @functools.wraps(original)
    def clip(
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Any:
        members = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        others = [member for member in members if not probe.is_probe(member)]
        norm = original(others, max_norm, norm_type, error_if_nonfinite, foreach)
        if len(others) < len(members):
            scale([member for member in members if probe.is_probe(member)], max_norm, norm, foreach)
        return norm

    return clip


def watched_clip(original: Callable[..., Any], weigher: Weigher) -> Callable[..., Any]:
    """The clip, with what it multiplied gradients by kept for the record."""

    @functools.wraps(original)
    def clip(*args: Any, **kwargs: Any) -> Any:
        before = _largest(weigher)
        result = original(*args, **kwargs)
        after = _largest(weigher)
        if before and after is not None and after[1] != before[1]:
            weigher.clips.append((weigher.window.microbatches, after[1] / before[1]))
        return result

    return clip


def _largest(weigher: Weigher) -> tuple[int, float] | None:
    """(entry, value) of the probe's largest gradient entry on this rank, None where there is none."""
    if weigher.probe is None or not weigher.enabled:
        return None
    parameter = weigher.probe.parameter
    gradient: Tensor | None = None if parameter is None else parameter.grad
    if gradient is None:
        return None
    local: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    if not local.numel():
        return None
    entry = int(local.detach().abs().argmax())
    value = float(local.detach().double().flatten()[entry])
    return (entry, value) if value == value and value else None

"""DeepSpeed: the probe goes into the engine with the model, and is read through the engine.

ZeRO keeps no `.grad`; `safe_get_full_grad` gives the reduced gradient before the engine's step, and
`safe_set_full_grad` puts zeros there, so that the update leaves the probe where it is. The probe stays in ZeRO's flat
buffers for good: a checkpoint of them would hold it, so none is written while weighing, and the run ends after it.

The engine divides by the accumulation steps in a hook on the outputs of its forward. A loss computed from those
outputs outside the engine gets its gradient divided on the way in; the probe, which joins at the loss, would pass the
hook by. So the values that losses outside use carry the engine's own hook.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from weighbridge.weigh import optimizers, probe
from weighbridge.weigh.process import place

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["install"]


def install(weigher: Weigher, module: Any, remember: Any) -> None:
    """Hook `deepspeed.runtime.engine`."""
    engine = module.DeepSpeedEngine
    _give_probe(weigher, engine, remember)
    _scale_like_outputs(weigher, engine)
    _read_before_step(weigher, engine)
    _refuse_checkpoints(weigher, engine)


def _give_probe(weigher: Weigher, engine: Any, remember: Any) -> None:
    original = engine.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        model = kwargs.get("model", args[1] if len(args) > 1 else None)
        if not weigher.quiet and isinstance(model, nn.Module):
            probe.attach(model, world_size=place()[1], like_neighbours=False)
            parameter = model._parameters.get(probe.NAME)
            if parameter is not None:
                args, kwargs = _with_probe(parameter, args, kwargs)
        with optimizers.keeping_probe():
            original(self, *args, **kwargs)
        if isinstance(model, nn.Module):
            probe.mark_as_probe(model)
            remember(weigher, model)
            weigher.wrapped = True
            weigher.engine = self

    engine.__init__ = init


def _with_probe(parameter: nn.Parameter, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The engine's arguments with the probe among the parameters to optimize."""
    names = ("args", "model", "optimizer", "model_parameters")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    optimizer, parameters = given.get("optimizer"), given.get("model_parameters")
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer.param_groups[0]["params"].append(parameter)
        return args, kwargs
    if parameters is None:
        return args, kwargs
    parameters = list(parameters)
    if parameters and isinstance(parameters[0], dict):
        first = dict(parameters[0])
        first["params"] = [*first["params"], parameter]
        parameters[0] = first
    elif not any(member is parameter for member in parameters):
        parameters.append(parameter)
    if len(args) > 3:
        return (*args[:3], parameters, *args[4:]), kwargs
    return args, dict(kwargs, model_parameters=parameters)


def _scale_like_outputs(weigher: Weigher, engine: Any) -> None:
    original = engine.forward
    per_tensor = getattr(engine, "_backward_prologue_per_tensor", None)
    if per_tensor is None:
        return  # an older engine scales the loss itself

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(self, *args, **kwargs)
        if weigher.probe is not None and weigher.training():
            weigher.probe.pass_through(lambda gradient: per_tensor(self, gradient))
        return outputs

    engine.forward = forward


def _read_before_step(weigher: Weigher, engine: Any) -> None:
    original = engine.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if weigher.probe is not None and self.is_gradient_accumulation_boundary():
            _read(weigher)
        return original(self, *args, **kwargs)

    engine.step = step


def _read(weigher: Weigher) -> None:
    from deepspeed.utils import safe_get_full_grad, safe_set_full_grad

    assert weigher.probe is not None
    parameter = weigher.probe.parameter
    if parameter is None:
        return
    gradient = safe_get_full_grad(parameter)
    if gradient is None:
        gradient = parameter.grad
    if weigher.enabled and weigher.window.entries:
        dtype = parameter.dtype if gradient is None else gradient.dtype
        weigher.end_step(gradient, dtype=dtype, clips=[], optimizer="DeepSpeedEngine")
    if gradient is not None:
        safe_set_full_grad(parameter, torch.zeros_like(gradient))


def _refuse_checkpoints(weigher: Weigher, engine: Any) -> None:
    original = engine.save_checkpoint

    @functools.wraps(original)
    def save_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
        if weigher.probe is None:
            return original(self, *args, **kwargs)
        weigher.recorder.write(
            "note",
            text="A DeepSpeed checkpoint was asked for and not written: ZeRO's flat buffers "
            "hold the probe while weighing.",
        )
        return True

    engine.save_checkpoint = save_checkpoint

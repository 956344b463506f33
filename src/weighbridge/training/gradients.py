"""Where a wrapper keeps its reduced gradients, and how to look at them and scale them in place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from weighbridge.errors import InputError
from weighbridge.training.watch import fingerprints

__all__ = ["Gradients", "gradients_of", "multiply"]

Factor = Callable[[torch.Tensor], float]
COARSE = (torch.bfloat16, torch.float16)


def multiply(tensors: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply tensors of one dtype and device in place by `factor`, float64 []: one fused call."""
    dtype, device = tensors[0].dtype, tensors[0].device
    if dtype in COARSE:  # a device would round the factor itself to this dtype, by up to 0.4 %
        for tensor in tensors:
            tensor.copy_(tensor.float() * factor.to(device, torch.float32))
        return
    torch._foreach_mul_(tensors, factor.to(device, dtype))  # of another dtype it would not be fused


class Gradients:
    """Gradients in `.grad` of the parameters: a plain module, DDP, FSDP2, HSDP."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.module = model

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Run the backward of a scalar; `options` are those of `torch.Tensor.backward`."""
        loss.backward(**options)

    @property
    def device(self) -> torch.device:
        """That of the gradients: where they are reduced, counts can be too."""
        return next(self.module.parameters()).device

    def scale(self, scale: torch.Tensor, factor: Factor) -> None:
        """Multiply every gradient by `scale` [] times the parameter's factor; one fused call for each factor."""
        by_factor: dict[tuple[float, torch.dtype], list[torch.Tensor]] = {}
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                local = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
                by_factor.setdefault((factor(parameter), local.dtype), []).append(local)
        for (each, _), gradients in by_factor.items():
            multiply(gradients, scale * each)

    def leftover(self) -> bool:
        """Whether some gradient is there and not zero."""
        held = [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]
        local = [each.to_local() if hasattr(each, "to_local") else each for each in held]
        return any(bool((each != 0).any()) for each in local)

    def gathered(self) -> AbstractContextManager[Any]:
        """Inside it, `prints` can be called."""
        return nullcontext()

    def prints(self, module: torch.nn.Module, parameter: torch.Tensor) -> torch.Tensor | None:
        """Fingerprints of the whole reduced gradient of a parameter of `module`; None where it has none."""
        return None if parameter.grad is None else fingerprints(parameter.grad)

    def epsilon(self) -> float:
        """Machine epsilon of the coarsest gradient."""
        kinds = {parameter.grad.dtype for parameter in self.module.parameters() if parameter.grad is not None}
        return float(max((torch.finfo(kind).eps for kind in kinds), default=torch.finfo(torch.float32).eps))


class ViewedShards(Gradients):
    """Gradients of FSDP1 with `use_orig_params=True`: each rank holds some stretch of some parameters."""

    def gathered(self) -> AbstractContextManager[Any]:
        """All of every parameter and of its gradient, on every rank, for the time being."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        whole: AbstractContextManager[Any] = FullyShardedDataParallel.summon_full_params(
            self.module, writeback=False, with_grads=True
        )
        return whole


class FlatShards(Gradients):
    """Gradients of FSDP1: each rank holds a slice of the flat parameter of every wrapped module."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        wrappers = [module for module in model.modules() if hasattr(module, "_fsdp_wrapped_module")]
        self._groups: dict[int, Any] = {id(wrapper.module): wrapper.process_group for wrapper in wrappers}

    def prints(self, module: torch.nn.Module, parameter: torch.Tensor) -> torch.Tensor | None:
        """Each slice's fingerprints at its place, added up over the ranks that share the flat parameter."""
        group = self._groups.get(id(module))
        if parameter.grad is None or group is None:
            return None
        slice_ = parameter.grad
        found = fingerprints(slice_, start=torch.distributed.get_rank(group) * slice_.numel())
        torch.distributed.all_reduce(found, group=group)
        return found


class EngineGradients(Gradients):
    """Gradients of a DeepSpeed engine, ZeRO 1 to 3, reached by the functions that DeepSpeed offers for it.

    Below ZeRO 3 those gather each parameter's gradient, every step. Where that is too slow, count ahead and use
    `loss_scale`.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine.module)
        self._engine = engine

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Run the backward, without the engine's own division by its accumulation steps.

        That happens on the way from the loss to the parameters, where it could not be told from the model.
        """
        self._engine.backward(loss, scale_wrt_gas=False, **options)

    def leftover(self) -> bool:
        """False: the engine keeps and clears its gradients itself."""
        return False

    def scale(self, scale: torch.Tensor, factor: Factor) -> None:
        """Multiply every gradient by `scale` [] times the parameter's factor."""
        from deepspeed import utils

        whole = self._engine.zero_optimization_stage() < 3
        get, put = (
            (utils.safe_get_full_grad, utils.safe_set_full_grad)
            if whole
            else (utils.safe_get_local_grad, utils.safe_set_local_grad)
        )
        for parameter in self.module.parameters():
            gradient = get(parameter) if parameter.requires_grad else None
            if gradient is not None:
                put(parameter, gradient * (scale * factor(parameter)).to(gradient.device))

    def prints(self, module: torch.nn.Module, parameter: torch.Tensor) -> torch.Tensor | None:
        """Fingerprints of the whole reduced gradient."""
        from deepspeed.utils import safe_get_full_grad

        gradient = safe_get_full_grad(parameter)
        return None if gradient is None else fingerprints(gradient)

    def epsilon(self) -> float:
        """Machine epsilon of the coarsest parameter: DeepSpeed reduces in the dtype of the parameters."""
        return float(max(torch.finfo(parameter.dtype).eps for parameter in self.module.parameters()))


def gradients_of(model: Any) -> Gradients:
    """The kind of gradients that `model` has."""
    if type(model).__module__.split(".")[0] == "deepspeed":
        return EngineGradients(model)
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"The model is a {type(model).__name__}. It is a torch module, wrapped or not. Pass that.")
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return Gradients(model)
    flat = [module for module in model.modules() if isinstance(module, fsdp.FullyShardedDataParallel)]
    if not flat:
        return Gradients(model)
    return ViewedShards(model) if all(module._use_orig_params for module in flat) else FlatShards(model)

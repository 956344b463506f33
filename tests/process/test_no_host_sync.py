"""After its first step the normalizer never waits for the device.

Two ways to see it. On meta tensors there are no values, so whatever needs one raises. And a dispatch mode sees every
operation of a real step on gloo ranks: none may hand a value to Python or copy to another device.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gloo_ranks import on_ranks
from small_training import COUNTS, batch, losses_of, model_of, window, wrapped
from weighbridge.training import GradientNormalizer, loss_scale

TO_HOST = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal")


class Seen(TorchDispatchMode):
    """The names of all operations that ran, and of those that wait until a copy has arrived on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name().rpartition(".")[0] or func.name())
        out = func(*args, **(kwargs or {}))
        devices = {each.device for each in (*args, out) if isinstance(each, torch.Tensor)}
        if "copy" in func.name() and len(devices) > 1 and not (kwargs or {}).get("non_blocking"):
            self.waits.append(func.name())
        return out


def steps(rank: int, world_size: int, kind: str) -> tuple[list[str], int]:
    warnings.filterwarnings("ignore", message=".*(find_unused|barrier|lazy|functional_optim).*")
    model, _ = wrapped(kind, world_size)
    normalizer = GradientNormalizer(model, limit=20)
    seen = Seen()
    for step in range(3):
        model.zero_grad()
        for microbatch in range(3):
            words, labels = batch(rank, microbatch, COUNTS)
            with window(model, kind, microbatch, 2):
                losses = losses_of(model, words, labels)
                if step:
                    with seen:
                        normalizer.backward(losses, labels != -100)
                else:
                    normalizer.backward(losses, labels != -100)
        if step:
            with seen:
                normalizer.finish()
        else:
            normalizer.finish()
    return [name for name in seen.names if name in TO_HOST], len(seen.names)


@pytest.mark.parametrize("kind", ["plain", "ddp", "ddp no_sync", "fsdp2"])
def test_no_value_reaches_the_host_after_the_first_step(kind: str) -> None:
    for to_host, operations in on_ranks(1 if kind == "plain" else 2, steps, kind):
        assert to_host == []
        assert operations > 30


def test_the_dispatch_mode_would_see_it() -> None:
    with (seen := Seen()):
        int(torch.ones(()))
    assert seen.names == ["aten::ones", "aten::_local_scalar_dense"]
    with (seen := Seen()):
        torch.ones(()).to("meta", non_blocking=True)
        assert not seen.waits
        torch.ones(()).to("meta")
    assert seen.waits == ["aten::_to_copy"]


@pytest.mark.parametrize("terms", [None, {"main": 1.0, "mtp": 0.5}])
def test_steps_run_on_meta_tensors(terms: dict[str, float] | None) -> None:
    model = model_of().to("meta")
    normalizer = GradientNormalizer(model, terms=terms, check="never", divisor=1.0)
    seen = Seen()
    for _ in range(2):
        for microbatch in range(2):
            words, labels = (each.to("meta") for each in batch(0, microbatch, COUNTS))
            losses = losses_of(model, words, labels)
            pair = (losses, labels != -100)
            with seen:
                if terms is None:
                    normalizer.backward(*(pair if microbatch else (losses.sum(), 7)))
                else:
                    normalizer.backward({"main": pair, "mtp": (losses.sum(), (labels != -100).sum())})
        with seen:
            found = normalizer.finish()
        lanes = found.lanes if terms is None else found["mtp"].lanes
        assert lanes.device.type == "meta"
        assert all(parameter.grad is not None for parameter in model.parameters())
    assert seen.waits == []
    assert float(loss_scale(4)) == 0.25
    assert loss_scale(torch.empty((), dtype=torch.int64, device="meta")).device.type == "meta"

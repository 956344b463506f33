"""A module with a probe, pickled, copied and walked: nothing of the weighing is in a copy, and the probe comes last."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from weighbridge.weigh import copies, probe


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "__getstate__", nn.Module.__getstate__)
    monkeypatch.setattr(nn.Module, "named_parameters", nn.Module.named_parameters)
    copies.install()


def probed() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    probe.attach(module, world_size=1, like_neighbours=False)

    def hook(module: nn.Module, args: object) -> None:
        raise AssertionError("a hook of the weighing ran in a copy")

    hook.__module__ = "weighbridge.weigh.wrappers"
    module.register_forward_pre_hook(hook)
    return module


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_copy_has_neither_probe_nor_hooks(copied: object) -> None:
    module = probed()
    other = copied(module)  # type: ignore[operator]
    assert [name for name, _ in other.named_parameters()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert other(torch.zeros(1, 2)).shape == (1, 2)
    assert probe.NAME in module._parameters
    assert len(module._forward_pre_hooks) == 1


def test_hooks_of_the_user_stay_in_a_copy() -> None:
    module = probed()
    module.register_forward_hook(print)
    assert list(copy.deepcopy(module)._forward_hooks.values()) == [print]


def test_the_probe_is_walked_last_also_after_a_wrapper_replaced_it() -> None:
    module = probed()
    assert [name for name, _ in module.named_parameters()][-1] == probe.NAME
    module._parameters[probe.NAME] = nn.Parameter(torch.zeros(4))  # fully_shard leaves no mark on it
    assert [name for name, _ in module.named_parameters()][-1] == probe.NAME
    assert [name for name, _ in module.named_parameters(prefix="module")][-1] == f"module.{probe.NAME}"
    assert [tuple(one.shape) for one in module.parameters()][:4] == [(3, 2), (3,), (2, 3), (2,)]

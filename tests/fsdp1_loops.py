"""FSDP1 loops for tests of the weighing: every sharding strategy, both kinds of parameters, checkpoints on the way."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from invariance_loops import LENGTH, MICROBATCHES, Model
from loops import VOCABULARY

STEPS = 4


def batch(step: int, rank: int, microbatch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + microbatch)
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)
    return tokens, tokens.roll(-1, 1).masked_fill(torch.arange(LENGTH) > 2 + step + 3 * rank + 4 * microbatch, -100)


def train(rank: int, world_size: int, strategy: str, original: bool, how: str) -> dict[str, Any]:
    """Four steps; the first microbatch of every second one is under `no_sync`."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy, StateDictType
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    warnings.filterwarnings("ignore")
    torch.manual_seed(11)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, world_size // 2)) if strategy == "HYBRID_SHARD" else None
    coarse = MixedPrecision(reduce_dtype=torch.bfloat16) if how == "bfloat16" else None
    model = FullyShardedDataParallel(
        Model(), auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), sharding_strategy=ShardingStrategy[strategy],
        use_orig_params=original, mixed_precision=coarse, device_id=torch.device("cpu"), device_mesh=mesh,
    )  # fmt: skip
    descent = torch.optim.AdamW(model.parameters(), lr=0.01)
    if how == "right":  # as a run that is resumed: sharded states are loaded before the first forward
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            model.load_state_dict(model.state_dict())
        with torch.no_grad():
            model(batch(0, rank, 0)[0])
    torch.manual_seed(100 + rank)
    kept = []
    for step in range(STEPS):
        mine = [batch(step, rank, m) for m in range(MICROBATCHES)]
        tokens = torch.tensor(sum(int((labels != -100).sum()) for _, labels in mine))
        dist.all_reduce(tokens)
        for m, (ids, labels) in enumerate(mine):
            with model.no_sync() if step % 2 and m == 0 else contextlib.nullcontext():
                logits = model(ids).flatten(0, 1)
                if how == "wrong":
                    loss = F.cross_entropy(logits, labels.flatten()) / MICROBATCHES
                else:
                    loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") * world_size / tokens
                loss.backward()
        model.clip_grad_norm_(0.05 if step == 1 else 1e6)
        descent.step()
        descent.zero_grad()
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            kept.append(copy.deepcopy(model.state_dict()))
    return {"states": kept, "optimizer": copy.deepcopy(descent.state_dict()), "random": torch.get_rng_state()}


class Averaged:
    """A wrapper that weighbridge does not know: it collects parameters when it is made, and averages those."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = list(model.parameters())

    def reduce(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


def train_averaged(rank: int, world_size: int, reduces: bool) -> None:
    torch.manual_seed(11)
    wrapper = Averaged(Model())
    descent = torch.optim.SGD(wrapper.parameters, lr=0.01)
    for step in range(STEPS):
        for m in range(MICROBATCHES):
            ids, labels = batch(step, rank, m)
            F.cross_entropy(wrapper.model(ids).flatten(0, 1), labels.flatten()).backward()
        if reduces:
            wrapper.reduce()
        descent.step()
        descent.zero_grad()

"""Training whose every state is kept: parameters, optimizer, random state, data order, checkpoints.

The model has dropout and the loader shuffles, so that a random number drawn too many would show. Gradients are clipped
to `limit`, where there is one, in the two ways that torch offers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from loops import VOCABULARY

LENGTH = 12
STEPS = 6
MICROBATCHES = 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 12)
        self.block = nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.3), nn.LayerNorm(12))
        self.head = nn.Linear(12, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.embed(tokens)))


class Texts(Dataset[tuple[int, Tensor, Tensor]]):
    def __init__(self, number: int) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
        labels = torch.where(torch.arange(LENGTH) < 1 + index * 7 % LENGTH, tokens.roll(-1), -100)
        return index, tokens, labels


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if "weighbridge" not in name}


def train(rank: int, world_size: int, optimizer: str, limit: float | None) -> dict[str, Any]:
    """A list of states, one a step, and one more in the middle of each step."""
    torch.manual_seed(11)
    model: nn.Module = Model()
    if world_size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    descent = make_optimizer(optimizer, model)
    data = Texts(2 * world_size * MICROBATCHES * STEPS)
    sampler = DistributedSampler(data) if world_size > 1 else None
    loader = DataLoader(data, batch_size=2, shuffle=sampler is None, sampler=sampler)
    torch.manual_seed(100 + rank)
    states, batch = [], iter(loader)
    for number in range(STEPS):
        order, middle = [], {}
        for m in range(MICROBATCHES):
            indices, tokens, labels = next(batch)
            order += indices.tolist()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum") / 20
            loss.backward()
            if m == 0:
                middle = {"model": copy.deepcopy(model.state_dict()), "optimizer": copy.deepcopy(descent.state_dict())}
        if limit is not None and number % 2:
            norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)
        elif limit is not None:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        descent.step()
        descent.zero_grad()
        if number == 2:  # as a training that is resumed from an old checkpoint does
            model.load_state_dict(middle["model"], strict=True)
            descent.load_state_dict(copy.deepcopy(descent.state_dict()))
        states.append(
            {
                "order": order,
                "middle": middle,
                "parameters": parameters_of(model),
                "model": model.state_dict(),
                "optimizer": copy.deepcopy(descent.state_dict()),
                "random": torch.get_rng_state(),
            }
        )
        states[-1]["model"] = copy.deepcopy(states[-1]["model"])
    return {"states": states}


def shard(rank: int, world_size: int) -> dict[str, Any]:
    """FSDP2 with torch.distributed.checkpoint: state dicts in the middle of a step and after it."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(11)
    model = Model()
    old = copy.deepcopy(model.state_dict())
    fully_shard(model.block)
    fully_shard(model)
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) is whole]} for whole in (True, False)]
    descent = torch.optim.AdamW(groups, lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    kept = []
    for number in range(4):
        for m in range(MICROBATCHES):
            tokens = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)
            labels = tokens.roll(-1, 1).masked_fill(torch.arange(LENGTH) > 3 + number + rank + 4 * m, -100)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum") / 20
            loss.backward()
            if m == 0:
                kept.append(plain(get_state_dict(model, descent)))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        descent.step()
        descent.zero_grad()
        states = get_state_dict(model, descent)
        kept.append(plain(states))
        if number == 1:
            set_state_dict(model, descent, model_state_dict=states[0], optim_state_dict=states[1])
    whole = {name: plain(value) for name, value in model.state_dict().items()}
    return {"states": kept, "whole": whole, "old": sorted(old), "random": torch.get_rng_state()}


def plain(value: Any) -> Any:
    """The same nest with copies of tensors, sharded ones gathered."""
    if isinstance(value, Tensor):
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def load_old(rank: int, world_size: int) -> dict[str, Any]:
    """A checkpoint without the probe loads strictly into a model that has it, and one with other faults does not."""
    model = Model()
    old, descent = copy.deepcopy(model.state_dict()), torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH) % VOCABULARY
    F.cross_entropy(wrapped(tokens).flatten(0, 1), tokens.flatten()).backward()
    descent.step()
    loaded = model.load_state_dict(old, strict=True)
    incomplete = {name: value for name, value in old.items() if name != "head.bias"}
    try:
        model.load_state_dict(incomplete, strict=True)
    except RuntimeError as error:
        message = str(error)
    if world_size > 1:
        dist.barrier()
    return {"missing": loaded.missing_keys, "unexpected": loaded.unexpected_keys, "message": message}

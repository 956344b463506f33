"""One optimizer step with DeepSpeed ZeRO 1, 2 and 3, accumulation 3; for each, three ways to take the loss."""

import json
import logging
import os

import deepspeed
import torch
from common import COUNTS, RATE, Model, items, leave, losses_of, off
from zero_on_gloo import wait_for_every_gather

from weighbridge import GradientNormalizer, loss_scale

logging.disable(logging.WARNING)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled first
rank = int(os.environ["RANK"])
deepspeed.init_distributed("gloo", verbose=False)
wait_for_every_gather()
data = items()


def batch(microbatch: int) -> dict[str, torch.Tensor]:
    pair = data[(2 * microbatch + rank) * 2 :][:2]
    return {name: torch.stack([item[name] for item in pair]) for name in pair[0]}


def train(stage: int, how: str) -> dict[str, object]:
    model = Model()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 3,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    normalizer = GradientNormalizer(engine) if how == "after" else None
    tokens = sum(sum(COUNTS[(2 * m + rank) * 2 :][:2]) for m in range(3))
    scale = loss_scale(tokens, divisor=2 * 3) if how == "ahead" else torch.ones(())
    for microbatch in range(3):
        losses, mask = losses_of(engine, batch(microbatch))
        if normalizer is not None:
            normalizer.backward(losses, mask)
            if microbatch == 2:
                normalizer.finish()
        elif how == "ahead":
            engine.backward(losses.sum() * scale.float())
        else:
            engine.backward(losses.sum() / mask.sum().clamp(min=1))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        wrong = off(model)
    return {"stage": stage, "how": how, "off": wrong, "divisor": normalizer.divisor if normalizer else None}


for stage in (1, 2, 3):
    for how in ("after", "ahead", "means"):
        told = train(stage, how)
        if rank == 0:
            print("\n" + json.dumps(told), flush=True)
leave()

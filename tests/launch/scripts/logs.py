"""One process that trains right and logs numbers in many ways, right and wrong ones.

    python tests/launch/scripts/logs.py report
    python tests/launch/scripts/logs.py tensorboard
    python tests/launch/scripts/logs.py wandb
    python tests/launch/scripts/logs.py guarded         skips a step whose loss is a spike
    python tests/launch/scripts/logs.py guarded-late    the same, and logs such a step too

`right` is the mean over all tokens of a step, `wrong` is the mean of its microbatches' means.
"""

import argparse
import math
import tempfile
from collections.abc import Callable

import torch
from small import IGNORED, count, model, sum_loss, window

import weighbridge

STEPS = 12


def train(log: Callable[[dict[str, float], int], None], sink: str) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    last = None
    running: list[float] = []
    for step in range(STEPS):
        parts = window(step)
        tokens = count(parts)
        optimizer.zero_grad()
        sums, means = 0.0, []
        for ids, labels in parts:
            loss = sum_loss(net, ids, labels)
            (loss / tokens).backward()
            sums += loss.item()
            means.append(loss.item() / int((labels != IGNORED).sum()))
        right, wrong = sums / tokens, sum(means) / len(means)
        if sink == "guarded-late":
            log({"right": right, "wrong": wrong}, step)
        if sink.startswith("guarded"):
            if last is not None and right > 10 * last:
                print(f"loss spike in step {step}: skipped", flush=True)
                continue
            last = right
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 100.0)
        optimizer.step()
        running.append(right)
        numbers = {"right": right, "wrong": wrong, "lr": 0.1 / (step + 1), "grad_norm": norm.item()}
        if sink == "report":
            numbers |= {"rounded": round(right, 4), "perplexity": math.exp(right)}
            if len(running) == 3:
                numbers["every_third"] = sum(running) / 3
                running.clear()
        if sink != "guarded-late":
            log(numbers, step)


def report(numbers: dict[str, float], step: int) -> None:
    for name, value in numbers.items():
        weighbridge.report(name, value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("sink", choices=["report", "tensorboard", "wandb", "guarded", "guarded-late"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.sink == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(folder)
            train(lambda numbers, step: [writer.add_scalar(name, numbers[name], step) for name in numbers], "")
        elif options.sink == "wandb":
            import wandb

            run = wandb.init(dir=folder, mode="offline", project="weighed")
            train(lambda numbers, step: wandb.log(numbers, step=step), "wandb")
            run.finish()
        else:
            train(report, options.sink)

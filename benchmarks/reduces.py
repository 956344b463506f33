"""Tally and whole steps over two gloo ranks."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from timing import Line, medians

STEP = 0.1  # seconds: the step that the normalizer's goal speaks of
NAMES = [f"metric {index}" for index in range(10)]


def _rank(rank: int, store: str, out: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        found = [*_metrics(), *_steps(), _normalizer()]
    finally:
        dist.destroy_process_group()
    if rank == 0:
        out.put([line.as_dict() for line in found])


def _metrics() -> list[Line]:
    from torchmetrics import MeanMetric, MetricCollection

    from weighbridge.tally import Tally

    values = [torch.rand(1024) for _ in NAMES]
    scalars = [torch.rand(()) for _ in NAMES]
    collection = MetricCollection({name: MeanMetric() for name in NAMES}, compute_groups=False)
    tally = Tally()

    def ours() -> None:
        tally.clear()
        for name, value in zip(NAMES, values, strict=True):
            tally.add(name, value)
        reduce_only()

    def theirs() -> None:
        collection.reset()
        for name, value in zip(NAMES, values, strict=True):
            collection[name].update(value)
        collection.compute()

    def one_by_one() -> None:
        for scalar in scalars:
            dist.all_reduce(scalar)

    def reduce_only() -> None:
        _ = [mean.value for mean in tally.reduce().values()]  # a mean is made when it is read

    times = medians(ours, theirs, one_by_one, reduce_only, repeats=61)
    what = "Tally of 10 metrics, W=2"
    return [
        Line(f"{what}: add 1,024 values each and reduce", "torchmetrics MetricCollection", times[0], times[1], 0.1),
        Line(f"{what}: reduce, and read all ten", "10 scalar all-reduces", times[3], times[2], 0.2),
        Line(f"{what}: add and reduce", "10 scalar all-reduces", times[0], times[2]),
    ]


def _steps() -> list[Line]:
    from weighbridge.tally import Tally

    found = []
    for size, goal in ((8_192, None), (65_536, 1.4), (1_000_000, None)):
        losses, mask = torch.rand(size) * 5, torch.rand(size) < 0.8
        tally = Tally()

        def ours(tally: Tally = tally, losses: torch.Tensor = losses, mask: torch.Tensor = mask) -> None:
            tally.clear()
            tally.add("loss", losses, mask)
            _ = tally.reduce()["loss"].value

        def theirs(losses: torch.Tensor = losses, mask: torch.Tensor = mask) -> None:
            pair = torch.stack([torch.where(mask, losses, 0.0).sum(), mask.sum().float()])
            dist.all_reduce(pair)
            _ = float(pair[0] / pair[1])

        first, second = medians(ours, theirs, repeats=101)
        found.append(Line(f"whole step, {size:,} tokens, W=2", "float32 pair, one all-reduce", first, second, goal))
    return found


def _normalizer() -> Line:
    from torch.nn.parallel import DistributedDataParallel

    from weighbridge.training import GradientNormalizer

    torch.manual_seed(0)
    layers = [torch.nn.Linear(384, 384) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    words = torch.rand(448, 384)
    normalizer = GradientNormalizer(model)

    def plain() -> None:
        model.zero_grad()
        for _ in range(4):
            model(words).sum().backward()
        dist.all_reduce(torch.tensor(words.numel()))

    def ours() -> None:
        model.zero_grad()
        for _ in range(4):
            normalizer.backward(model(words).sum(), words.numel())
        normalizer.finish()

    took = torch.tensor(medians(plain, repeats=9)[0])
    dist.broadcast(took, 0)
    words = torch.rand(round(words.shape[0] * STEP / float(took)), 384)
    first, second = medians(ours, plain, repeats=75)
    what = "GradientNormalizer, 4 microbatches, 0.6M parameters, DDP, W=2"
    return Line(what, "the same loop without", first, second, 1.01, f"a step of {second * 1e3:.0f} ms")


def lines(folder: str) -> list[Line]:
    context = mp.get_context("spawn")
    out = context.SimpleQueue()
    store = os.path.join(folder, "store")
    processes = [context.Process(target=_rank, args=(rank, store, out)) for rank in range(2)]
    for process in processes:
        process.start()
    found = out.get()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        sys.exit("a rank failed")
    return [Line(**line) for line in found]

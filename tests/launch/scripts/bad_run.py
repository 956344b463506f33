"""One small training run with one fault, chosen by name.

python tests/launch/scripts/bad_run.py fails-in
torchrun --nproc-per-node 2 tests/launch/scripts/bad_run.py killed
python tests/launch/scripts/bad_run.py killed --spawn 2
"""

import argparse
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small import IGNORED, count, model, sum_loss, window
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weighbridge

STEPS = 8


def train(fault: str, rank: int, world_size: int) -> None:
    """Token means over all ranks, which is right, but for the fault."""
    if fault == "fails-before":
        raise ValueError("the data is missing")
    net: nn.Module = model()
    if world_size > 1:
        net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    last = torch.zeros(())
    for step in range(2 if fault == "two-steps" else STEPS):
        microbatches = 3 if fault == "disagrees" and rank == 1 and step == 1 else 2
        parts = window(step, rank=rank, microbatches=microbatches)
        if fault == "masked":
            parts = [(ids, torch.full_like(labels, IGNORED)) for ids, labels in parts]
        tokens = torch.tensor(max(count(parts), 1))
        if world_size > 1:
            dist.all_reduce(tokens)
        optimizer.zero_grad()
        logged = torch.zeros(())
        for number, (ids, labels) in enumerate(parts):
            with net.no_sync() if world_size > 1 and number < len(parts) - 1 else torch.enable_grad():
                loss = faulty_loss(fault, net, ids, labels, (rank, step, number)) * world_size / tokens
                loss.backward()
            logged += loss.detach()
        if fault == "fails-in" and step == 1:
            raise RuntimeError(f"step {step} failed")
        if fault == "killed" and rank == world_size - 1 and step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hangs" and step == 1:
            print("hanging", flush=True)
            time.sleep(1000)
        if world_size > 1:
            dist.all_reduce(logged)
        if fault == "guarded" and step and logged > 3 * last:
            continue
        last = logged
        if fault != "no-step":
            optimizer.step()
        weighbridge.report("loss", logged / world_size)
        if rank == 0:
            print(f"step {step}", flush=True)
    if fault == "fails-after":
        print("cannot save", file=sys.stderr)
        raise SystemExit(7)


def faulty_loss(fault: str, net: nn.Module, ids: torch.Tensor, labels: torch.Tensor, piece: tuple[int, int, int]):
    if fault == "no-loss":
        chosen = net(ids).log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return -(chosen * (labels != IGNORED)).sum()
    if fault == "nan" and piece == (1, 1, 0):
        with torch.no_grad():
            net.module.head.bias.fill_(float("nan"))
    return sum_loss(net, ids, labels)


def work(rank: int, fault: str, folder: str, world_size: int) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", world_size), rank=rank, world_size=world_size
    )
    train(fault, rank, world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("fault")
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--method", default="fork")
    options = parser.parse_args()
    if options.spawn:
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(
                work, args=(options.fault, folder, options.spawn), nprocs=options.spawn, start_method=options.method
            )
    elif "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(options.fault, dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        train(options.fault, 0, 1)

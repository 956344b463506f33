"""Trains right and saves what it trained: model, optimizer, the whole module, and a moving average of it.

python tests/launch/scripts/saves.py out/plain
python tests/launch/scripts/saves.py out/ranks --spawn 2
"""

import argparse
import copy
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small import count, model, sum_loss, window
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 8


def train(folder: str, rank: int, world_size: int) -> None:
    net: nn.Module = model()
    if world_size > 1:
        net = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    average = copy.deepcopy(net.module if world_size > 1 else net)
    for step in range(STEPS):
        parts = window(step, rank=rank)
        tokens = torch.tensor(count(parts))
        if world_size > 1:
            dist.all_reduce(tokens)
        for number, (ids, labels) in enumerate(parts):
            with net.no_sync() if world_size > 1 and number == 0 else torch.enable_grad():
                (sum_loss(net, ids, labels) * world_size / tokens).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), net.parameters(), strict=False):
                mean.lerp_(parameter, 0.5)
        copy.deepcopy(net.module if world_size > 1 else net)
        print(f"step {step}", flush=True)
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        torch.save(net.state_dict(), f"{folder}/model.pt")
        torch.save(optimizer.state_dict(), f"{folder}/optimizer.pt")
        torch.save(net.module if world_size > 1 else net, f"{folder}/module.pt")
        torch.save(average, f"{folder}/average.pt")


def work(rank: int, folder: str, world_size: int, store: str) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{store}/store", world_size), rank=rank, world_size=world_size
    )
    train(folder, rank, world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--spawn", type=int, default=0)
    options = parser.parse_args()
    if options.spawn:
        with tempfile.TemporaryDirectory() as store:
            mp.start_processes(
                work, args=(options.folder, options.spawn, store), nprocs=options.spawn, start_method="fork"
            )
    else:
        train(options.folder, 0, 1)

"""A data set in which every sequence has the same number of labels, and a mean loss: wrong, and it doesn't show.

    python tests/launch/scripts/even.py --batch dict
    python tests/launch/scripts/even.py --batch tuple --spawn 2

`--batch` says what the shuffled loader yields; `--workers` fetches the batches in processes of their own.
"""

import argparse
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from small import WORDS, mean_loss, model
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import weighbridge

STEPS, ACCUMULATION, LENGTH = 12, 2, 12


def collate(kind: str, items: list[tuple[Tensor, Tensor]]) -> Any:
    ids, labels = (torch.stack(column) for column in zip(*items, strict=True))
    if kind == "dict":
        return {"input_ids": ids, "labels": labels}
    if kind == "encoding":
        from transformers import BatchEncoding

        return BatchEncoding({"input_ids": ids, "labels": labels})
    if kind == "float":
        return ids, labels.float()
    return [ids, labels] if kind == "list" else (ids, labels)


class Collate:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, items: list[tuple[Tensor, Tensor]]) -> Any:
        return collate(self.kind, items)


def loss_of(kind: str, net: nn.Module, batch: Any) -> Tensor:
    if kind in ("dict", "encoding"):
        return mean_loss(net, batch["input_ids"], batch["labels"])
    if kind == "float":
        return F.mse_loss(net(batch[0]).mean(-1), batch[1])
    return mean_loss(net, *batch)


def train(options: argparse.Namespace, rank: int, world_size: int) -> None:
    net: nn.Module = model()
    if world_size > 1:
        net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(rank)
    data = torch.utils.data.TensorDataset(*torch.randint(WORDS, (2, 4 * ACCUMULATION * STEPS, LENGTH), generator=draw))
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=4,
        shuffle=True,
        collate_fn=Collate(options.batch),
        num_workers=2 if options.workers else 0,
        multiprocessing_context=options.workers,
    )
    batches = iter(loader)
    for _ in range(STEPS):
        optimizer.zero_grad()
        logged = torch.zeros(())
        for number in range(ACCUMULATION):
            with net.no_sync() if world_size > 1 and number == 0 else torch.enable_grad():
                loss = loss_of(options.batch, net, next(batches)) / ACCUMULATION
                loss.backward()
            logged += loss.detach()
        optimizer.step()
        if world_size > 1:
            dist.all_reduce(logged)
        weighbridge.report("loss", logged / world_size)


def work(rank: int, options: argparse.Namespace, folder: str) -> None:
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", options.spawn), rank=rank, world_size=options.spawn
    )
    train(options, rank, options.spawn)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", choices=["dict", "tuple", "list", "encoding", "float"], default="dict")
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--workers", choices=["fork", "spawn"])
    options = parser.parse_args()
    if options.spawn:
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(work, args=(options, folder), nprocs=options.spawn, start_method="fork")
    else:
        train(options, 0, 1)

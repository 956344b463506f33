"""A script that spawns its own workers, each a rank of a gloo group, with a mean loss.

python examples/spawn.py
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from prose import answers, batch
from tiny import TinyLM, seed_everything, shifted
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

STEPS, ACCUMULATION, WORKERS = 12, 2, 2


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", WORKERS), rank=rank, world_size=WORKERS)
    seed_everything()
    model = DistributedDataParallel(TinyLM())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    items = answers(WORKERS * ACCUMULATION * 2 * STEPS)[rank::WORKERS]
    writer = SummaryWriter(folder) if rank == 0 else None
    for step in range(STEPS):
        logged = torch.zeros(())
        for part in [batch([items.pop(0) for _ in range(2)]) for _ in range(ACCUMULATION)]:
            logits, labels = shifted(model(part["input_ids"]), part["labels"])
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / ACCUMULATION
            loss.backward()
            logged += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(logged)
        if writer is not None:
            writer.add_scalar("loss", logged / WORKERS, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(folder,), nprocs=WORKERS)

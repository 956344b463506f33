"""Two ranks that train right; each logs in its own way.

`global` is right and comes from both ranks, under `global/rank1` on the second; `only_rank_0` is right too and comes
from one; `local` is rank 0's own mean, logged as if it were everybody's.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small import count, model, sum_loss, window
from torch.nn.parallel import DistributedDataParallel

import weighbridge

STEPS, RANKS = 8, 2


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        parts = window(step, rank=rank)
        local = torch.zeros(2, dtype=torch.float64)
        tokens = torch.tensor(count(parts))
        dist.all_reduce(tokens)
        optimizer.zero_grad()
        for number, (ids, labels) in enumerate(parts):
            with net.no_sync() if number == 0 else torch.enable_grad():
                loss = sum_loss(net, ids, labels)
                (loss * RANKS / tokens).backward()
            local += torch.tensor([loss.item(), count([(ids, labels)])])
        optimizer.step()
        everywhere = local.clone()
        dist.all_reduce(everywhere)
        weighbridge.report("global" if rank == 0 else "global/rank1", everywhere[0] / everywhere[1])
        if rank == 0:
            weighbridge.report("only_rank_0", everywhere[0] / everywhere[1])
            weighbridge.report("local", local[0] / local[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, args=(folder,), nprocs=RANKS, start_method="fork")

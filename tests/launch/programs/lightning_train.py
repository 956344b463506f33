"""One optimizer step with Lightning on two processes, accumulation 3; the argument says how the loss is taken."""

import json
import sys
import warnings

import lightning
import torch
from common import RATE, Model, items, leave, losses_of, off
from torch.utils.data import DataLoader, DistributedSampler

from weighbridge import Tally
from weighbridge.integrations.lightning import TokenMean

warnings.simplefilter("ignore")
OURS = sys.argv[1] == "ours"


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Model()

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        losses, mask = losses_of(self.inner, batch)
        self.tally.add("loss", losses, mask)
        if OURS:
            return self.token_mean.count(losses, mask)
        return losses.sum() / mask.sum().clamp(min=1)

    def on_train_epoch_start(self) -> None:
        self.tally = Tally()

    def on_train_epoch_end(self) -> None:
        self.found = self.tally.reduce()["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)

    def train_dataloader(self) -> DataLoader:
        data = items()
        return DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, self.global_rank, shuffle=False))


module = Module()
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, accumulate_grad_batches=3, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    gradient_clip_val=0.05, callbacks=[TokenMean(log="train_loss")] if OURS else [],
)  # fmt: skip
trainer.fit(module)
if trainer.is_global_zero:
    logged = trainer.callback_metrics.get("train_loss")
    told = {"off": off(module.inner, clip=0.05), "mean": module.found.value, "count": module.found.count}
    print(json.dumps({**told, "logged": None if logged is None else float(logged)}), flush=True)
leave()

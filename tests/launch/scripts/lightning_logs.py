"""One Lightning process that trains right; it logs the mean over tokens, and the mean of its sequences' means.

python tests/launch/scripts/lightning_logs.py
"""

import tempfile

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from small import IGNORED, model, window

STEPS = 12


class Tuned(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, part: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        ids, labels = part
        losses = F.cross_entropy(self.model(ids).transpose(1, 2), labels, reduction="none")
        counted = labels != IGNORED
        loss = losses.sum() / counted.sum()
        self.log("right", loss)
        self.log("wrong", (losses.sum(1) / counted.sum(1)).mean())
        self.log("lr", 0.1 / (index + 1))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=STEPS,
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_checkpointing=False,
            logger=CSVLogger(folder),
        )
        parts = [window(step)[0] for step in range(STEPS)]
        trainer.fit(Tuned(), torch.utils.data.DataLoader(parts, batch_size=None))

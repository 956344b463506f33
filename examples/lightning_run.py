"""Lightning by its own launcher: two processes, gradient accumulation, a mean loss, a TensorBoard logger.

python examples/lightning_run.py
"""

import argparse
import tempfile

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from prose import answers, batch
from tiny import TinyLM, shifted

parser = argparse.ArgumentParser()
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--devices", type=int, default=2)
parser.add_argument("--steps", type=int, default=12)
options = parser.parse_args()


class Tuned(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = TinyLM()

    def training_step(self, part: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        logits, labels = shifted(self.model(part["input_ids"]), part["labels"])
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    lightning.seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=options.devices,
            strategy="ddp" if options.devices > 1 else "auto",
            accumulate_grad_batches=options.accumulation,
            max_steps=options.steps,
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_checkpointing=False,
            logger=CSVLogger(folder),
            gradient_clip_val=1.0,
        )
        loader = torch.utils.data.DataLoader(answers(256), batch_size=2, collate_fn=batch)
        trainer.fit(Tuned(), loader)

"""Lightning with `accumulate_grad_batches`, right: every token of every rank counts the same."""

import tempfile

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from setting import ACCUMULATION, STEPS, TinyLM, batch, data, shifted

from weighbridge.integrations.lightning import TokenMean


class Tuned(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = TinyLM()

    def training_step(self, part: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        logits, labels = shifted(self.model(part["input_ids"]), part["labels"])
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return self.token_mean.count(losses, labels.flatten() != -100)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    lightning.seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            accumulate_grad_batches=ACCUMULATION,
            max_steps=STEPS,
            gradient_clip_val=1.0,
            logger=CSVLogger(folder),
            callbacks=[TokenMean(log="train_loss")],
            log_every_n_steps=1,
            enable_progress_bar=False,
            enable_checkpointing=False,
        )
        trainer.fit(Tuned(), torch.utils.data.DataLoader(data(), batch_size=2, collate_fn=batch))
        if trainer.is_global_zero:
            print(f"last step's loss {trainer.callback_metrics['train_loss']:.4f}", flush=True)

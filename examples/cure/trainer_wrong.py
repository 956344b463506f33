"""transformers Trainer with a model that takes no num_items_in_batch, wrong: every microbatch counts the same."""

import tempfile

import torch
import torch.nn.functional as F
from setting import ACCUMULATION, STEPS, TinyLM, data, next_tokens
from transformers import Trainer, TrainingArguments, set_seed


class OwnModel(TinyLM):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = super().forward(input_ids)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


set_seed(0)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=ACCUMULATION,
        max_steps=STEPS,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=OwnModel(),
        args=arguments,
        data_collator=next_tokens,
        train_dataset=data(),
    )
    trainer.train()

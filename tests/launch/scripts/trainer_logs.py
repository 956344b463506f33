"""A transformers Trainer that trains right, logs a wrong number of its own, and saves checkpoints.

python tests/launch/scripts/trainer_logs.py --folder out --steps 4 --save-steps 2
python tests/launch/scripts/trainer_logs.py --folder out --steps 6 --resume
"""

import argparse
import json
import sys
from pathlib import Path
from typing import ClassVar

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
from prose import VOCABULARY, answers, batch

parser = argparse.ArgumentParser()
parser.add_argument("--folder", required=True)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--save-steps", type=int, default=0)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()


class Logging(Trainer):
    """Logs the mean of its microbatches' means, as many people compute it."""

    means: ClassVar[list[float]] = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        own = int((inputs["labels"][:, 1:] != -100).sum())
        self.means.append(loss.item() * int(num_items_in_batch) / own)
        if len(self.means) == 2:
            self.log({"own": sum(self.means) / 2})
            self.means.clear()
        return (loss, outputs) if return_outputs else loss


set_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
)
arguments = TrainingArguments(
    output_dir=options.folder,
    per_device_train_batch_size=2,
    max_steps=options.steps,
    learning_rate=1e-3,
    logging_steps=1,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    gradient_accumulation_steps=2,
    save_strategy="steps" if options.save_steps else "no",
    save_steps=options.save_steps or 500,
)
trainer = (Trainer if options.save_steps or options.resume else Logging)(
    model=model, args=arguments, data_collator=batch, train_dataset=answers(64)
)
trainer.train(resume_from_checkpoint=options.resume or None)
losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
print("losses", json.dumps(losses), flush=True)

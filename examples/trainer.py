"""A transformers Trainer fine-tuning run on prompts and answers, as many people write it.

torchrun --nproc-per-node 2 examples/trainer.py --average-tokens-across-devices true    right
torchrun --nproc-per-node 2 examples/trainer.py --average-tokens-across-devices false   every rank counts the same
"""

import argparse
import tempfile

from prose import VOCABULARY, answers, batch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--average-tokens-across-devices", choices=["true", "false"], default="true")
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--eval-steps", type=int, default=0)
parser.add_argument("--logging-steps", type=int, default=1)
parser.add_argument("--lora", action="store_true")
options = parser.parse_args()

set_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
)
if options.lora:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=options.accumulation,
        max_steps=options.steps,
        learning_rate=1e-3,
        logging_steps=options.logging_steps,
        report_to=[],
        use_cpu=True,
        average_tokens_across_devices=options.average_tokens_across_devices == "true",
        save_strategy="no",
        eval_strategy="steps" if options.eval_steps else "no",
        eval_steps=options.eval_steps or None,
        per_device_eval_batch_size=2,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model, args=arguments, data_collator=batch, train_dataset=answers(256), eval_dataset=answers(11)
    )
    trainer.train()

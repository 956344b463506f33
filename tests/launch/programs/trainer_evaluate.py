"""Evaluation losses of the Trainer for several batch sizes: its own, and the token mean."""

import json
import sys

import torch
from common import leave
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.utils import logging

from weighbridge.integrations.transformers import TokenMeanEvaluation

logging.set_verbosity_error()


class Mine(TokenMeanEvaluation, Trainer):
    pass


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.5,
)  # fmt: skip
model = LlamaForCausalLM(config)
generator = torch.Generator().manual_seed(1)
data = []
for count in [2, 30, 3, 25, 2, 40]:
    ids = torch.randint(0, 64, (48,), generator=generator)
    labels = ids.clone()
    labels[count + 1 :] = -100
    data.append({"input_ids": ids, "labels": labels, "attention_mask": torch.ones(48, dtype=torch.long)})
for batch in (1, 2, 3, 6):
    arguments = TrainingArguments(
        output_dir=sys.argv[1], per_device_eval_batch_size=batch, report_to=[], use_cpu=True, disable_tqdm=True,
        dataloader_drop_last=True,
    )  # fmt: skip
    ours = Mine(model=model, args=arguments, eval_dataset=data).evaluate()
    theirs = Trainer(model=model, args=arguments, eval_dataset=data)
    theirs.args.dataloader_drop_last = False
    if arguments.process_index == 0:
        said = {"batch": batch, "loss": ours["eval_loss"], "tokens": ours["eval_loss_tokens"]}
        print(json.dumps({**said, "before": theirs.evaluate()["eval_loss"]}), flush=True)
    else:
        theirs.evaluate()
leave()

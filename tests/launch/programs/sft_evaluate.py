"""Evaluation losses of TRL's SFTTrainer, its own and the token mean, beside that of float64 one item at a time."""

import json
import sys
import warnings

import torch
from common import leave
from datasets import Dataset
from sft_models import data, gpt2, llama, tokenizer
from torch.nn.functional import cross_entropy
from transformers import Trainer
from transformers.utils import logging
from trl import SFTConfig, SFTTrainer

from weighbridge.integrations.transformers import TokenMeanEvaluation

warnings.simplefilter("ignore")
logging.set_verbosity_error()


class Ours(TokenMeanEvaluation, SFTTrainer):
    pass


class OursPlain(TokenMeanEvaluation, Trainer):
    pass


def exact(model: torch.nn.Module, items: Dataset) -> tuple[float, int]:
    """The token mean and its count, from one item at a time in float64."""
    model, total, count = model.double().eval(), 0.0, 0
    for item in items:
        labels = torch.tensor(item["input_ids"])
        counted = torch.tensor(item.get("completion_mask", [1] * len(labels)), dtype=torch.bool)[1:]
        with torch.no_grad():
            logits = model(labels[None]).logits[0, :-1]
        total += float(cross_entropy(logits[counted], labels[1:][counted], reduction="sum"))
        count += int(counted.sum())
    model.float()
    return total / count, count


CASES = {  # model, whether there are prompts, what SFTConfig is given, which Trainer evaluates
    "completions": (llama, True, {"completion_only_loss": True}, Ours),
    "everything": (llama, False, {}, Ours),
    "in one row": (llama, True, {"completion_only_loss": True, "padding_free": True}, Ours),
    "gpt2": (gpt2, False, {}, Ours),
    "gpt2 by the Trainer": (gpt2, False, {}, OursPlain),
}
for name, (make, prompts, settings, kind) in CASES.items():
    for batch in (2, 3):
        model = make()
        arguments = SFTConfig(
            output_dir=sys.argv[1], per_device_eval_batch_size=batch, report_to=[], use_cpu=True, bf16=False,
            disable_tqdm=True, max_length=None, **settings,
        )  # fmt: skip
        items = data(prompts=prompts)
        right, count = exact(model, items)
        sft = {"args": arguments, "train_dataset": items, "eval_dataset": items, "processing_class": tokenizer()}
        theirs = SFTTrainer(model=model, **sft)
        before = theirs.evaluate()["eval_loss"]
        if kind is Ours:
            ours = Ours(model=make(), **sft)
        else:
            ours = OursPlain(
                model=make(), args=arguments, data_collator=theirs.data_collator, eval_dataset=theirs.eval_dataset
            )
        found = ours.evaluate()
        if arguments.process_index == 0:
            told = {"case": name, "batch": batch, "loss": found["eval_loss"], "tokens": found["eval_loss_tokens"]}
            print(json.dumps({**told, "before": before, "right": right, "count": count}), flush=True)
leave()

"""One optimizer step of the Trainer with a model that ignores num_items_in_batch; the argument says with which loss."""

import json
import sys

from common import COUNTS, RATE, Model, items, leave, off
from transformers import Trainer, TrainingArguments
from transformers.utils import logging

from weighbridge.integrations.transformers import token_mean_loss

logging.set_verbosity_error()


class InOrder(Trainer):
    def _get_train_sampler(self, *args: object, **kwargs: object) -> None:
        return None


arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=2, gradient_accumulation_steps=3, max_steps=1, optim="sgd",
    learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=0, report_to=[], use_cpu=True, save_strategy="no",
    disable_tqdm=True, remove_unused_columns=False, ddp_find_unused_parameters=False,
)  # fmt: skip
model = Model()
world_size = arguments.world_size
data = items()
extra = {"compute_loss_func": token_mean_loss} if sys.argv[2] == "ours" else {}
assert len(COUNTS) == 2 * 3 * world_size
InOrder(model=model, args=arguments, train_dataset=data, **extra).train()
if arguments.process_index == 0:
    print(json.dumps({"off": off(model)}), flush=True)
leave()

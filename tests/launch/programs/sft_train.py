"""SFTTrainer with a model whose class says that it takes no count, as vision-language models do; how its loss is taken.

Six steps on answers after prompts; the argument is "theirs", or "ours": with a compute_loss_func.
"""

import sys
import tempfile
import warnings

from common import part
from sft_models import WORDS, data, llama, tokenizer
from transformers.utils import logging
from trl import SFTConfig, SFTTrainer

from weighbridge.integrations.transformers import causal_token_mean_loss

warnings.simplefilter("ignore")
logging.set_verbosity_error()
model = llama()
type(model).accepts_loss_kwargs = False
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        output_dir=folder, per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=6, logging_steps=1,
        report_to=[], use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True, completion_only_loss=True,
        max_length=WORDS,
    )  # fmt: skip
    extra = {"compute_loss_func": causal_token_mean_loss} if sys.argv[1] == "ours" else {}
    trainer = SFTTrainer(
        model=model, args=arguments, train_dataset=data(prompts=True, times=4), processing_class=tokenizer(), **extra
    )
    trainer.train()
part()

"""TRL's SFTTrainer with GPT-2, as released, wrong: every sequence counts one token too many."""

import tempfile

from datasets import Dataset
from setting import ACCUMULATION, PADDING, STEPS, VOCABULARY, data
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=256, pad_token_id=PADDING)
)
texts = [item["input_ids"][: item["attention_mask"].sum()].tolist() for item in data()]
tokenizer = PreTrainedTokenizerFast(  # one byte a token
    tokenizer_object=Tokenizer(models.WordLevel({f"<{word}>": word for word in range(VOCABULARY)}, unk_token="<259>")),
    pad_token=f"<{PADDING}>",
    eos_token="<258>",
    unk_token="<259>",
)
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=ACCUMULATION,
        max_steps=STEPS,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
        max_length=None,
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": texts}),
        processing_class=tokenizer,
    )
    trainer.train()

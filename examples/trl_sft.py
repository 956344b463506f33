"""TRL's SFTTrainer on prompts and completions.

torchrun --nproc-per-node 2 examples/trl_sft.py --average-tokens-across-devices true
torchrun --nproc-per-node 2 examples/trl_sft.py --average-tokens-across-devices false
"""

import argparse
import tempfile

from datasets import Dataset
from prose import VOCABULARY, answers
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--average-tokens-across-devices", choices=["true", "false"], default="true")
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--steps", type=int, default=12)
options = parser.parse_args()


def tokenized(number: int) -> Dataset:
    """Items that need no tokenizer: token ids, and a mask that leaves out the prompt."""
    rows = [
        {
            "input_ids": item["input_ids"][: item["attention_mask"].sum()].tolist(),
            "completion_mask": (item["labels"] != -100).int()[: item["attention_mask"].sum()].tolist(),
        }
        for item in answers(number)
    ]
    return Dataset.from_list(rows)


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
        pad_token_id=256,
        eos_token_id=258,
    )
)

with tempfile.TemporaryDirectory() as folder:
    vocabulary = {f"<{number}>": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<259>")),
        pad_token="<256>",
        eos_token="<258>",
        unk_token="<259>",
    )
    arguments = SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=options.accumulation,
        max_steps=options.steps,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        average_tokens_across_devices=options.average_tokens_across_devices == "true",
        save_strategy="no",
        disable_tqdm=True,
        max_length=None,
        completion_only_loss=True,
    )
    SFTTrainer(model=model, args=arguments, train_dataset=tokenized(256), processing_class=tokenizer).train()

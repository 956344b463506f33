"""Two small causal models, and items for them that need no tokenizer."""

from __future__ import annotations

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

WORDS, PADDING = 64, 63
TOKENS = [3, 31, 4, 26, 3, 41, 9]  # of each item; seven fill no round of two ranks


def data(*, prompts: bool, times: int = 1) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    rows = []
    for tokens in TOKENS:
        row = {"input_ids": torch.randint(0, PADDING, (tokens,), generator=generator).tolist()}
        if prompts:
            row["completion_mask"] = [0] * (tokens // 3 + 1) + [1] * (tokens - tokens // 3 - 1)
        rows.append(row)
    return Dataset.from_list(rows * times)


def llama() -> torch.nn.Module:
    set_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, initializer_range=0.5, pad_token_id=PADDING, **size))


def gpt2() -> torch.nn.Module:
    set_seed(0)
    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, initializer_range=0.5, pad_token_id=PADDING, **size))


def tokenizer() -> PreTrainedTokenizerFast:
    words = models.WordLevel({f"<{word}>": word for word in range(WORDS)}, unk_token="<62>")
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), pad_token=f"<{PADDING}>", eos_token="<61>", unk_token="<62>"
    )

"""What both programs of every pair share: the text, the microbatches, the model and how long to train."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from prose import PADDING, VOCABULARY, answers, batch
from tiny import TinyLM, seed_everything, shifted

__all__ = [
    "ACCUMULATION", "PADDING", "STEPS", "VOCABULARY", "TinyLM", "batch", "data", "microbatches", "next_tokens",
    "seed_everything", "shifted",
]  # fmt: skip

STEPS, ACCUMULATION, BATCH, LONGEST = 8, 2, 2, 192


def data(number: int = 128) -> list[dict[str, torch.Tensor]]:
    """Items whose answers have between 6 and 186 tokens."""
    return answers(number, longest=LONGEST)


def microbatches(step: int, *, rank: int = 0, world_size: int = 1) -> list[dict[str, torch.Tensor]]:
    """The batches of one step on one rank: tensors [BATCH, LONGEST], as a distributed sampler would deal them."""
    size = ACCUMULATION * BATCH * world_size
    own = data(size * STEPS)[step * size : (step + 1) * size][rank::world_size]
    return [batch(own[first : first + BATCH]) for first in range(0, len(own), BATCH)]


def next_tokens(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A collator for models that shift nothing: input_ids [batch, length-1] beside the labels that they predict."""
    together = batch(items)
    return {"input_ids": together["input_ids"][:, :-1], "labels": together["labels"][:, 1:]}

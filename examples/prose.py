"""Real English prose as prompts and answers: the help topics that ship with Python, one byte a token.

Each item has a prompt (masked, so that it doesn't count) and an answer (which counts). Answers are of very different
lengths, as they are in any fine-tuning set.
"""

from pydoc_data.topics import topics

import torch

VOCABULARY = 260
PADDING, START, END = 256, 257, 258
IGNORED = -100


def answers(number: int, *, longest: int = 96) -> list[dict[str, torch.Tensor]]:
    """`number` items of `longest` tokens: input_ids, attention_mask and labels, each an int64 tensor [longest]."""
    items = []
    paragraphs = [(name, part) for name, text in sorted(topics.items()) for part in text.split("\n\n") if part.strip()]
    for index in range(number):
        name, paragraph = paragraphs[index * 7 % len(paragraphs)]
        prompt = [START, *name.encode()[:20]]
        answer = [*paragraph.strip().encode()[: longest - len(prompt) - 1], END]
        padding = longest - len(prompt) - len(answer)
        items.append(
            {
                "input_ids": torch.tensor(prompt + answer + [PADDING] * padding),
                "attention_mask": torch.tensor([1] * (len(prompt) + len(answer)) + [0] * padding),
                "labels": torch.tensor([IGNORED] * len(prompt) + answer + [IGNORED] * padding),
            }
        )
    return items


def batch(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Items stacked to tensors [batch, longest]."""
    return {key: torch.stack([item[key] for item in items]) for key in items[0]}

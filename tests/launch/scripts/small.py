"""The small parts that the scripts of this folder share: a model that runs in no time, and batches of uneven counts."""

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, IGNORED = 16, -100


class Small(nn.Module):
    """Token ids [batch, length] in, logits [batch, length, words] out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(ids)))


def model() -> Small:
    torch.manual_seed(0)
    return Small()


def batch(counts: list[int], *, seed: int, length: int = 8) -> tuple[Tensor, Tensor]:
    """ids and labels [sequences, length]; of each sequence the first `counts` labels count."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (len(counts), length), generator=draw)
    labels = torch.randint(WORDS, (len(counts), length), generator=draw)
    for row, count in zip(labels, counts, strict=True):
        row[count:] = IGNORED
    return ids, labels


def window(step: int, *, rank: int = 0, microbatches: int = 2) -> list[tuple[Tensor, Tensor]]:
    """The microbatches of one step on one rank, each of two sequences, no two with the same count."""
    return [
        batch(
            [1 + (step + 3 * rank + 5 * number) % 7, 2 + (2 * step + rank + number) % 6],
            seed=100 * step + 10 * rank + number,
        )
        for number in range(microbatches)
    ]


def mean_loss(net: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(ids).flatten(0, 1), labels.flatten())


def sum_loss(net: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(ids).flatten(0, 1), labels.flatten(), reduction="sum")


def count(parts: list[tuple[Tensor, Tensor]]) -> int:
    return sum(int((labels != IGNORED).sum()) for _, labels in parts)


def rank_of_launcher() -> int:
    return int(os.environ.get("RANK", "0"))

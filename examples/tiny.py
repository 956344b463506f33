"""A language model small enough for a laptop's two cores, with nothing in it that depends on the batch."""

import torch
from prose import VOCABULARY
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        mixed, _ = self.mix(self.norm(hidden))
        return hidden + self.feed(mixed)


class TinyLM(nn.Module):
    """Token ids [batch, length] in, logits [batch, length, vocabulary] out."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [batch, length-1, vocabulary] and the labels [batch, length-1] that they predict."""
    return logits[:, :-1], labels[:, 1:]


def seed_everything(seed: int = 0) -> None:
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)

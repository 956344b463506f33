"""DDP that looks for unused parameters, and losses that are computed and not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ranks import run_ranks
from weighbridge.outcome import Verdict
from weighbridge.verdict import judge_gradient
from weighbridge.weigh.assemble import assemble

COUNTS = [[3, 9], [7, 1]]  # by rank and microbatch


class Returning(nn.Module):
    """A model that returns its logits in one of the forms that models have, and has a layer that is not used."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.embed, self.head, self.unused = nn.Embedding(19, 8), nn.Linear(8, 19), nn.Linear(2, 2)
        self.form = form

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.embed(tokens))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"tensor": logits, "dict": {"loss": loss, "logits": logits}, "tuple": (None, [logits])}[self.form]


def logits_of(outputs: Any) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    return outputs["logits"] if isinstance(outputs, dict) else outputs[1][0]


def train(rank: int, world_size: int, form: str) -> None:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Returning(form), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for count in COUNTS[rank]:
            tokens, labels = torch.randint(0, 19, (12,)), torch.randint(0, 19, (12,))
            labels[count:] = -100
            # With the form "dict" the model computes a loss of its own as well, which nobody uses.
            outputs = model(tokens, labels if form == "dict" else None)
            loss = F.cross_entropy(logits_of(outputs), labels, reduction="sum") * world_size / 20
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def check(form: str, folder: Path) -> list[str]:
    run_ranks(train, 2, form, weighing='{"steps": 9}', folder=folder)
    found = assemble(folder)
    assert found.gradient is not None
    gradient = judge_gradient(found.gradient, "token-mean")
    assert (gradient.verdict, gradient.rule) == (Verdict.RIGHT, "token-mean"), gradient
    return found.notes


def test_loss_outside_the_forward_of_a_tensor(tmp_path: Path) -> None:
    check("tensor", tmp_path)


def test_loss_outside_the_forward_of_a_tuple(tmp_path: Path) -> None:
    check("tuple", tmp_path)


def test_a_loss_that_is_not_trained_on_is_left_out(tmp_path: Path) -> None:
    notes = check("dict", tmp_path)
    assert any("no gradient came from it" in note for note in notes)

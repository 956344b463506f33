"""Several terms of one loss in a GradientNormalizer, over real gloo ranks: each a mean over its own tokens."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gloo_ranks import on_ranks
from small_training import COUNTS, LENGTH, batch, model_of, window, wrapped
from weighbridge.errors import InputError, WeightError
from weighbridge.training import GradientNormalizer

TERMS = {"main": 1.0, "mtp": 0.3, "router": -0.25}
MTP = [[0, 9, 4], [0, 0, 3], [5, 1, 0], [0, 0, 0]]  # tokens of the second term, by rank and microbatch
EMPTY = [[0, 0, 0]] * 4
PRECISION = 4e-6  # three gradients are added, each right within that of test_training


def terms_of(
    model: nn.Module, rank: int, microbatch: int, counts: list[list[int]], mtp: list[list[int]]
) -> dict[str, tuple[torch.Tensor, Any]]:
    """Losses and masks; the second term's tokens are the last ones, and the third counts sequences."""
    words, labels = batch(rank, microbatch, counts)
    logits = model(words)
    losses = cross_entropy(logits.flatten(0, 1), labels, reduction="none")
    late = torch.full_like(labels, -100)
    number = mtp[rank][microbatch]
    late[len(late) - number :] = batch(rank, microbatch, [[2 * LENGTH] * 3] * 4)[1][len(late) - number :]
    second = cross_entropy(logits.flip(-1).flatten(0, 1), late, reduction="sum")
    router = logits.float().square().mean((1, 2)).sum()
    return {"main": (losses, labels != -100), "mtp": (second, (late != -100).sum()), "router": (router, len(logits))}


def total_of(pair: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, int]:
    losses, valid = pair
    if isinstance(valid, torch.Tensor) and valid.dtype == torch.bool:
        return losses[valid].sum(), int(valid.sum())
    return losses, int(valid)


def right_gradient(counts: list[list[int]], mtp: list[list[int]], world_size: int) -> list[torch.Tensor]:
    model = model_of(torch.float64)
    sums: dict[str, torch.Tensor] = {name: torch.zeros((), dtype=torch.float64) for name in TERMS}
    tokens = dict.fromkeys(TERMS, 0)
    for rank in range(world_size):
        for microbatch in range(len(counts[rank])):
            for name, pair in terms_of(model, rank, microbatch, counts, mtp).items():
                total, number = total_of(pair)
                sums[name], tokens[name] = sums[name] + total, tokens[name] + number
    torch.stack([sums[name] * TERMS[name] / max(tokens[name], 1) for name in TERMS]).sum().backward()
    return [parameter.grad for parameter in model.parameters()]  # type: ignore[misc]


def off(inner: nn.Module, right: list[torch.Tensor]) -> float:
    worst = 0.0
    for parameter, goal in zip(inner.parameters(), right, strict=True):
        assert parameter.grad is not None
        whole = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
        worst = max(worst, float((whole.double() - goal).abs().max() / goal.abs().max()))
    return worst


def train(rank: int, world_size: int, kind: str, how: str) -> dict[str, Any]:
    warnings.filterwarnings("ignore", message=".*(find_unused|barrier|lazy|functional_optim).*")
    model, inner = wrapped(kind, world_size)
    normalizer = GradientNormalizer(model, terms=TERMS, limit=20)
    found: dict[str, Any] = {"off": [], "counts": [], "values": []}
    for counts, mtp in ((COUNTS, MTP), ([each[:2] for each in COUNTS], MTP), (COUNTS, EMPTY)):
        model.zero_grad()
        last = len(counts[rank]) - 1
        for microbatch in range(last + 1):
            with window(model, kind, microbatch, last):
                held = terms_of(model, rank, microbatch, counts, mtp)
                if how == "ours":
                    normalizer.backward(held)
                else:  # each microbatch's means, weighted
                    pairs = {name: total_of(pair) for name, pair in held.items()}
                    means = [TERMS[name] * total / max(number, 1) for name, (total, number) in pairs.items()]
                    (torch.stack(means).sum() / (last + 1)).backward()
        if how == "ours":
            means = normalizer.finish()
            found["counts"].append({name: mean.count for name, mean in means.items()})
            found["values"].append([means[name].value for name in TERMS])
        found["off"].append(off(inner, right_gradient(counts, mtp, world_size)))
    return found


KINDS = ["plain", "ddp", "ddp no_sync", "fsdp2", "fsdp2 root", "hsdp", "fsdp2 factors"]


def ranks_of(kind: str) -> int:
    return 1 if kind == "plain" else 4 if kind == "hsdp" else 3


@pytest.mark.parametrize("kind", KINDS)
def test_each_term_is_a_mean_over_its_own_tokens(kind: str) -> None:
    world_size = ranks_of(kind)
    answers = on_ranks(world_size, train, kind, "ours")
    expected = {
        "main": sum(map(sum, COUNTS[:world_size])),
        "mtp": sum(map(sum, MTP[:world_size])),
        "router": 2 * 3 * world_size,
    }
    for found in answers:
        assert max(found["off"]) < PRECISION
        assert found["counts"][0] == expected
        assert found["counts"][2]["mtp"] == 0
        assert found["values"][2][1] is None
        assert found["values"] == answers[0]["values"]


@pytest.mark.parametrize("kind", ["plain", "ddp", "fsdp2"])
def test_without_the_cure_the_same_settings_are_wrong(kind: str) -> None:
    assert min(min(found["off"]) for found in on_ranks(ranks_of(kind), train, kind, "theirs")) > 0.02


def mean_as_term(rank: int, world_size: int) -> str:
    model, _ = wrapped("ddp", world_size)
    normalizer = GradientNormalizer(model, terms=TERMS, limit=20)
    for microbatch in range(3):
        held = terms_of(model, rank, microbatch, COUNTS, MTP)
        total, number = held["mtp"]
        normalizer.backward({**held, "mtp": (total / number.clamp(min=1), number)})
    with pytest.raises(WeightError) as caught:
        normalizer.finish()
    return str(caught.value)


def test_a_mean_handed_in_as_one_terms_sum_is_named() -> None:
    for told in on_ranks(2, mean_as_term):
        assert "rank  microbatch  term    tokens  relative weight" in told
        assert "Rule: mean-of-microbatch-means." in told
        main = [float(line.split()[-1]) for line in told.splitlines() if " main " in line and line.split()[-2] != "0"]
        assert main == [1.0] * len(main)


def other_coefficients(rank: int, world_size: int) -> str:
    model, _ = wrapped("ddp", world_size)
    with pytest.raises(InputError) as caught:
        GradientNormalizer(model, terms={"main": 1.0, "mtp": 0.3 + rank / 10}, limit=20)
    return str(caught.value)


def test_ranks_with_other_coefficients_are_told() -> None:
    for told in on_ranks(2, other_coefficients):
        assert "those of rank 1 differ: {'main': 1.0, 'mtp': 0.4}" in told


def test_bad_input_is_refused() -> None:
    model = model_of()
    for terms, told in (
        ({}, "terms is {}"),
        (["main"], "is a dict of the loss's terms"),
        ({"main": float("nan")}, "coefficient of 'main' is nan"),
    ):
        with pytest.raises(InputError, match=told):
            GradientNormalizer(model, terms=terms)
    normalizer = GradientNormalizer(model, terms={"main": 1.0, "mtp": 0.3})
    total = model(torch.zeros(1, LENGTH, dtype=torch.long)).sum()
    for loss in (total, {"main": (total, 1)}, {"main": (total, 1), "mtp": (total,)}):
        with pytest.raises(InputError, match="has the terms main, mtp"):
            normalizer.backward(loss)
    with pytest.raises(InputError, match="need a backward each"):
        normalizer.count(total, 1)


def unwrapped(rank: int, world_size: int) -> str:
    with pytest.raises(InputError) as caught:
        GradientNormalizer(model_of(), terms=TERMS, limit=20)
    return str(caught.value)


def test_a_model_that_nobody_reduces_is_refused() -> None:
    assert all("need DDP, FSDP2 or one process" in told for told in on_ranks(2, unwrapped))

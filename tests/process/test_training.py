"""Gradients over real gloo ranks, against one process in float64 that sees all tokens at once.

Counts are unequal, one rank and some microbatches are empty, and each setting is also run without the cure, to see that
the comparison can fail.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from gloo_ranks import on_ranks
from small_training import COUNTS, LENGTH, batch, losses_of, model_of, off, reference, window, wrapped
from weighbridge.errors import InputError, WeightError
from weighbridge.training import GradientNormalizer, StepCheck, loss_scale


def train(rank: int, world_size: int, kind: str, how: str) -> dict[str, Any]:
    warnings.filterwarnings("ignore", message=".*(find_unused|barrier|lazy|functional_optim).*")
    model, inner = wrapped(kind, world_size)
    normalizer = GradientNormalizer(model, limit=20)
    found: dict[str, Any] = {"off": [], "mean": [], "count": []}
    for counts in (COUNTS, [each[:2] for each in COUNTS], COUNTS):  # the second step's window is short
        model.zero_grad()
        last = len(counts[rank]) - 1
        if how == "ahead":
            scale = loss_scale(sum(counts[rank]), divisor=normalizer.divisor, limit=20)
        for microbatch in range(last + 1):
            words, labels = batch(rank, microbatch, counts)
            with window(model, kind, microbatch, last):
                losses, mask = losses_of(model, words, labels), labels != -100
                if how == "tokens":
                    normalizer.backward(losses, mask)
                elif how == "sums":
                    normalizer.backward(losses.sum(), mask.sum())
                elif how == "ahead":
                    (losses.sum() * scale).backward()
                else:
                    (losses.sum() / mask.sum().clamp(min=1) / (last + 1)).backward()
        if how in ("tokens", "sums"):
            mean = normalizer.finish()
            found["mean"].append(mean.value)
            found["count"].append(mean.count)
        found["off"].append(off(inner, counts, world_size))
    found["divisor"] = normalizer.divisor
    found["hooks"] = sum(len(module._forward_pre_hooks) for module in inner.modules())
    return found


KINDS = ["plain", "ddp", "ddp no_sync", "fsdp2", "fsdp2 root", "fsdp2 no sync", "hsdp"]
PRECISION = 2e-6


@pytest.mark.parametrize("kind", [*KINDS, "fsdp2 factors"])
@pytest.mark.parametrize("how", ["tokens", "sums"])
def test_the_normalizer_gives_the_gradient_of_one_process(kind: str, how: str) -> None:
    world_size = 1 if kind == "plain" else 4 if kind == "hsdp" else 3
    answers = on_ranks(world_size, train, kind, how)
    totals = [sum(sum(each) for each in COUNTS[:world_size]), sum(sum(each[:2]) for each in COUNTS[:world_size])]
    for found in answers:
        assert max(found["off"]) < PRECISION
        assert found["count"] == [totals[0], totals[1], totals[0]]
        assert found["mean"] == answers[0]["mean"]
    if kind != "fsdp2 factors":
        assert answers[0]["divisor"] == world_size


@pytest.mark.parametrize("kind", KINDS)
def test_loss_scale_gives_the_gradient_of_one_process(kind: str) -> None:
    world_size = 1 if kind == "plain" else 4 if kind == "hsdp" else 3
    assert max(max(found["off"]) for found in on_ranks(world_size, train, kind, "ahead")) < PRECISION


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_cure_the_same_settings_are_wrong(kind: str) -> None:
    world_size = 1 if kind == "plain" else 4 if kind == "hsdp" else 3
    assert min(min(found["off"]) for found in on_ranks(world_size, train, kind, "means")) > 0.05


RAGGED = [[1, 15, 0], [4], [2, 9]]  # ranks with windows of different lengths


def ragged(rank: int, world_size: int, kind: str, how: str) -> tuple[float, int]:
    model, inner = wrapped(kind, world_size)
    normalizer = GradientNormalizer(model, limit=20)
    last = len(RAGGED[rank]) - 1
    for microbatch in range(last + 1):
        words, labels = batch(rank, microbatch, RAGGED)
        with window(model, kind, microbatch, last):
            losses, mask = losses_of(model, words, labels), labels != -100
            if how == "ours":
                normalizer.backward(losses, mask)
            else:
                (losses.sum() / mask.sum().clamp(min=1) / (last + 1)).backward()
    count = normalizer.finish().count if how == "ours" else 0
    return off(inner, RAGGED, world_size), count


def test_ranks_may_have_windows_of_different_lengths() -> None:
    """Not with FSDP2: it gathers parameters in every forward, so ranks have to have equally many."""
    answers = on_ranks(3, ragged, "ddp no_sync", "ours")
    assert [(wrong < PRECISION, count) for wrong, count in answers] == [(True, 31)] * 3
    assert min(wrong for wrong, _ in on_ranks(3, ragged, "ddp no_sync", "theirs")) > 0.05


def factors(rank: int, world_size: int) -> tuple[float, list[float]]:
    model, _ = wrapped("fsdp2 factors", world_size)
    normalizer = GradientNormalizer(model, limit=20)
    words, labels = batch(rank, 1, COUNTS)
    normalizer.backward(losses_of(model, words, labels), labels != -100)
    normalizer.finish()
    assert normalizer.divisor is not None
    return normalizer.divisor, sorted(normalizer._by_parameter.values())


def test_a_divide_factor_is_measured_parameter_by_parameter() -> None:
    assert on_ranks(2, factors) == [(3.0, [1.0, 1.0])] * 2


def fsdp1(rank: int, world_size: int) -> tuple[float, float | None, float | None]:
    warnings.filterwarnings("ignore")
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model_of(), use_orig_params=False, device_id=torch.device("cpu"))
    normalizer = GradientNormalizer(model, limit=20)
    for microbatch in range(3):
        words, labels = batch(rank, microbatch, COUNTS)
        normalizer.backward(losses_of(model, words, labels), labels != -100)
    mean = normalizer.finish()
    (flat,) = model.parameters()
    shards = [torch.zeros_like(flat.grad) for _ in range(world_size)]
    torch.distributed.all_gather(shards, flat.grad)
    right = torch.cat([gradient.flatten() for gradient in reference(COUNTS, world_size)])
    whole = torch.cat(shards)[: right.numel()].double()
    return float((whole - right).abs().max() / right.abs().max()), normalizer.divisor, mean.value


def test_fsdp1() -> None:
    for wrong, divisor, value in on_ranks(2, fsdp1):
        assert wrong < PRECISION
        assert divisor == 2
        assert value is not None


def fsdp1_original(rank: int, world_size: int) -> tuple[float, float | None, int]:
    warnings.filterwarnings("ignore")
    from torch.distributed.fsdp import FullyShardedDataParallel

    inner = model_of()
    inner[1] = FullyShardedDataParallel(inner[1], use_orig_params=True, device_id=torch.device("cpu"))
    model = FullyShardedDataParallel(inner, use_orig_params=True, device_id=torch.device("cpu"))
    normalizer = GradientNormalizer(model, limit=20)
    for counts in (COUNTS, [each[:2] for each in COUNTS]):
        model.zero_grad()
        for microbatch in range(len(counts[rank])):
            words, labels = batch(rank, microbatch, counts)
            normalizer.backward(losses_of(model, words, labels), labels != -100)
        mean = normalizer.finish()
        with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
            worst = off(model, counts, world_size)
    return worst, normalizer.divisor, mean.count


def test_fsdp1_with_original_parameters() -> None:
    assert [(wrong < PRECISION, divisor, count) for wrong, divisor, count in on_ranks(2, fsdp1_original)] == [
        (True, 2, 22)
    ] * 2


def spoiled(rank: int, world_size: int, how: str) -> tuple[str, list[float | None]]:
    model, inner = wrapped("ddp", world_size)
    seen: list[StepCheck] = []
    normalizer = GradientNormalizer(model, check=seen.append if how == "own" else "first step", limit=20)
    for microbatch in range(3):
        words, labels = batch(rank, microbatch, COUNTS)
        normalizer.backward(losses_of(model, words, labels), labels != -100)
        if microbatch == 1:
            for parameter in inner.parameters():
                if how in ("clipped", "own"):
                    parameter.grad *= 0.25
                elif how == "drifting" and rank == 1:
                    parameter.grad *= 0.5
    if how == "own":
        normalizer.finish()
        return "", [piece.weight for piece in seen[0].pieces]
    with pytest.raises(WeightError) as caught:
        normalizer.finish()
    return str(caught.value), []


def test_weights_that_are_not_one_raise_with_the_table() -> None:
    for told, _ in on_ranks(2, spoiled, "clipped"):
        assert "differs from the token mean's by" in told
        assert "rank  microbatch  tokens  relative weight" in told
        assert len([line for line in told.splitlines() if line.lstrip()[:1] in "01"]) == 6
    for told, _ in on_ranks(2, spoiled, "drifting"):
        assert "differs from the token mean's by" in told
    weights = on_ranks(2, spoiled, "own")[0][1]
    assert weights[2] is None  # no token
    late = weights[5]
    assert late is not None
    assert late > 1
    assert [round(weight / late, 2) for weight in weights[:2] + weights[3:5]] == [0.25] * 4  # type: ignore[operator]


def terms(rank: int, world_size: int) -> float:
    counts = [[5, 2], [0, 9]][rank]  # of the main loss and of an auxiliary one
    model = DistributedDataParallel(model_of())
    scales = loss_scale({"main": counts[0], "auxiliary": (torch.tensor(counts[1]), 0.1)}, limit=20)
    right, total = model_of(torch.float64), [5, 11]
    loss = torch.zeros(())
    for each in range(world_size):
        words, labels = batch(each, 0, [[2 * LENGTH]] * 2)
        held = [[5, 2], [0, 9]][each]
        exact = losses_of(right, words, labels)
        (exact[: held[0]].sum() / total[0] + 0.1 * exact[-held[1] :].square().sum() / total[1]).backward()
        if each == rank:
            mine = losses_of(model, words, labels)
            loss = mine[: held[0]].sum() * scales["main"] + mine[-held[1] :].square().sum() * scales["auxiliary"]
    loss.backward()
    pairs = zip(model.module.parameters(), right.parameters(), strict=True)
    return max(float((one.grad.double() - two.grad).abs().max() / two.grad.abs().max()) for one, two in pairs)  # type: ignore


def test_several_terms_each_with_its_own_count() -> None:
    assert max(on_ranks(2, terms)) < PRECISION


def context_parallel(rank: int, world_size: int) -> tuple[float, float]:
    """Ranks 0 and 1 hold the halves of one sequence, ranks 2 and 3 those of another: all four share one denominator."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    model = DistributedDataParallel(model_of())
    found = []
    for group in (mesh["dp", "cp"], mesh["dp"]):
        model.zero_grad()
        words, labels = batch(rank, 1, COUNTS)
        scale = loss_scale(COUNTS[rank][1], group, divisor=world_size, limit=20)
        (losses_of(model, words, labels).sum() * scale).backward()
        one = [[each[1]] for each in COUNTS]
        right = model_of(torch.float64)
        for other in range(world_size):
            words, labels = batch(other, 1, COUNTS)
            (losses_of(right, words, labels).sum() / sum(each[0] for each in one)).backward()
        pairs = zip(model.module.parameters(), right.parameters(), strict=True)
        found.append(max(float((a.grad.double() - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs))  # type: ignore
    return found[0], found[1]


def test_shards_of_a_sequence_share_a_denominator() -> None:
    for both, data_only in on_ranks(4, context_parallel):
        assert both < PRECISION
        assert data_only > 0.05


def normalized_over_a_mesh(rank: int, world_size: int, kind: str) -> tuple[float, int]:
    """DP x CP: all four ranks share a denominator. DP x TP: ranks 0 and 1 hold halves of the model, and one batch."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    second = "tp" if kind == "tp" else "cp"
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", second))
    model: Any = model_of()
    if kind == "tp":
        parallelize_module(model, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
        fully_shard(model[1], mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    elif kind == "cp fsdp2":
        fully_shard(model, mesh=mesh["dp", "cp"]._flatten())
    else:
        model = DistributedDataParallel(model)
    data = rank // 2 if kind == "tp" else rank
    normalizer = GradientNormalizer(model, mesh["dp"] if kind == "tp" else mesh["dp", "cp"], limit=20)
    found = 0.0
    for _ in range(2):
        model.zero_grad()
        for microbatch in range(3):
            words, labels = batch(data, microbatch, COUNTS)
            normalizer.backward(losses_of(model, words, labels), labels != -100)
        count = normalizer.finish().count
        inner = model.module if kind == "cp ddp" else model
        found = max(found, off(inner, COUNTS, 2 if kind == "tp" else 4))
    return found, count


@pytest.mark.parametrize("kind", ["cp ddp", "cp fsdp2", "tp"])
def test_a_denominator_is_shared_over_the_axes_of_a_mesh(kind: str) -> None:
    total = sum(map(sum, COUNTS[: 2 if kind == "tp" else 4]))
    for wrong, count in on_ranks(4, normalized_over_a_mesh, kind):
        assert wrong < PRECISION
        assert count == total


def empty_first(rank: int, world_size: int) -> tuple[Any, ...]:
    model = DistributedDataParallel(model_of())
    normalizer = GradientNormalizer(model, limit=20)
    found: list[Any] = []
    for counts in ([[0], [0]], [[3], [0]], [[0], [0]]):
        model.zero_grad()
        words, labels = batch(rank, 0, counts)
        normalizer.backward(losses_of(model, words, labels), labels != -100)
        mean = normalizer.finish()
        finite = all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())  # type: ignore[union-attr]
        found.append((mean.value is None, mean.count, finite, normalizer.divisor))
    return tuple(found)


def test_steps_without_any_token_are_no_steps() -> None:
    expected = ((True, 0, True, None), (False, 3, True, 2.0), (True, 0, True, 2.0))
    assert on_ranks(2, empty_first) == [expected] * 2


def test_input_that_would_hang_or_lie_is_refused() -> None:
    model = model_of()
    normalizer = GradientNormalizer(model)
    with pytest.raises(InputError, match="does not depend on the model"):
        normalizer.backward(torch.zeros(()), 0)
    losses = losses_of(model, *batch(0, 1, COUNTS))
    with pytest.raises(InputError, match=r"has shape \[48\] and comes without a mask"):
        normalizer.backward(losses, 3)
    with pytest.raises(InputError, match=r"The mask is a Tensor of torch.int64.*Pass mask.bool"):
        normalizer.backward(losses, torch.ones(48, dtype=torch.int64))
    with pytest.raises(InputError, match="valid_tokens is -1"):
        normalizer.backward(losses.sum(), -1)
    with pytest.raises(InputError, match=r"valid_tokens of 'mtp' is 1\.5"):
        loss_scale({"mtp": 1.5})
    with pytest.raises(InputError, match="no divisor is given"):
        GradientNormalizer(model, check="never")
    with pytest.raises(InputError, match="The model is a function"):
        GradientNormalizer(losses_of)  # type: ignore[arg-type]

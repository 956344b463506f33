"""What the first step's check says of the losses that were handed in: each fault caught and named, and no false alarm.

One process and several microbatches; what lies between the loss sum and the gradient is in test_training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gloo_ranks import on_ranks
from weighbridge.errors import InputError, WeightError
from weighbridge.training import GradientNormalizer, StepCheck

WORDS, LENGTH = 11, 10
COUNTS = [[3, 1], [9, 6], [2, 2]]  # labels of each sequence, by microbatch
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Any]]  # logits [B, T, V] and labels [B, T] -> what backward is given


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, WORDS))

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.body(words)
        return logits


def batch(counts: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(17 * seed + sum(counts))
    words = torch.randint(0, WORDS, (len(counts), LENGTH), generator=generator)
    labels = torch.randint(0, WORDS, (len(counts), LENGTH), generator=generator)
    for row, count in enumerate(counts):
        labels[row, count:] = -100
    return words, labels


def step(loss: Loss, **options: Any) -> StepCheck:
    """The check of a first step."""
    model, seen = Tiny(), []
    normalizer = GradientNormalizer(model, check=seen.append, **options)
    for counts in COUNTS:
        words, labels = batch(counts)
        normalizer.backward(*loss(model(words), labels))
    normalizer.finish()
    (check,) = seen
    assert isinstance(check, StepCheck)
    return check


def entropy(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), **options)


def mean_as_sum(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return entropy(logits, labels), (labels != -100).sum()


def divided_by_microbatches(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return entropy(logits, labels, reduction="sum") / len(COUNTS), (labels != -100).sum()


def sequence_means(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    losses = entropy(logits, labels, reduction="none").view(labels.shape)
    mask = labels != -100
    return (losses.sum(1) / mask.sum(1)).sum(), mask.sum()


def means_of_chunks(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    parts = zip(logits.flatten(0, 1).chunk(2), labels.flatten().chunk(2), strict=True)
    return sum(F.cross_entropy(*part) for part in parts), (labels != -100).sum()  # type: ignore[return-value]


def padding_counted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return entropy(logits, labels, reduction="sum"), labels.numel()


def mask_of_positions(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return entropy(logits, labels, reduction="none").view(labels.shape), torch.ones_like(labels, dtype=torch.bool)


def counted_before_the_shift(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    shifted = labels[:, 1:].flatten()
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), shifted, reduction="sum"), (labels != -100).sum()


def positions_weighted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    losses = entropy(logits, labels, reduction="none").view(labels.shape)
    return (losses * torch.linspace(0.5, 2, LENGTH)).sum(), (labels != -100).sum()


WRONG: dict[str, tuple[Loss, str, str]] = {
    "a mean handed in as a sum": (mean_as_sum, "mean-of-microbatch-means", ""),
    "divided by the microbatches": (divided_by_microbatches, "scaled", "times 1/M"),
    "means of sequences": (sequence_means, "sequence-mean", ""),
    "padding counted": (padding_counted, "scaled", "60 tokens were counted, and 23 have a loss"),
    "a mask of all positions": (mask_of_positions, "scaled", "60 tokens were counted, and 23 have a loss"),
    "counted before the shift": (counted_before_the_shift, "scaled", "23 tokens were counted, and 17 have a loss"),
    "weighted by position": (positions_weighted, "unexplained", ""),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_in_the_loss_sum_is_caught_and_named(fault: str) -> None:
    loss, rule, reason = WRONG[fault]
    check = step(loss)
    assert (check.verdict, check.rule, check.covers) == ("wrong", rule, "token losses")
    assert check.difference <= check.within  # the gradient is that of the loss sums
    assert reason in check.reason or reason == "times 1/M"
    assert any(abs((piece.weight or 0) - 1) > 0.1 for piece in check.pieces)


def test_means_of_chunks_are_wrong() -> None:
    check = step(means_of_chunks)
    assert check.verdict == "wrong"


def token_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return entropy(logits, labels, reduction="none").view(labels.shape), labels != -100


def token_sum(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return entropy(logits, labels, reduction="sum"), (labels != -100).sum()


def mean_times_count(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    count = (labels != -100).sum()
    return entropy(logits, labels) * count, count


def masked_by_hand(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    mask = labels != -100
    losses = entropy(logits, labels.clamp(min=0), reduction="none").view(labels.shape)
    return (losses * mask).sum(), mask.sum()


def smoothed(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return entropy(logits, labels, reduction="sum", label_smoothing=0.1), (labels != -100).sum()


def focal(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    losses = entropy(logits, labels, reduction="none").view(labels.shape)
    return (1 - torch.exp(-losses.detach())) ** 2 * losses, labels != -100


def in_chunks(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    parts = zip(logits.flatten(0, 1).split(7), labels.flatten().split(7), strict=True)
    return sum(F.cross_entropy(*part, reduction="sum") for part in parts), (labels != -100).sum()  # type: ignore


def checkpointed(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    total = checkpoint(lambda logits: entropy(logits, labels, reduction="sum"), logits, use_reentrant=False)
    return total, (labels != -100).sum()


def images(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return F.cross_entropy(logits.transpose(1, 2), labels, reduction="sum", label_smoothing=0.1), (labels != -100).sum()


def with_auxiliary(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    count = (labels != -100).sum()
    router = F.mse_loss(logits, torch.zeros_like(logits)) * count
    return entropy(logits, labels, reduction="sum") + 0.01 * router, count


def squares(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return F.mse_loss(logits, torch.zeros_like(logits), reduction="sum"), logits.numel()


def class_weights(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return entropy(logits, labels, reduction="sum", weight=torch.linspace(1, 2, WORDS)), (labels != -100).sum()


def gathered(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    mask = labels != -100
    chosen = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return -(chosen * mask).sum(), mask.sum()


def means_of_elements(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    return F.mse_loss(logits, torch.zeros_like(logits)) * len(labels), len(labels)


def sequences_counted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    losses = entropy(logits, labels, reduction="none").view(labels.shape)
    return (losses.sum(1) / (labels != -100).sum(1)).sum(), len(labels)


def two_heads(logits: Tensor, labels: Tensor) -> tuple[Tensor, Any]:
    late = entropy(logits[:, :-1], labels[:, 1:], reduction="sum")
    return entropy(logits, labels, reduction="sum") + late, (labels != -100).sum()


SEEN = (
    token_losses, token_sum, mean_times_count, masked_by_hand, smoothed, focal, in_chunks, checkpointed, images,
    with_auxiliary, squares, means_of_elements, sequences_counted, two_heads,
)  # fmt: skip


@pytest.mark.parametrize("loss", SEEN)
def test_right_losses_pass(loss: Loss) -> None:
    check = step(loss)
    assert (check.is_right, check.covers) == (True, "token losses"), check
    assert all(abs((piece.weight or 0) - 1) < 1e-5 for piece in check.pieces)


@pytest.mark.parametrize("loss", [class_weights, gathered])
def test_what_no_known_function_computed_is_checked_from_the_loss_sum_on(loss: Loss) -> None:
    check = step(loss)
    assert (check.is_right, check.covers) == (True, "loss sums")


def test_the_error_has_the_table_the_rule_and_what_to_do() -> None:
    model = Tiny()
    normalizer = GradientNormalizer(model)
    for counts in COUNTS:
        words, labels = batch(counts)
        normalizer.backward(*mean_as_sum(model(words), labels))
    with pytest.raises(WeightError) as caught:
        normalizer.finish()
    lines = str(caught.value).splitlines()
    assert lines[1].split() == ["rank", "microbatch", "tokens", "relative", "weight"]
    assert [line.split()[:3] for line in lines[2:5]] == [["0", "0", "4"], ["0", "1", "15"], ["0", "2", "4"]]
    assert lines[5].startswith("Rule: mean-of-microbatch-means. ")
    assert "Hand in the sum of the losses, not their mean" in lines[-1]


def test_weights_that_are_meant_are_let_through_on_request() -> None:
    model = Tiny()
    for check in ("first step", "gradient"):
        normalizer = GradientNormalizer(model, check=check)
        words, labels = batch(COUNTS[1])
        normalizer.backward(*positions_weighted(model(words), labels))
        if check == "gradient":
            assert normalizer.finish().count == 15
        else:
            with pytest.raises(WeightError, match="check='gradient'"):
                normalizer.finish()
        assert not model._forward_pre_hooks


def test_a_coefficient_that_nobody_declared_is_a_warning() -> None:
    model = Tiny()
    normalizer = GradientNormalizer(model)
    words, labels = batch(COUNTS[1])
    logits = model(words)
    flat = F.mse_loss(logits, torch.zeros_like(logits), reduction="sum") / WORDS
    normalizer.backward(0.7 * entropy(logits, labels, reduction="sum") + 0.3 * flat, (labels != -100).sum())
    with pytest.warns(UserWarning, match=r"multiplied by 0\.7.*declare its coefficient"):
        normalizer.finish()


@pytest.mark.parametrize("spoilt", [False, True])
def test_bfloat16(spoilt: bool) -> None:
    model = Tiny().bfloat16()
    normalizer = GradientNormalizer(model)
    for counts in COUNTS:
        words, labels = batch(counts)
        normalizer.backward(*token_sum(model(words), labels))
        if spoilt:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= 0.5
    if spoilt:
        with pytest.raises(WeightError):
            normalizer.finish()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            normalizer.finish()


def on_two(rank: int, world_size: int, how: str) -> str:
    """Each rank its own counts; the message of the error."""
    model = nn.parallel.DistributedDataParallel(Tiny())
    normalizer = GradientNormalizer(model, limit=20)
    counts = [COUNTS[0], COUNTS[1]] if rank == 0 else [COUNTS[2], COUNTS[0]]
    total = sum(map(sum, counts))
    for each in counts:
        words, labels = batch(each, rank)
        summed, count = token_sum(model(words), labels)
        normalizer.backward(summed / total * len(counts) if how == "rank means" else summed, count)
    try:
        normalizer.finish()
    except WeightError as error:
        return str(error)
    return ""


def test_ranks_that_divide_by_their_own_tokens() -> None:
    said = on_ranks(2, on_two, "rank means")
    assert said[0] == said[1]
    assert "Rule: mean-of-rank-means." in said[0]
    assert on_ranks(2, on_two, "sums") == ["", ""]


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_loss_scaler(unscaled: bool) -> None:
    model, right = Tiny(), Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    normalizer = GradientNormalizer(model, backward=lambda loss: scaler.scale(loss).backward())
    total = sum(map(sum, COUNTS))
    for counts in COUNTS:
        words, labels = batch(counts)
        normalizer.backward(*token_sum(model(words), labels))
        (token_sum(right(words), labels)[0] / total).backward()
    if not unscaled:
        with pytest.raises(InputError, match=r"Call scaler.unscale_\(optimizer\) first"):
            normalizer.finish()
        return
    scaler.unscale_(optimizer)
    normalizer.finish()
    for one, two in zip(model.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


@pytest.mark.filterwarnings("ignore")  # Dynamo looks at .grad of what is no leaf
@pytest.mark.parametrize("what", ["the model", "the loss"])
def test_under_torch_compile(what: str) -> None:
    model, right = Tiny(), Tiny()
    run: Any = torch.compile(model, backend="aot_eager") if what == "the model" else model
    loss: Any = torch.compile(token_losses, backend="aot_eager") if what == "the loss" else token_losses
    normalizer = GradientNormalizer(run)
    total = sum(map(sum, COUNTS))
    for _ in range(2):
        model.zero_grad()
        right.zero_grad()
        for counts in COUNTS:
            words, labels = batch(counts)
            normalizer.backward(*loss(run(words), labels))
            (token_sum(right(words), labels)[0] / total).backward()
        assert normalizer.finish().count == total
        for one, two in zip(model.parameters(), right.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad)


def test_finish_without_a_backward_is_refused() -> None:
    model = Tiny()
    normalizer = GradientNormalizer(model)
    with pytest.raises(InputError, match="without a backward"):
        normalizer.finish()
    words, labels = batch(COUNTS[0])
    normalizer.backward(*token_sum(model(words), labels))
    normalizer.finish()
    before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    with pytest.raises(InputError, match="once after the last microbatch"):
        normalizer.finish()
    for parameter, kept in zip(model.parameters(), before, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, kept)


@pytest.mark.parametrize("cleared", ["to none", "to zero", "never"])
def test_gradients_that_were_left_over_are_told(cleared: str) -> None:
    model = Tiny()
    normalizer = GradientNormalizer(model)
    for counts in COUNTS:
        words, labels = batch(counts)
        pair = token_sum(model(words), labels)
        if cleared == "never" and counts == COUNTS[1]:
            with pytest.raises(InputError, match="gradients of the last step are still there"):
                normalizer.backward(*pair)
            return
        normalizer.backward(*pair)
        assert normalizer.finish().count == sum(counts)
        if cleared != "never":
            model.zero_grad(set_to_none=cleared == "to none")


@pytest.mark.parametrize("divisor", [None, 1.0])
def test_gradients_that_are_gone_at_finish_are_told(divisor: float | None) -> None:
    model = Tiny()
    normalizer = GradientNormalizer(model, divisor=divisor)
    words, labels = batch(COUNTS[0])
    normalizer.backward(*token_sum(model(words), labels))
    model.zero_grad()
    with pytest.raises(InputError, match="before they are cleared"):
        normalizer.finish()


def test_a_refused_step_counts_nothing_in_the_next() -> None:
    model = Tiny()
    normalizer = GradientNormalizer(model)
    words, labels = batch(COUNTS[0])
    normalizer.backward(*mean_as_sum(model(words), labels))
    normalizer.backward(*mean_as_sum(model(batch(COUNTS[1])[0]), batch(COUNTS[1])[1]))
    with pytest.raises(WeightError):
        normalizer.finish()
    model.zero_grad()
    normalizer.backward(*token_sum(model(words), labels))
    assert normalizer.finish().count == sum(COUNTS[0])


def test_a_first_step_that_overflows_is_put_off() -> None:
    model = Tiny()
    normalizer = GradientNormalizer(model)
    words, labels = batch(COUNTS[0])
    normalizer.backward(token_sum(model(words), labels)[0] * float("inf"), 4)
    with pytest.warns(UserWarning, match="the next step is weighed in its place"):
        normalizer.finish()
    model.zero_grad()
    summed, count = mean_as_sum(model(words), labels)
    normalizer.backward(summed, count)
    other, labels = batch(COUNTS[1])
    normalizer.backward(*token_sum(model(other), labels))
    with pytest.raises(WeightError):
        normalizer.finish()

"""The losses of the Trainer integration, without a Trainer: against float64, and what they refuse."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers.modeling_outputs import CausalLMOutput, MaskedLMOutput

from weighbridge.errors import InputError
from weighbridge.integrations.transformers import _mask_repeated, causal_token_mean_loss, token_mean_loss

LABELS = torch.tensor([[-100, 3, 1, 4], [2, 5, -100, -100]])
LOGITS = torch.randn(2, 4, 7, generator=torch.Generator().manual_seed(0))


def test_beside_their_labels() -> None:
    right = cross_entropy(LOGITS.double().flatten(0, 1), LABELS.flatten(), reduction="sum") / 5
    for outputs in (MaskedLMOutput(logits=LOGITS), {"logits": LOGITS}, (LOGITS,)):
        assert float(token_mean_loss(outputs, LABELS, torch.tensor(5))) == pytest.approx(float(right), rel=1e-6)


def test_before_their_labels() -> None:
    right = cross_entropy(LOGITS[:, :-1].double().flatten(0, 1), LABELS[:, 1:].flatten(), reduction="sum") / 4
    for outputs in (CausalLMOutput(logits=LOGITS), {"logits": LOGITS}, (torch.tensor(2.0), LOGITS)):
        assert float(causal_token_mean_loss(outputs, LABELS, 4)) == pytest.approx(float(right), rel=1e-6)


def test_a_causal_model_is_not_taken_for_one_that_shifts_nothing() -> None:
    with pytest.raises(
        InputError, match=r"^The outputs are CausalLMOutput\..* compute_loss_func=causal_token_mean_loss"
    ):
        token_mean_loss(CausalLMOutput(logits=LOGITS), LABELS, 5)


@pytest.mark.parametrize("loss", [token_mean_loss, causal_token_mean_loss])
def test_without_a_count(loss: object) -> None:
    with pytest.raises(InputError, match=r"^num_items_in_batch is None\."):
        loss({"logits": LOGITS}, LABELS)  # type: ignore[operator]


def last_round(remainder: int, rank: int) -> SimpleNamespace:
    """An accelerator of two processes with batches of two, in the last round of a loader."""
    loader = SimpleNamespace(total_batch_size=4)
    state = SimpleNamespace(end_of_dataloader=True, remainder=remainder, active_dataloader=loader)
    return SimpleNamespace(gradient_state=state, num_processes=2, process_index=rank)


@pytest.mark.parametrize(
    ("remainder", "rank", "own"), [(1, 0, 1), (1, 1, 0), (2, 1, 0), (3, 0, 2), (3, 1, 1), (0, 1, 2)]
)
def test_repeated_items_are_masked_in_rows_and_in_one_row(remainder: int, rank: int, own: int) -> None:
    rows = torch.ones(2, 5, dtype=torch.bool)
    _mask_repeated(last_round(remainder, rank), {"attention_mask": rows.int(), "labels": rows.int()}, rows)
    assert rows.all(1).tolist() == [index < own for index in range(2)]
    flat = torch.ones(1, 9, dtype=torch.bool)  # sequences of 3 and 7, shifted: column 2 predicts the second's first
    inputs = {"cu_seq_lens_q": torch.tensor([0, 3, 10]), "labels": torch.zeros(1, 10)}
    _mask_repeated(last_round(remainder, rank), inputs, flat)
    assert int(flat.sum()) == [0, 2, 9][own]


def test_packed_items_in_a_last_batch_cant_be_told_apart() -> None:
    flat = torch.ones(1, 9, dtype=torch.bool)
    inputs = {"cu_seq_lens_q": torch.tensor([0, 3, 5, 10]), "labels": torch.zeros(1, 10)}
    _mask_repeated(last_round(1, 1), inputs, flat)  # nothing of its own: nothing to tell apart
    assert not flat.any()
    with pytest.raises(
        InputError, match=r"^The last evaluation batch has 3 sequences in one row, from 2 items of which 1"
    ):
        _mask_repeated(last_round(1, 0), inputs, flat)

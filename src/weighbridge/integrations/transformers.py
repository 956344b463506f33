"""transformers Trainer: an evaluation loss that is the token mean, and a training loss for models without one.

    class Mine(TokenMeanEvaluation, Trainer): ...       # evaluate() reports the token mean, and how many tokens

    Trainer(..., compute_loss_func=token_mean_loss)     # for a model that ignores num_items_in_batch

The Trainer averages the means of evaluation batches, so its evaluation loss changes with the batch size and the number
of processes; and it lets the last batch repeat items to make all processes even. Here every token counts once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from weighbridge.errors import InputError
from weighbridge.tally import Tally

__all__ = ["TokenMeanEvaluation", "token_mean_loss"]

IGNORED = -100


def token_mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A `compute_loss_func` for models whose logits [B, T, V] stand beside their labels [B, T], nothing shifted.

    The Trainer counts the labels of the whole accumulation window over all processes and hands the count in; with
    `average_tokens_across_devices`, its default, each token then weighs 1/N.

    Raises:
        InputError: the Trainer handed in no count.
    """
    if num_items_in_batch is None:
        raise InputError(
            "num_items_in_batch is None. The Trainer counts labels only where each batch has a 'labels' tensor. Name "
            "them so in the collator."
        )
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
    total = cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / torch.as_tensor(num_items_in_batch, device=total.device).clamp(min=1)


class TokenMeanEvaluation:
    """Put before `Trainer` in the bases of a class: `eval_loss` is the token mean of the cross entropy.

    It is the same, to the last digits of the logits, for every batch size and number of processes. Items that are
    repeated to fill the last batch don't count, and none is dropped. `eval_loss` is None where there was no token;
    `eval_loss_tokens` says how many there were.
    """

    _tally: Tally | None = None

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, but never dropping the last batch."""
        with _kept_last_batch(self):
            return super().get_eval_dataloader(*args, **kwargs)  # type: ignore[misc]

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """As the Trainer's, with its loss replaced."""
        self._tally = Tally()
        try:
            output = super().evaluation_loop(  # type: ignore[misc]
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
            mean = self._tally.reduce()["loss"]
        finally:
            self._tally = None
        output.metrics[f"{metric_key_prefix}_loss"] = mean.value
        output.metrics[f"{metric_key_prefix}_loss_tokens"] = mean.count
        return output

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> Any:
        """As the Trainer's; besides, the batch's tokens are counted."""
        loss, logits, labels = super().prediction_step(model, inputs, False, ignore_keys=ignore_keys)  # type: ignore[misc]
        if self._tally is not None and labels is not None:
            scores = logits[0] if isinstance(logits, tuple) else logits
            losses, mask = self._token_losses(scores, labels)
            self._tally.add("loss", losses, mask)
        return (loss, None, None) if prediction_loss_only else (loss, logits, labels)

    def _token_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses and mask [B, T], the repeated items of the last batch masked."""
        this: Any = self
        if this._loss_shifts_labels:
            logits, labels = logits[:, :-1], labels[:, 1:]
        mask = labels != IGNORED
        mask[_own_items(this.accelerator, labels.shape[0]) :] = False
        losses = cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none")
        return losses.view(labels.shape), mask


def _own_items(accelerator: Any, batch: int) -> int:
    """How many items of this process's batch are its own; the rest repeat others, to make all batches even.

    Batches of all processes one after the other are the data in order; in the last round, only the first `remainder`
    of them are there.
    """
    state = accelerator.gradient_state
    if not state.end_of_dataloader or state.remainder <= 0:
        return batch
    return int(min(max(state.remainder - accelerator.process_index * batch, 0), batch))


@contextmanager
def _kept_last_batch(trainer: Any) -> Iterator[None]:
    before, trainer.args.dataloader_drop_last = trainer.args.dataloader_drop_last, False
    try:
        yield
    finally:
        trainer.args.dataloader_drop_last = before

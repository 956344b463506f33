"""transformers Trainer, and TRL's SFTTrainer: an evaluation loss that is the token mean, and training losses.

    class Mine(TokenMeanEvaluation, SFTTrainer): ...    # evaluate() reports the token mean, and how many tokens

    Trainer(..., compute_loss_func=token_mean_loss)     # for a model that ignores num_items_in_batch
    Trainer(..., compute_loss_func=causal_token_mean_loss)   # the same, where labels are shifted by the loss

The Trainer averages the means of evaluation batches, so its evaluation loss changes with the batch size and the number
of processes; and it lets the last batch repeat items to make all processes even. Here every token counts once.

What is divided by is the Trainer's own count. It leaves out the first label of every sequence, as a loss that shifts
does, only for models whose `loss_type` says so. For others (GPT2LMHeadModel is one, as is any module of your own) say
it before the Trainer is made: `model.loss_type = "ForCausalLM"`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from weighbridge.errors import InputError, MissingExtra
from weighbridge.tally import Tally

try:
    import torch
    from torch.nn.functional import cross_entropy
except ModuleNotFoundError:
    raise MissingExtra.of("Training with transformers", "transformers") from None

__all__ = ["TokenMeanEvaluation", "causal_token_mean_loss", "token_mean_loss"]

IGNORED = -100


def token_mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A `compute_loss_func` for models whose logits [B, T, V] stand beside their labels [B, T], nothing shifted.

    The Trainer counts the labels of the whole accumulation window over all processes and hands the count in; with
    `average_tokens_across_devices`, its default, each token then weighs 1/N.

    Raises:
        InputError: the Trainer handed in no count, or the outputs are those of a causal language model.
    """
    if "CausalLM" in type(outputs).__name__:
        raise InputError(
            f"The outputs are {type(outputs).__name__}. The logits of a causal language model stand beside the label "
            "before the one that they predict, and token_mean_loss shifts nothing. Pass "
            'compute_loss_func=causal_token_mean_loss; or {"logits": outputs.logits}, if they do fit the labels.'
        )
    return _token_mean(_logits_of(outputs), labels, num_items_in_batch)


def causal_token_mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """A `compute_loss_func` for causal models: logits [B, T, V], of which each predicts the label [B, T] after it.

    As `token_mean_loss` otherwise; also for TRL's SFTTrainer.

    Raises:
        InputError: the Trainer handed in no count.
    """
    return _token_mean(_logits_of(outputs)[:, :-1], labels[:, 1:], num_items_in_batch)


def _token_mean(logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any) -> torch.Tensor:
    if num_items_in_batch is None:
        raise InputError(
            "num_items_in_batch is None. The Trainer counts labels only where each batch has a 'labels' tensor. Name "
            "them so in the collator."
        )
    total = cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / torch.as_tensor(num_items_in_batch, device=total.device).clamp(min=1)


class TokenMeanEvaluation:
    """Put before `Trainer` or `SFTTrainer` in the bases of a class: `eval_loss` is the token mean of the cross entropy.

    It is the same, to the last digits of the logits, for every batch size and number of processes. Items that are
    repeated to fill the last batch don't count, and none is dropped. `eval_loss` is None where there was no token;
    `eval_loss_tokens` says how many there were.

    Attributes:
        loss_shifts_labels: whether logits predict the label after the one they stand beside. None: as the model's own
            loss has it, which is measured on the first batch where the Trainer doesn't know it.
    """

    loss_shifts_labels: bool | None = None
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
        with _outputs_of(model) as outputs:
            found = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)  # type: ignore[misc]
        if self._tally is not None and inputs.get("labels") is not None:
            with torch.no_grad():
                losses, mask = self._token_losses(model, inputs, outputs[-1])
            self._tally.add("loss", losses, mask)
        return found

    def _token_losses(self, model: Any, inputs: dict[str, Any], outputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses and mask [B, T], the repeated items of the last batch masked."""
        this: Any = self
        if getattr(outputs, "log_probs", None) is not None:  # TRL's fused head: shifted already
            losses, mask = -outputs.log_probs, outputs.label_mask.clone()
        else:
            if self.loss_shifts_labels is None:
                self.loss_shifts_labels = this._loss_shifts_labels or _shifts(model, this._prepare_inputs(inputs))
            losses, mask = _losses(_logits_of(outputs), inputs, shifts=self.loss_shifts_labels)
        _mask_repeated(this.accelerator, inputs, mask)
        return losses, mask


def _losses(logits: torch.Tensor, inputs: Mapping[str, Any], *, shifts: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and mask: [B, T], or [B, T-1] where the labels are shifted here."""
    labels = inputs["labels"]
    if inputs.get("shift_labels") is not None:
        labels = inputs["shift_labels"]
    elif shifts:
        logits, labels = logits[:, :-1], labels[:, 1:]
    labels = labels.to(logits.device)
    losses = cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(labels.shape), labels != IGNORED


def _shifts(model: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether the model's own loss shifts labels: which of the two means it equals, on a batch with all labels valid.

    Asked of decoders only whose class the Trainer has no `loss_type` for.
    """
    config = getattr(model, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False) or getattr(model, "loss_type", "") is not None:
        return False
    labels = inputs["labels"].clamp(min=0)
    outputs = model(**{**inputs, "labels": labels})
    own = float(outputs["loss"] if isinstance(outputs, dict) else outputs[0])
    shifted, beside = (
        float(_losses(_logits_of(outputs), {"labels": labels}, shifts=shifts)[0].mean()) for shifts in (True, False)
    )
    return abs(own - shifted) < abs(own - beside)


def _logits_of(outputs: Any) -> torch.Tensor:
    """The logits [B, T, V] among a model's outputs."""
    if isinstance(outputs, Mapping):
        logits: torch.Tensor = outputs["logits"]
        return logits
    return next(part for part in outputs if isinstance(part, torch.Tensor) and part.dim() == 3)


def _mask_repeated(accelerator: Any, inputs: Mapping[str, Any], mask: torch.Tensor) -> None:
    """Mask, in place, the items of this process's batch that repeat others, to make all batches even.

    Batches of all processes one after the other are the data in order; in the last round, only the first `remainder`
    of them are there.
    """
    state = accelerator.gradient_state
    if not state.end_of_dataloader or state.remainder <= 0 or accelerator.num_processes == 1:
        return
    flat = _starts(inputs)
    batch = mask.shape[0] if flat is None else state.active_dataloader.total_batch_size // accelerator.num_processes
    own = min(max(state.remainder - accelerator.process_index * batch, 0), batch)
    if flat is None or own == 0:
        mask[own:] = False
    elif own < batch:
        if len(flat) != batch:
            raise InputError(
                f"The last evaluation batch has {len(flat)} sequences in one row, from {batch} items of which "
                f"{batch - own} repeat others. They can't be told apart where sequences are packed or padded. Pass "
                "eval_packing=False without pad_to_multiple_of, or a per_device_eval_batch_size that leaves no rest."
            )
        columns = inputs["labels"].shape[1]
        mask[:, flat[own] - (columns - mask.shape[1]) :] = False


def _starts(inputs: Mapping[str, Any]) -> list[int] | None:
    """Where sequences begin in a batch without padding, [1, all tokens]; None for an ordinary batch."""
    if inputs.get("attention_mask") is not None or inputs.get("cu_seq_lens_q") is None:
        return None
    starts: list[int] = inputs["cu_seq_lens_q"].tolist()[:-1]
    return starts


@contextmanager
def _outputs_of(model: torch.nn.Module) -> Iterator[list[Any]]:
    """What the model puts out meanwhile, the last only: a Trainer doesn't always hand it on."""
    seen: list[Any] = []
    hook = model.register_forward_hook(lambda module, given, outputs: seen.__setitem__(slice(None), [outputs]))
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def _kept_last_batch(trainer: Any) -> Iterator[None]:
    before, trainer.args.dataloader_drop_last = trainer.args.dataloader_drop_last, False
    try:
        yield
    finally:
        trainer.args.dataloader_drop_last = before

"""Lightning: every token of an optimizer step weighs the same, whatever `accumulate_grad_batches` and devices are.

    class Model(lightning.LightningModule):
        def training_step(self, batch, index):
            ...
            return self.token_mean.count(token_losses, mask)     # or (loss_sum, valid_tokens)

    lightning.Trainer(callbacks=[TokenMean(log="train_loss")], accumulate_grad_batches=4, ...)

Lightning divides the loss by the number of batches it accumulates and the strategy averages over ranks; both are
measured in the first step and taken out again. The callback finishes the step before Lightning clips. For logged
metrics use a `weighbridge.Tally`, reduced at the end of the epoch.
"""

from __future__ import annotations

from typing import Any

from weighbridge.errors import MissingExtra

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    raise MissingExtra.of("Training with Lightning", "lightning") from None

from weighbridge.training import GradientNormalizer

__all__ = ["TokenMean"]


class TokenMean(Callback):  # type: ignore[misc]
    """Scales the gradients before clipping and stepping; gives the module its `token_mean` to count with.

    Args:
        log: the name under which the mean loss of each step over all ranks is logged; "" logs nothing.
        group: the ranks that share the denominator; None: all.
        check: as for `GradientNormalizer`.
    """

    def __init__(self, *, log: str = "", group: Any = None, check: Any = "first step") -> None:
        self._log = log
        self._group = group
        self._check = check
        self._normalizer: GradientNormalizer | None = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Watch the wrapped model; its ranks are together by now."""
        self._normalizer = GradientNormalizer(trainer.strategy.model, self._group, check=self._check)
        module.token_mean = self._normalizer

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Finish the step: before Lightning clips."""
        assert self._normalizer is not None
        mean = self._normalizer.finish()
        if self._log and mean.value is not None:
            module.log(self._log, mean.value, rank_zero_only=True)

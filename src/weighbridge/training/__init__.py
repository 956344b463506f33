"""Gradients in which every token of the step weighs the same.

scale = loss_scale(valid_tokens, group)        # where the step's tokens can be counted ahead
(loss_sum * scale).backward()

normalizer = GradientNormalizer(model, group)  # where they can't
for batch in microbatches:
    normalizer.backward(loss_sum, valid_tokens)
mean = normalizer.finish()                     # before clipping
"""

from weighbridge.errors import MissingExtra

try:
    import torch  # noqa: F401  said here once for everything below
except ModuleNotFoundError:
    raise MissingExtra.of("Training", "torch") from None

from weighbridge.training.judge import PieceCheck, StepCheck
from weighbridge.training.normalizer import GradientNormalizer
from weighbridge.training.scale import loss_scale
from weighbridge.training.step_mean import StepMean

__all__ = ["GradientNormalizer", "PieceCheck", "StepCheck", "StepMean", "loss_scale"]

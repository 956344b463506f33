"""GradientNormalizer: backward with loss sums, then one scaling when the step's tokens are known.

Every gradient of a step is linear in the loss, so dividing at the end is the same as dividing before: add up the loss
sums' gradients, let the wrapper reduce them, count the tokens over all ranks, and multiply once by what the wrapper
divided by over N. No token has to be counted ahead, no data loader looked into.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from weighbridge.collectives import DEFAULT_LIMIT, collective_for
from weighbridge.errors import InputError
from weighbridge.exact import WIDE, ExactSum, add_lanes, exact_lanes, widen_lanes
from weighbridge.mean import Exactness, Mean
from weighbridge.training import proof
from weighbridge.training.gradients import Gradients, gradients_of
from weighbridge.training.scale import _as_count, sum_counts
from weighbridge.training.watch import Key, Watch

__all__ = ["GradientNormalizer", "StepMean"]

Backward = Callable[[torch.Tensor], Any]
Check = Callable[[proof.StepCheck], None]


class StepMean:
    """The mean loss of a step over all ranks; copied from the device when it is first looked at.

    Attributes:
        lanes: the exact state, int64 [70].
    """

    def __init__(self, lanes: torch.Tensor, exactness: Exactness) -> None:
        self.lanes = lanes
        self._exactness = exactness

    @cached_property
    def mean(self) -> Mean:
        """The pair itself."""
        return Mean(ExactSum.from_lanes(self.lanes.tolist()), exactness=self._exactness)

    @property
    def value(self) -> float | None:
        """The mean loss; None where the step had no token."""
        return self.mean.value

    @property
    def count(self) -> int:
        """Tokens of the step over all ranks."""
        return self.mean.count

    def __repr__(self) -> str:
        return f"Step{self.mean!r}"


class GradientNormalizer:
    """Makes every token of a step weigh 1/N in the gradient, N being the step's tokens over all microbatches and ranks.

        normalizer = GradientNormalizer(model, group)
        for batch in microbatches:
            normalizer.backward(loss_sum, valid_tokens)   # or (token_losses, mask)
        mean = normalizer.finish()                        # before clipping and optimizer.step()

    The first step is checked: what the wrapper divides by is measured on each parameter's gradient, and if the scaled
    gradient is not the token mean's, `finish` raises on every rank, with the weight of each microbatch. Afterwards all
    hooks are gone. A rank whose data have run out still has to run a backward for the wrapper's sake: give it a batch
    whose labels are all masked.

    Args:
        model: the wrapped model: DDP, FSDP2 or HSDP (`fully_shard`), FSDP1, a DeepSpeed engine, or a plain module.
        group: the ranks that share the denominator: a process group, a mesh (with DP x CP, both axes), or None.
        backward: what runs the backward of a scalar, where it is not `loss.backward()`: `accelerator.backward`, or
            `engine.backward`. It may scale the loss: that is measured too.
        divisor: what the wrapper divides gradients by; None measures it in the first step.
        check: "first step", "never", or a function that is given the `StepCheck` of the first step and raises itself.
        limit: seconds to wait for other ranks.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> normalizer = GradientNormalizer(model)
    >>> for tokens in (1, 3):
    ...     normalizer.backward(model(torch.ones(tokens, 2)), torch.ones(tokens, 1, dtype=torch.bool))
    >>> normalizer.finish().count, model.weight.grad.tolist()
    (4, [[1.0, 1.0]])
    """

    def __init__(
        self,
        model: torch.nn.Module,
        group: Any = None,
        *,
        backward: Backward | None = None,
        divisor: float | None = None,
        check: str | Check = "first step",
        limit: float = DEFAULT_LIMIT,
    ) -> None:
        if isinstance(check, str) and check not in ("first step", "never"):
            raise InputError(f"check is {check!r}. It is 'first step', 'never' or a function. Pass one of these.")
        if check == "never" and divisor is None:
            raise InputError(
                "check is 'never' and no divisor is given. It is measured in the first step's check. Pass divisor=."
            )
        self._gradients: Gradients = gradients_of(model)
        self._ranks = collective_for(group, limit=limit)
        self._backward: Backward = backward or self._gradients.backward
        self._divisor = divisor
        self._given = divisor is not None
        self._by_parameter: dict[int, float] = {}
        self._check = check
        self._watch = None if check == "never" else Watch(self._gradients.module)
        self._tokens: list[torch.Tensor] = []
        self._lanes: torch.Tensor | None = None
        self._exactness = Exactness.TOKENS

    def backward(self, loss: torch.Tensor, valid: Any) -> None:
        """Run the backward of one microbatch. No collective of ours, and no copy to the host.

        Args:
            loss: the sum of the microbatch's losses, []; or the losses of its tokens, any shape.
            valid: for a sum, the number of its tokens, int or integer tensor []; for losses, a bool mask of the same
                shape.

        Raises:
            InputError: shapes or types don't fit, or the loss does not depend on the model.
        """
        self._backward(self.count(loss, valid))

    def count(self, loss: torch.Tensor, valid: Any) -> torch.Tensor:
        """Count one microbatch and hand back its loss sum [], for whoever runs the backward: a framework, mostly.

        The arguments and errors are those of `backward`.
        """
        if not loss.requires_grad:
            raise InputError(
                "The loss does not depend on the model: it has no gradient. Every rank has to run a backward through "
                "the model, or the others wait for it. For a rank without data, mask all labels of some batch."
            )
        if isinstance(valid, torch.Tensor) and valid.dtype == torch.bool:
            lanes = exact_lanes(loss.detach(), valid)
            total, tokens = torch.where(valid, loss, 0).sum(), valid.sum()
        elif loss.numel() != 1:
            raise InputError(
                f"The loss has shape {list(loss.shape)} and comes without a mask. Pass its sum and the number of "
                "tokens, or the losses and a bool mask of their shape."
            )
        else:
            total, tokens = loss.reshape(()) * 1, _as_count(valid, "").to(loss.device)
            lanes = _row(total.detach(), tokens)
            self._exactness = Exactness.ROWS
        self._tokens.append(tokens)
        self._add(lanes)
        if self._watch is not None:
            self._watch.begin_piece(total)
        return total

    def finish(self) -> StepMean:
        """Scale the reduced gradients in place, so that every token weighs 1/N. One integer all-reduce.

        Returns:
            the mean loss of the step over all ranks.

        Raises:
            WeightError: in the first step, on every rank: the tokens don't weigh the same.
            CollectiveError: a rank did not take part within the limit.
        """
        lanes = self._lanes if self._lanes is not None else torch.zeros(WIDE.lanes, dtype=torch.int64)
        summed = sum_counts(self._gradients.place(lanes), self._ranks)
        if self._watch is None:
            self._scale(summed)
        elif int(summed[WIDE.limbs]) == 0:
            self._watch.forget()  # nothing to measure, and nothing to scale: all gradients are zero
        else:
            prints = self._measure()
            self._scale(summed)
            self._prove(prints, int(summed[WIDE.limbs]))
        mean = StepMean(summed, self._exactness)
        self._tokens, self._lanes, self._exactness = [], None, Exactness.TOKENS
        return mean

    @property
    def divisor(self) -> float | None:
        """What the wrapper divides by: as given, or measured in the first step (None before)."""
        return self._divisor

    def _scale(self, summed: torch.Tensor) -> None:
        divisor = self._divisor
        assert divisor is not None
        scale = 1.0 / summed[WIDE.limbs].clamp(min=1).double()
        self._gradients.scale(scale, lambda parameter: self._by_parameter.get(id(parameter), divisor))

    def _add(self, lanes: Any) -> None:
        wide: Any = widen_lanes(lanes) if lanes.shape[0] != WIDE.lanes else lanes
        tensor = wide if isinstance(wide, torch.Tensor) else torch.from_numpy(np.array(wide))
        self._lanes = tensor if self._lanes is None else add_lanes(self._lanes, tensor.to(self._lanes.device))

    def _measure(self) -> proof.Prints:
        assert self._watch is not None
        tokens = [int(count) for count in self._tokens]
        prints = proof.bring_together(self._watch.local(), tokens, self._ranks)
        prints.whole = self._whole(prints.keys)
        if self._divisor is None:
            by_key = proof.divisors(prints)
            self._divisor = float(np.median(list(by_key.values())))
            for key, value in by_key.items():
                parameter = self._watch.parameter(key)
                if parameter is not None and value != self._divisor:
                    self._by_parameter[id(parameter)] = value
        return prints

    def _whole(self, keys: list[Key]) -> dict[Key, Any]:
        """Fingerprints of the reduced gradients as they are now."""
        assert self._watch is not None
        found = {}
        for key in keys:
            parameter = self._watch.parameter(key)
            prints = None if parameter is None else self._gradients.prints(self._watch.modules[key[0]], parameter)
            if prints is not None:
                found[key] = prints.cpu().numpy()
        return found

    def _prove(self, prints: proof.Prints, global_tokens: int) -> None:
        assert self._watch is not None
        assert self._divisor is not None
        scaled = self._whole(prints.keys)
        check = proof.check_step(
            prints,
            scaled,
            global_tokens,
            divisor=self._divisor,
            given=self._given,
            epsilon=self._gradients.epsilon(),
            ranks=self._ranks,
        )
        self._watch.detach()
        self._watch = None
        if callable(self._check):
            self._check(check)
        elif not check.is_right and check.difference > proof.COARSE:
            raise proof.refusal(check)
        elif not check.is_right:
            warnings.warn(
                f"The first step could only be checked to {check.difference:.2g}: its gradients seem to be reduced in "
                "a coarse dtype. Weights may be off by that much.",
                stacklevel=3,
            )


def _row(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """One row, a sum already taken and its count, as lanes; nothing depends on the values."""
    made: Any = exact_lanes(total.reshape(1), (count > 0).reshape(1))
    lanes = made if isinstance(made, torch.Tensor) else torch.from_numpy(made)
    limbs = lanes.shape[0] - 4
    lanes[limbs:] *= count.to(lanes.device)
    return lanes

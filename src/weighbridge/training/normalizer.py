"""GradientNormalizer: backward with loss sums, then one scaling when the step's tokens are known.

Every gradient of a step is linear in the loss, so dividing at the end is the same as dividing before: add up the loss
sums' gradients, let the wrapper reduce them, count the tokens over all ranks, and multiply once by what the wrapper
divided by over N. No token has to be counted ahead, no data loader looked into.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from weighbridge.collectives import DEFAULT_LIMIT, collective_for
from weighbridge.errors import InputError
from weighbridge.exact import WIDE
from weighbridge.training import judge, proof
from weighbridge.training.counting import StepCounts
from weighbridge.training.gradients import Gradients, gradients_of
from weighbridge.training.scale import _as_count, sum_counts
from weighbridge.training.step_mean import StepMean
from weighbridge.training.terms import TermGradients, agreed_coefficients
from weighbridge.training.watch import Key, Watch

__all__ = ["GradientNormalizer"]

Backward = Callable[..., Any]
Check = Callable[[judge.StepCheck], None]
CHECKS = ("first step", "gradient", "never")
ONE = ""  # the name of the only term of a loss


class GradientNormalizer:
    """Makes every token of a step weigh 1/N in the gradient, N being the step's tokens over all microbatches and ranks.

        normalizer = GradientNormalizer(model, group)
        for batch in microbatches:
            normalizer.backward(loss_sum, valid_tokens)   # or (token_losses, mask)
        mean = normalizer.finish()                        # before clipping and optimizer.step()

    Several terms, each a mean over its own tokens, are named with their coefficients, and handed in as pairs:

        normalizer = GradientNormalizer(model, group, terms={"main": 1.0, "mtp": 0.3})
        normalizer.backward({"main": (loss_sum, valid_tokens), "mtp": (mtp_losses, mtp_mask)})
        means = normalizer.finish()                       # means["mtp"].value

    The first step is weighed, and `finish` raises on every rank, with the weight of each microbatch and the rule that
    gives it, where tokens don't weigh the same. What the wrapper divides by is measured on each parameter's gradient.
    What tokens weigh in the loss sum is read off autograd's graph, for the losses that torch has functions for.
    Afterwards all hooks are gone. A rank whose data have run out still has to run a backward for the wrapper's sake:
    give it a batch whose labels are all masked. With a loss scaler, unscale the gradients before `finish`.

    Args:
        model: the wrapped model: DDP, FSDP2 or HSDP (`fully_shard`), FSDP1, a DeepSpeed engine, or a plain module.
        group: the ranks that share the denominator: a process group, a mesh (with DP x CP, both axes), or None.
        terms: the terms of the loss and what each is multiplied by; None where there is one. Each term costs a backward
            and memory for its gradients (see `loss_scale` for terms that can be counted ahead). DDP, FSDP2, HSDP and
            plain modules.
        backward: what runs the backward of a scalar, where it is not `loss.backward()`: `accelerator.backward`, or
            `engine.backward`. It may scale the loss: that is measured too.
        divisor: what the wrapper divides gradients by; None measures it in the first step.
        check: "first step"; "gradient" to leave out what happens before the loss sum, where tokens are meant to weigh
            differently; "never"; or a function that is given the `StepCheck` of the first step and raises itself.
        limit: seconds to wait for other ranks.

    Raises:
        InputError: an argument is none of these, or terms differ between ranks.

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
        terms: Mapping[str, float] | None = None,
        backward: Backward | None = None,
        divisor: float | None = None,
        check: str | Check = "first step",
        limit: float = DEFAULT_LIMIT,
    ) -> None:
        self._gradients: Gradients = gradients_of(model)
        self._ranks = collective_for(group, limit=limit)
        self._coefficients = {ONE: 1.0}
        self._buffers: TermGradients | None = None
        if terms is not None:
            self._coefficients = agreed_coefficients(terms, self._ranks)
            self._buffers = TermGradients(self._gradients, world_size=self._ranks.world_size, limit=limit)
            divisor = 1.0 if self._buffers.reduces else divisor
        if isinstance(check, str) and check not in CHECKS:
            raise InputError(f"check is {check!r}. It is one of {', '.join(map(repr, CHECKS))}, or a function.")
        if check == "never" and divisor is None:
            raise InputError(
                "check is 'never' and no divisor is given. It is measured in the first step's check. Pass divisor=."
            )
        self._backward: Backward = backward or self._gradients.backward
        self._divisor = divisor
        self._given = divisor is not None
        self._by_parameter: dict[int, float] = {}
        self._check = check
        self._watch = None if check == "never" else Watch(self._gradients.module)
        self._second = False  # the step after the checked one begins
        self._counts = StepCounts(self._coefficients)

    def backward(self, loss: Any, valid: Any = None) -> None:
        """Run the backward of one microbatch. No collective of ours, and no copy to the host after the first step.

        Args:
            loss: the sum of the microbatch's losses, []; or the losses of its tokens, any shape. With `terms`: a dict
                with a pair (loss, valid) for each of them.
            valid: for a sum, the number of its tokens, int or integer tensor []; for losses, a bool mask of the same
                shape.

        Raises:
            InputError: shapes or types don't fit, or the loss does not depend on the model.
        """
        if self._buffers is None:
            self._backward(self.count(loss, valid))
            return
        pairs = self._pairs(loss)
        last = len(pairs) - 1
        for index, (term, (each, tokens)) in enumerate(pairs.items()):
            with self._buffers.of(term):
                self._backward(self._count(each, tokens, term), retain_graph=index < last)

    def count(self, loss: torch.Tensor, valid: Any) -> torch.Tensor:
        """Count one microbatch and hand back its loss sum [], for whoever runs the backward: a framework, mostly.

        The arguments and errors are those of `backward`, for a loss of one term.
        """
        if self._buffers is not None:
            raise InputError(
                "Several terms need a backward each, so nobody else can run it. Call backward with a dict of pairs, or "
                "count ahead and use loss_scale."
            )
        return self._count(loss, valid, ONE)

    def finish(self) -> Any:
        """Scale the reduced gradients in place, so that every token weighs 1/N. One integer all-reduce.

        Returns:
            the `StepMean` of the loss over all ranks; with `terms`, a dict with one for each.

        Raises:
            WeightError: in the first step, on every rank: the tokens don't weigh the same.
            InputError: no backward was run since the last `finish`.
            CollectiveError: a rank did not take part within the limit.
        """
        lanes = self._counts.lanes(self._gradients.device)
        summed = sum_counts(lanes.reshape(-1), self._ranks).reshape(lanes.shape)
        if not self._counts:  # said after the collective, so that no other rank waits for this one
            raise InputError(
                "finish was called without a backward since the last one. It belongs once after the last microbatch of "
                "a step, on every rank. For a rank without data, mask all labels of some batch and run its backward."
            )
        counts, self._counts = self._counts, StepCounts(self._coefficients)
        if self._watch is None:
            self._scale(summed)
        else:
            self._weigh(summed)
        means = {
            term: StepMean(row, counts.exactness(term))
            for term, row in zip(self._coefficients, summed.unbind(), strict=True)
        }
        return means[ONE] if self._buffers is None else means

    @property
    def divisor(self) -> float | None:
        """What the wrapper divides by: as given, or measured in the first step (None before)."""
        return self._divisor

    def _pairs(self, loss: Any) -> dict[str, Any]:
        """The terms' pairs in one order on all ranks."""
        names = list(self._coefficients)
        if not isinstance(loss, Mapping) or sorted(loss) != names or any(len(pair) != 2 for pair in loss.values()):
            raise InputError(
                f"The loss has the terms {', '.join(names)}. Pass a dict with a pair (loss, tokens) for each; a term "
                "without tokens in this microbatch has a mask that is False everywhere, or a sum of zero and 0."
            )
        return {name: loss[name] for name in names}

    def _count(self, loss: torch.Tensor, valid: Any, term: str) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            raise InputError(
                "The loss does not depend on the model: it has no gradient. Every rank has to run a backward through "
                "the model, or the others wait for it. For a rank without data, mask all labels of some batch."
            )
        masked = isinstance(valid, torch.Tensor) and valid.dtype == torch.bool
        if masked:
            self._counts.add_tokens(term, loss, valid)
            total, tokens = torch.where(valid, loss, 0).sum(), valid.sum()
        elif loss.numel() != 1:
            raise InputError(_unfit(loss, valid))
        else:
            total, tokens = loss.reshape(()) * 1, _as_count(valid, term, loss.device)
            self._counts.add_sum(term, total, tokens)
        if self._watch is not None:
            self._watch.begin_piece(total, tokens, term=term, mask=valid if masked else None)
        elif self._second:
            self._second = False
            total.register_hook(lambda _: self._look_for_leftovers())  # Lightning clears between loss and backward
        return total

    def _look_for_leftovers(self) -> None:
        """Once, when the second step's first backward begins: gradients of the first must not be added to it."""
        if self._gradients.leftover():
            raise InputError(
                "The gradients of the last step are still there when the next one begins, so they would be scaled and "
                "used twice. Call finish once a step, after its last microbatch, and optimizer.zero_grad() before the "
                "next backward."
            )

    def _scale(self, summed: torch.Tensor) -> None:
        """Put the final gradient into place; nothing is copied to the host."""
        divisor = self._divisor
        assert divisor is not None
        counts = summed[:, WIDE.limbs].clamp(min=1).double()
        scales = {term: value / counts[row] for row, (term, value) in enumerate(self._coefficients.items())}
        by_parameter = self._by_parameter
        if self._buffers is None:
            self._gradients.scale(scales[ONE], lambda parameter: by_parameter.get(id(parameter), divisor))
            return
        self._buffers.combine(scales)
        if divisor != 1 or by_parameter:
            one = torch.ones((), dtype=torch.float64, device=summed.device)
            self._gradients.scale(one, lambda parameter: by_parameter.get(id(parameter), divisor))

    def _weigh(self, summed: torch.Tensor) -> None:
        """As `_scale`, in a step that is checked."""
        assert self._watch is not None
        totals = dict(zip(self._coefficients, summed[:, WIDE.limbs].tolist(), strict=True))
        if not any(totals.values()):  # nothing to measure; all gradients are zero, and scaled by any number
            self._watch.forget()
            if self._buffers is not None:
                self._buffers.combine(dict.fromkeys(self._coefficients, torch.ones((), dtype=torch.float64)))
            return
        prints = proof.bring_together(self._watch.pieces, self._ranks)
        if not np.isfinite(prints.local).all():
            self._put_off()
            return
        if self._divisor is None:
            self._measure(prints, max(totals, key=lambda term: totals[term]))
        self._scale(summed)
        assert self._divisor is not None
        goals = [self._coefficients[place.term] / max(totals[place.term], 1) for place in prints.places]
        found = proof.check_gradient(
            prints,
            self._prints(prints.keys),
            goals,
            divisor=self._divisor if self._given else None,
            epsilon=self._gradients.epsilon(),
            ranks=self._ranks,
        )
        world_size, places = self._ranks.world_size, prints.places
        if self._check == "gradient":
            places = [proof.Place(place.rank, place.microbatch, place.term, place.tokens) for place in places]
        self._watch.detach()
        self._watch, self._second = None, True
        self._tell(
            judge.judge_step(places, found, totals, self._coefficients, divisor=self._divisor, world_size=world_size)
        )

    def _put_off(self) -> None:
        """A step whose gradients are not finite can't be weighed, and a loss scaler will skip it."""
        assert self._watch is not None
        self._watch.forget()
        if self._buffers is not None:
            self._buffers.combine(dict.fromkeys(self._coefficients, torch.ones((), dtype=torch.float64)))
        warnings.warn(
            "The gradients of the first step hold NaN or infinities: the next step is weighed in its place.",
            stacklevel=4,
        )

    def _measure(self, prints: proof.Prints, term: str) -> None:
        """What the wrapper divides by, from the gradients of `term`."""
        assert self._watch is not None
        mine = prints.of_term(term)
        if self._buffers is None:
            mine.whole = prints.whole = self._prints(prints.keys)
        else:
            with self._buffers.of(term):
                mine.whole = self._prints(prints.keys)
        by_key = proof.divisors(mine)
        self._divisor = float(np.median(list(by_key.values())))
        for key, value in by_key.items():
            parameter = self._watch.parameter(key)
            if parameter is not None and value != self._divisor:
                self._by_parameter[id(parameter)] = value

    def _prints(self, keys: list[Key]) -> dict[Key, Any]:
        """Fingerprints of the reduced gradients as they are now."""
        assert self._watch is not None
        found = {}
        with self._gradients.gathered():
            for key in keys:
                parameter = self._watch.parameter(key)
                prints = None if parameter is None else self._gradients.prints(self._watch.modules[key[0]], parameter)
                if prints is not None:
                    found[key] = prints.cpu().numpy()
        return found

    def _tell(self, check: judge.StepCheck) -> None:
        """Raise, warn or be silent about the first step."""
        if callable(self._check):
            self._check(check)
        elif check.verdict == "wrong":
            raise judge.refusal(check)
        elif check.difference > check.within:
            warnings.warn(
                f"The first step could only be checked to {check.difference:.2g}: its gradients seem to be reduced in "
                "a coarse dtype. Weights may be off by that much.",
                stacklevel=4,
            )
        elif check.verdict == "inconclusive":
            warnings.warn(f"The first step could not be judged: {check.reason}.", stacklevel=4)


def _unfit(loss: torch.Tensor, valid: Any) -> str:
    """What is wrong with losses that come without a mask."""
    if getattr(valid, "shape", ()):
        return (
            f"The mask is a {type(valid).__name__} of {valid.dtype}. A mask is a torch tensor of bool, True where a "
            "token counts. Pass mask.bool()."
        )
    return (
        f"The loss has shape {list(loss.shape)} and comes without a mask. Pass its sum and the number of tokens, or "
        "the losses and a bool mask of their shape."
    )

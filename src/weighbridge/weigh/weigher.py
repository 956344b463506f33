"""The weigher: one a process. It knows the probed module, the running window, and where the tracer stands.

Hooks elsewhere tell it what happens: a forward of the outermost module, a call of a loss function, a clip, an
optimizer about to step, a logged number. It answers by joining the probe and the tracer to losses, and by writing
records. It never communicates with other ranks and never draws a random number.

The tracer adds a constant to every counted item of one piece: none in step 0, then one piece a step. Evaluation
batches carry a constant of their own each, since a pass happens too seldom to go round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from weighbridge.weigh import calls, probe
from weighbridge.weigh.batch import Batch, digest_rows
from weighbridge.weigh.beside import Beside
from weighbridge.weigh.leave import goes_on
from weighbridge.weigh.options import Options
from weighbridge.weigh.process import call_site, in_backward, loaded_versions, place
from weighbridge.weigh.recorder import Recorder
from weighbridge.weigh.skipped import give_up_skipped_step
from weighbridge.weigh.window import Entry, Passes, Window

__all__ = ["Weigher"]

GOLDEN = 0.6180339887498949


class Weigher:
    """What one process knows of its weighing. `enabled` is False in data-loader workers and after the weighed steps."""

    def __init__(self, recorder: Recorder, options: Options) -> None:
        self.recorder = recorder
        self.options = options
        self.enabled = True
        self.probe: probe.Probe | None = None
        self.attach_in_eval = False  # the script was seen to train in evaluation mode
        self.step = 0
        self.window = Window()
        self.passes = Passes()
        self.batch = Batch(None, None, ())
        self.pieces_per_rank = 1
        self.constant = 32.0
        self.inside = False
        self.extended_to: int | None = None  # the parent asked for more steps
        self.quiet = False  # a forked helper of a process that weighs
        self.reporting = False  # a logger is at work, and may call another
        self.compiled = False
        self.engine: Any = None  # DeepSpeed's, which reads gradients in its own way
        self.tracer_off = False  # a step was skipped while its constant was in the loss
        self.stepped_without_loss = False  # and a record says so
        self.foreign_steps = 0  # steps of optimizers that don't hold the probe
        self.ties_outputs = False  # the wrapper looks for the probe in the graph of the forward's outputs
        self.wrapped = False  # a wrapper holds the probe and waits for its gradient to the end
        self.shares: list[int] | None = None  # the ranks that the wrapper reduces over, where it says so
        self.beside = Beside()
        self.clips: list[tuple[int, float]] = []  # of this window: microbatches done, and what gradients were scaled by

    # -- the outermost module -----------------------------------------------------------------------------------

    def adopt(self, owner: nn.Module, made: probe.Probe | None = None) -> None:
        """`owner` holds the probe that is used from now on; `made` is that, where it isn't a parameter of `owner`."""
        rank, world_size = place()
        self.probe = made if made is not None else probe.Probe(owner, rank=rank, world_size=world_size)
        self.probe.zero()
        mesh = getattr(self.probe.parameter, "device_mesh", None)
        self.recorder.write(
            "place",
            rank=rank,
            world_size=world_size,
            module=type(owner).__name__,
            shares=self.shares if mesh is None else mesh.mesh.flatten().tolist(),
            versions=loaded_versions(),
        )

    def training(self) -> bool:
        """True where a loss computed now is one to train on."""
        if self.probe is None or not torch.is_grad_enabled():
            return False
        return self.probe.owner.training or self.attach_in_eval

    def evaluating(self) -> bool:
        """True where a loss computed now belongs to an evaluation of the probed module."""
        return self.probe is not None and not self.probe.owner.training and not torch.is_grad_enabled()

    def begin_forward(self, args: Any, kwargs: Any) -> None:
        """The probed module's forward begins."""
        if not self.enabled or self.probe is None or in_backward():
            return
        if self.training():
            between = self.window.microbatch < 0 or self.window.has_loss
            if between and not goes_on(self):
                return
            self.passes.leave()
            give_up_skipped_step(self)
            self.window.begin_microbatch()
        elif self.evaluating():
            self.passes.begin_batch()
        self.batch = Batch.from_arguments(args, kwargs)

    def refresh(self) -> None:
        """Inside the probed module's forward, where a sharded probe is whole."""
        if self.probe is not None and self.training() and not in_backward():
            self.probe.refresh()

    # -- losses -------------------------------------------------------------------------------------------------

    def see(self, name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A loss function was called; its result, with the probe joined."""
        phase = "training" if self.training() else "evaluation" if self.evaluating() else None
        if self.inside or self.probe is None or phase is None:
            return original(*args, **kwargs)
        if not self.enabled:
            return self._linked(original(*args, **kwargs), phase)
        self.inside = True
        try:
            arguments = calls.bind(name, original, args, kwargs)
            call = calls.describe(name, original, arguments)
            if call is None or (phase == "training" and not calls.has_gradient(arguments)):
                return original(*args, **kwargs)
            if not call.items:
                # Nothing was selected for this microbatch, which is over all the same.
                (self.window if phase == "training" else self.passes.window).end_microbatch()
                return original(*args, **kwargs)
            return self._weigh_call(name, call, original, arguments, phase)
        finally:
            self.inside = False

    def _linked(self, result: Any, phase: str) -> Any:
        """After the weighed steps a wrapper may still wait for the probe's gradient: it gets zeros."""
        if (
            phase == "training"
            and self.probe is not None
            and self.probe.parameter is not None
            and isinstance(result, Tensor)
            and result.requires_grad
        ):
            return result + self.probe.link().to(result.dtype)
        return result

    def _weigh_call(self, name: str, call: calls.Call, original: Any, arguments: dict[str, Any], phase: str) -> Tensor:
        if call.reduction == "none":
            result = original(**arguments)
            losses = result.detach().reshape(-1)
        elif call.over_labels:
            result, losses = calls.from_labels(name, arguments)
        else:
            result, losses = original(**arguments), call.per_item()
        target = arguments["target"]
        entry = self._entry(name, call.items, call.shape, call.batch_rows, losses, call.valid, call.mass, phase, target)
        entry.user_masks = call.reduction == "none"
        return result + calls.probe_term(self._vector(entry), call, result)

    def _entry(
        self,
        term: str,
        items: int,
        shape: tuple[int, ...],
        batch_rows: bool,
        losses: Tensor,
        valid: Tensor | None,
        mass: Tensor | None,
        phase: str,
        target: Tensor | None,
    ) -> Entry:
        """A new entry of the running window, or the one that is being recomputed."""
        site, window = call_site(), self.window if phase == "training" else self.passes.window
        assert self.probe is not None
        if in_backward() and (replayed := window.replay_of(term, site, items)) is not None:
            return replayed
        # A reentrant checkpoint runs its first pass without gradients: its loss is seen in the backward pass only.
        rows = self.batch.rows_of(items, shape, batch_rows)
        slots = None
        if phase == "training":
            slots = self.probe.take(rows)
            rows = rows if slots is not None and slots[1] == rows else 1
        elif rows > probe.MOST_SLOTS:
            rows = 1
        contents = self._contents(rows, target)
        window.add(
            entry := Entry(
                phase,
                0,
                term,
                site,
                rows,
                slots,
                items // rows,
                losses,
                valid,
                mass,
                contents,
                0.0,
                str(losses.dtype).removeprefix("torch."),
            )
        )
        entry.constant = self._constant_for(entry)
        return entry

    def _contents(self, rows: int, target: Tensor | None) -> Tensor | None:
        contents = self.batch.digests(rows)
        if contents is not None and target is not None and target.dim() and target.numel() % rows == 0:
            contents = contents * 31 + digest_rows(target.reshape(rows, -1), 7).to(contents.device)
        return contents

    def _vector(self, entry: Entry) -> Tensor:
        """The zeros (plus the tracer's constant) [items] that join the losses of `entry`."""
        assert self.probe is not None
        items = entry.losses.numel()
        if entry.slots is None:
            vector = torch.zeros(items, device=entry.losses.device)
        else:
            values = self.probe.values(entry.slots).to(entry.losses.device)
            vector = values[:, None].expand(-1, items // entry.slots[1]).reshape(-1)
        if entry.user_masks and vector.requires_grad and not entry.replayed:
            vector.register_hook(lambda gradient: setattr(entry, "gradient", gradient.detach().clone()))
        if entry.constant:
            vector = vector + entry.constant
        if entry.mass is not None:
            vector = vector * entry.mass
        if entry.valid is not None:
            vector = torch.where(entry.valid, vector, torch.zeros_like(vector))
        return vector

    # -- what a user marks --------------------------------------------------------------------------------------

    def mark(self, losses: Tensor, mask: Tensor | None, name: str, coefficient: float | None) -> Tensor:
        """`losses` with the probe joined: one number an item, or a scalar term."""
        phase = "training" if self.training() else "evaluation" if self.evaluating() else None
        if not isinstance(losses, Tensor) or phase is None or (phase == "training" and not losses.requires_grad):
            return losses
        if not self.enabled:
            return self._linked(losses, phase)
        valid = None if mask is None else mask.detach().expand(losses.shape).reshape(-1) != 0
        detached = losses.detach().reshape(-1)
        entry = self._entry(
            name, losses.numel(), tuple(losses.shape), losses.dim() > 1, detached, valid, None, phase, None
        )
        entry.marked, entry.coefficient, entry.scalar = True, coefficient, losses.dim() == 0
        entry.user_masks = mask is None and not entry.scalar
        if entry.scalar:
            entry.constant = 0.0
        return losses + self._vector(entry).reshape(losses.shape).to(losses.dtype)

    # -- the tracer ---------------------------------------------------------------------------------------------

    def _constant_for(self, entry: Entry) -> float:
        """The tracer's constant for this entry: large beside a loss, small enough for exp() and the loss's dtype."""
        if not self.options.tracer or self.tracer_off:
            return 0.0
        size = self.constant if entry.dtype != "float16" else min(self.constant, 16.0)
        if entry.phase == "evaluation":
            # Distinct by batch, rank and pass, and spread evenly: every rule gives another value, in every pass.
            turn = (entry.microbatch + 1) * GOLDEN + self.probe_rank * 0.377 + self.passes.number * 0.223
            return size * (0.5 + turn % 1.0)
        return size if self.step and self._traced() == (self.probe_rank, entry.microbatch) else 0.0

    @property
    def probe_rank(self) -> int:
        return 0 if self.probe is None else self.probe.rank

    def _traced(self) -> tuple[int, int]:
        """(rank, microbatch) that the tracer is on in this step; all ranks and microbatches in turn."""
        world_size = 1 if self.probe is None else self.probe.world_size
        piece = (self.step - 1) % (world_size * self.pieces_per_rank)
        return piece % world_size, piece // world_size

    def _choose_constant(self, rows: list[dict[str, Any]]) -> None:
        tokens = sum(sum(row["mass"]) for row in rows)
        mean = abs(sum(sum(row["loss_sum"]) for row in rows) / tokens) if tokens else 0.0
        if math.isfinite(mean) and mean > 1.0:
            self.constant = 32.0 * 2.0 ** math.ceil(math.log2(mean))

    # -- steps --------------------------------------------------------------------------------------------------

    def end_step(
        self, gradient: Tensor | None, *, dtype: torch.dtype | None, clips: list[tuple[int, float]], optimizer: str
    ) -> None:
        """The optimizer that holds the probe is about to step, with `gradient` on the probe."""
        assert self.probe is not None
        readings, held = ([], []) if gradient is None else self.probe.read(gradient)
        rows = [entry.to_rows() for entry in self.window.entries]
        for row in rows:
            self.recorder.write("microbatch", step=self.step, **row)
        self.recorder.write(
            "step",
            step=self.step,
            microbatches=self.window.microbatches,
            readings=readings,
            held=held,
            capacity=self.probe.capacity,
            dtype=str(dtype).removeprefix("torch."),
            clips=clips,
            optimizer=optimizer,
            read=gradient is not None,
            compiled=self.compiled,
            foreign_steps=self.foreign_steps,
            beside=None if self.engine is not None else self.beside.sums(self.probe.owner),
        )
        if self.step == 0:
            self.pieces_per_rank = max(1, self.window.microbatches)
            self._choose_constant([row for row in rows if not row["scalar"]])
        self.step += 1
        self.forget_window()

    def forget_window(self) -> None:
        """The running step is over, or was given up."""
        self.window = Window()
        if self.probe is not None:
            self.probe.forget()

    def take_clips(self) -> list[tuple[int, float]]:
        """The clips since the last call."""
        seen, self.clips = self.clips, []
        return seen

    def last_step(self) -> int:
        """Number of steps to weigh, as far as it is known now."""
        if self.extended_to is not None:
            return self.extended_to
        if self.options.steps is not None:
            return self.options.steps
        world_size = 1 if self.probe is None else self.probe.world_size
        return max(2, min(32, 1 + world_size * self.pieces_per_rank)) if self.options.tracer else 3

    # -- logged numbers -----------------------------------------------------------------------------------------

    def report(self, name: str, value: Any, source: str) -> None:
        """A number reached a logger."""
        if not self.enabled or self.probe is None:
            return
        number = _number(value)
        if number is None:
            return
        phase = "evaluation" if self.passes.batches else "training"
        if phase == "evaluation":
            for row in self.passes.unwritten():
                self.recorder.write("microbatch", step=self.step, **row)
        else:
            for entry in self.window.entries:
                self.recorder.write("microbatch", step=self.step, unfinished=True, **entry.to_rows())
        self.recorder.write(
            "reported",
            name=name,
            value=number,
            source=source,
            step=self.step,
            phase=phase,
            microbatches=self.window.microbatches,
            **self.passes.reported(phase),
        )


def _number(value: Any) -> float | None:
    """`value` as a float, where it is one number."""
    if isinstance(value, Tensor):
        value = value.detach()
        if value.numel() != 1:
            return None
    if isinstance(value, (bool, str, bytes)) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None

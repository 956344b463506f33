"""A step that the script skipped: its gradients were thrown away, and no optimizer stepped.

Loss-spike guards do that, and the tracer's constant can be the spike that sets one off. Without a step the window
would stay open and join the next one, and its microbatches would look as if somebody had dropped them. So where one
microbatch more begins than a step has, and the probe's gradient was cleared meanwhile, the window is given up, and the
tracer stays off from then on: logged numbers are judged by their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["give_up_skipped_step"]


def give_up_skipped_step(weigher: Weigher) -> None:
    """Called where a training microbatch begins: forget the running window if its step was skipped."""
    window = weigher.window
    if not (weigher.options.tracer and weigher.step and not weigher.tracer_off):
        return
    if not window.has_loss or window.microbatches < weigher.pieces_per_rank or not _cleared(weigher):
        return
    weigher.tracer_off = True
    weigher.recorder.write("guarded", step=weigher.step)
    weigher.forget_window()


def _cleared(weigher: Weigher) -> bool:
    """Whether nothing is left on the probe of what the window's microbatches gave it."""
    parameter = None if weigher.probe is None else weigher.probe.parameter
    gradient: Tensor | None = None if parameter is None else parameter.grad
    if gradient is None:
        return True
    local: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return not bool(local.detach().any())

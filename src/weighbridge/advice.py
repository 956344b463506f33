"""What to change in the framework at hand: a rule's remedy, in that framework's own words.

`rules` says what to change in any loop. Where a run shows which framework's loop it was, and that framework has a
setting or a recipe for it, one more sentence says so. Entries are data: (framework, rule) -> sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from weighbridge.outcome import Finding, Verdict

__all__ = ["ADVICE", "framework_of", "with_advice"]

ADVICE: dict[tuple[str, str], str] = {
    (
        "transformers",
        "mean-of-rank-means",
    ): "With the transformers Trainer: set average_tokens_across_devices=True in TrainingArguments.",
    (
        "transformers",
        "mean-of-microbatch-means",
    ): "With the transformers Trainer: the model ignores num_items_in_batch. Let its forward take it, or give "
    "the Trainer a compute_loss_func that divides the summed loss by it.",
    (
        "transformers evaluation",
        "weighted-by-sequences",
    ): "The Trainer's evaluation averages batch means by their number of sequences. Return summed losses and "
    "token counts from compute_metrics instead, or evaluate with batches of one process.",
    (
        "accelerate",
        "mean-of-microbatch-means",
    ): "With Accelerate: sum the losses, count the window's tokens on all ranks first, and scale by num_processes "
    "times gradient_accumulation_steps over that count.",
    (
        "lightning",
        "mean-of-microbatch-means",
    ): "With Lightning: return the loss sum times world_size times accumulate_grad_batches over the tokens of the "
    "whole window, counted on all ranks before its first backward.",
    (
        "lightning",
        "last-microbatch-only",
    ): "With Lightning: self.log at a step shows the last microbatch only. Gather loss sums and counts over the "
    "window, and log their quotient once.",
}


def framework_of(sources: Sequence[str], versions: dict[str, str]) -> str | None:
    """The framework whose training loop ran, as far as its loggers and its imports show it."""
    if "transformers.Trainer.log" in sources:
        return "transformers"
    if "lightning.Logger.log_metrics" in sources:
        return "lightning"
    others = {"transformers", "lightning", "pytorch_lightning", "deepspeed"}
    return "accelerate" if "accelerate" in versions and not others & set(versions) else None


FindingT = TypeVar("FindingT", bound=Finding)


def with_advice(finding: FindingT, framework: str | None, phase: str = "training") -> FindingT:
    """`finding`, with the framework's sentence added to its remedy where there is one."""
    if framework is None or finding.rule is None or finding.verdict is not Verdict.WRONG:
        return finding
    key = framework if phase == "training" else f"{framework} {phase}"
    advice = ADVICE.get((key, finding.rule))
    if advice is None or advice in finding.remedy:
        return finding
    return finding.model_copy(update={"remedy": f"{finding.remedy} {advice}".strip()})

"""One outcome from how the command ended, what its records hold, and what was judged.

The verdict on the whole is the worst of its parts. A wrong verdict stands however the command ended, because wrong
weights were read; a right one needs all weighed steps, so a command that failed before they were done leaves it open.
"""

from __future__ import annotations

import platform
import signal
from collections.abc import Sequence
from typing import Protocol

import weighbridge
from weighbridge.outcome import Finding, Gradient, Outcome, Reported, Verdict
from weighbridge.readings import GradientReading, LoggedNumber
from weighbridge.weigh.launch import CommandResult
from weighbridge.weigh.running import DeadRank

__all__ = ["Assembly", "conclude", "not_comparable", "not_reduced", "unread_gradient"]

SEVERITY = [Verdict.RIGHT, Verdict.INCONCLUSIVE, Verdict.WRONG]
MARK_ADVICE = (
    "weighbridge sees the loss functions of torch. Mark the per-token losses before they are reduced: "
    "losses = weighbridge.mark(losses, mask)"
)


class Assembly(Protocol):
    """What the records of a run hold, put together over its processes."""

    @property
    def gradient(self) -> GradientReading | None: ...
    @property
    def logged(self) -> tuple[LoggedNumber, ...]: ...
    @property
    def world_size(self) -> int: ...
    @property
    def microbatches(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def problems(self) -> Sequence[str]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def versions(self) -> dict[str, str]: ...
    @property
    def saw_torch(self) -> bool: ...
    @property
    def saw_loss(self) -> bool: ...
    @property
    def comparable(self) -> bool: ...
    @property
    def left_out(self) -> bool: ...
    @property
    def not_finite(self) -> str: ...


def unread_gradient(assembly: Assembly, result: CommandResult) -> Gradient:
    """The gradient's finding where no weight was read, with the reason and what to do."""
    return Gradient(verdict=Verdict.INCONCLUSIVE, reason=_why_unread(assembly, result))


def _why_unread(assembly: Assembly, result: CommandResult) -> str:
    stepped = assembly.steps > 0 or any(process.steps for process in result.processes)
    if assembly.problems:
        return assembly.problems[0]
    if not assembly.saw_torch:
        return (
            "no process of the command ran a PyTorch model, or none came so far. weighbridge weighs PyTorch training "
            "in the processes that the command starts. Check that the command trains, that it hands its "
            "environment on to its workers, and that it starts Python without -I, -E and -S."
        )
    lossless = any(process.stepped_without_loss for process in result.processes)
    if not assembly.saw_loss and (stepped or lossless):
        return f"no loss was seen, though an optimizer stepped. {MARK_ADVICE}"
    if not stepped:
        return (
            "no optimizer step was seen. The weights are read when an optimizer is about to step. "
            "Let the command train at least one step, with an optimizer of torch.optim."
        )
    return f"the probe's gradient was read in none of {_count(max(assembly.steps, 1), 'step')}."


def not_comparable(gradient: Gradient, assembly: Assembly) -> Gradient:
    """The gradient's finding where ranks disagree about the microbatches of a step: its pieces, and no verdict."""
    reason = next((text for text in assembly.problems if "can't be compared" in text), "the ranks' steps don't match.")
    return _undecided(gradient, reason)


def not_reduced(gradient: Gradient) -> Gradient:
    """The gradient's finding where other gradients are the same on all ranks and the probe's is not."""
    return _undecided(
        gradient,
        "the ranks hold the same gradients, and the probe's differ: what reduces gradients here collected its "
        "parameters before the probe joined them. weighbridge gives the probe to DDP, FSDP and DeepSpeed, and to loops "
        "that reduce what model.parameters() gives at that time. Collect the parameters in the step, or wrap the model "
        "in one of these.",
    ).model_copy(update={"pieces": [], "terms": []})


def _undecided(gradient: Gradient, reason: str) -> Gradient:
    no_rule = {"rule": None, "factor": None, "factor_name": None, "indistinguishable": (), "story": "", "remedy": ""}
    return gradient.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "reason": reason} | no_rule)


def conclude(
    *,
    command: Sequence[str],
    objective: str,
    assembly: Assembly,
    result: CommandResult,
    gradient: Gradient,
    reported: Sequence[Reported],
    unrelated: Sequence[str],
    steps_asked: int | None,
    keep_running: bool,
    timeout: float,
    notes: Sequence[str] = (),
) -> Outcome:
    """Put everything that one weighing found into one outcome."""
    complete = result.complete or (keep_running and assembly.steps >= (steps_asked or 1))
    stopped = None if complete else _why_stopped(result, assembly.world_size, timeout)
    verdict, reason = _overall(gradient, reported, stopped or assembly.not_finite or None)
    own_notes = list(notes)
    if not complete and stopped is None and steps_asked and 0 < assembly.steps < steps_asked:
        own_notes.append(
            f"the command ended by itself after {assembly.steps} of {_count(steps_asked, 'step')} to be weighed."
        )
    return Outcome(
        command=[_printable(part) for part in command],
        world_size=assembly.world_size,
        microbatches=assembly.microbatches,
        steps=assembly.steps,
        objective=objective,
        verdict=verdict,
        reason=reason[:1].upper() + reason[1:],
        gradient=gradient,
        reported=list(reported),
        unrelated=list(unrelated),
        problems=_without_repeats(_problems(result, assembly, stopped)),
        notes=_without_repeats([*assembly.notes, *own_notes]),
        command_exit_code=result.exit_code,
        versions={"weighbridge": weighbridge.__version__, "python": platform.python_version()} | assembly.versions,
        seconds=result.seconds,
    )


def _overall(gradient: Gradient, reported: Sequence[Reported], stopped: str | None) -> tuple[Verdict, str]:
    findings: list[Finding] = [gradient, *reported]
    names = ["the gradient", *(f"the reported number {number.name}" for number in reported)]
    verdict = max((finding.verdict for finding in findings), key=SEVERITY.index)
    worst = [(name, finding) for name, finding in zip(names, findings, strict=True) if finding.verdict is verdict]
    if verdict is Verdict.WRONG:
        which = _without_repeats([name for name, _ in worst])
        return verdict, f"{_join(which)} {'is' if len(which) == 1 else 'are'} wrong."
    if verdict is Verdict.RIGHT:
        if stopped is None:
            return verdict, ""
        return Verdict.INCONCLUSIVE, f"{stopped} What was weighed until then is right."
    if stopped is not None:
        return verdict, stopped
    name, finding = worst[0]
    return verdict, f"{name} could not be judged: {finding.reason}" if finding.reason else f"{name} is inconclusive."


def _why_stopped(result: CommandResult, world_size: int, timeout: float) -> str | None:
    """Why the weighed steps were not completed; None where nothing went wrong."""
    if result.ended_by == "interrupt":
        return "the command was interrupted before its weighed steps were done."
    if result.ended_by == "timeout":
        return (
            f"the weighed steps were not done within {timeout:g} s. A weighing is ended after that time. "
            "Pass a longer --timeout, or fewer --steps."
        )
    if result.exit_code:
        return f"the command {_ended_how(result.exit_code)} before its weighed steps were done."
    if result.dead:
        return f"{_who(result.dead[0].rank, result.dead[0].pid, world_size)} died before the weighed steps were done."
    if result.ended_by == "weighing" and result.unfinished_ranks:
        ranks = _join([str(rank) for rank in result.unfinished_ranks])
        word = "rank" if len(result.unfinished_ranks) == 1 else "ranks"
        return f"{word} {ranks} had not done the weighed steps when the others waited for the end."
    return None


def _problems(result: CommandResult, assembly: Assembly, stopped: str | None) -> list[str]:
    """What went wrong, causes first: a dead rank, what the records tell, exceptions they don't tell, the end."""
    world_size = assembly.world_size
    dead = [
        f"{_who(dead.rank, dead.pid, world_size)} {'died' if index == 0 else 'died later'}: {_died_how(dead)}."
        for index, dead in enumerate(result.dead)
    ]
    exceptions = [
        f"{_who(process.rank, process.pid, world_size)} ended with {process.message or 'an exception'}"
        for process in result.processes
        if process.ended_how == "exception"
        and process.is_rank
        and not any(process.message in text for text in assembly.problems)
    ]
    end = [] if stopped is None else [stopped]
    if result.exit_code and stopped is None:
        end = [f"the command {_ended_how(result.exit_code)} after its weighed steps were done."]
    return [*dead, *assembly.problems, *exceptions, *end]


def _died_how(dead: DeadRank) -> str:
    if dead.signal is not None:
        return f"it was killed by {dead.signal}"
    if dead.exit_code is not None:
        return f"it left without a word with exit code {dead.exit_code}"
    return "it left without a word"


def _ended_how(exit_code: int) -> str:
    if exit_code > 0:
        return f"failed with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def _who(rank: int | None, pid: int, world_size: int) -> str:
    return f"process {pid}" if rank is None else f"rank {rank} of {max(world_size, rank + 1)} (process {pid})"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _printable(argument: str) -> str:
    """An argument as text: bytes that are not UTF-8 are written as escapes."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _without_repeats(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(texts))

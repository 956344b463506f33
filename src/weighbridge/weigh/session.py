"""Weighs a training command from start to verdict: the one function behind `weighbridge weigh`.

    from weighbridge.weigh.session import weigh

    outcome = weigh(["torchrun", "--nproc-per-node", "2", "train.py"])
    print(outcome.verdict, outcome.gradient.rule)

The command is started and watched, its ranks record, the records are put together, and what was read is judged.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from weighbridge.advice import framework_of, with_advice
from weighbridge.errors import InputError, WeighbridgeError
from weighbridge.outcome import Gradient, Outcome, Reported, Verdict
from weighbridge.readings import GradientReading, LoggedNumber
from weighbridge.weigh.conclude import Assembly, conclude, not_comparable, not_reduced, unread_gradient
from weighbridge.weigh.launch import CommandResult, find_program, launch
from weighbridge.weigh.running import STOP_FILE, Progress
from weighbridge.weigh.watch import RECORD_NAME

__all__ = ["Parts", "WeighOptions", "Weighing", "weigh", "weigh_command"]

TRACER_NOTE = (
    "The tracer added known constants to losses from the second weighed step on: what the command logged then is not "
    "its real loss. Gradients are not changed by it. Pass --no-tracer to weigh gradients alone."
)


@dataclass(frozen=True, slots=True)
class WeighOptions:
    """What the user asks of a weighing.

    Attributes:
        objective: what the author means: `token-mean`, `sequence-mean`, `sum` or `constant:X`.
        steps: optimizer steps to weigh; None: as many as the tracer needs to go round the pieces, at most 32.
        keep_running: let the command go on after the weighed steps.
        uneven: mask labels to counts that tell rules apart.
        tracer: weigh the logged numbers too.
        timeout: seconds until the weighed steps must be done.
        coefficients: declared coefficient of each named loss term.

    Raises:
        InputError: a value breaks its rule.
    """

    objective: str = "token-mean"
    steps: int | None = None
    keep_running: bool = False
    uneven: bool = False
    tracer: bool = True
    timeout: float = 1800.0
    coefficients: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise InputError(f"steps is {self.steps}. At least one optimizer step is weighed. Pass --steps 1 or more.")
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise InputError(
                f"timeout is {self.timeout:g}. It is a number of seconds above 0. Pass --timeout 1800, for example."
            )
        for name, value in self.coefficients.items():
            if not math.isfinite(value):
                raise InputError(
                    f"the coefficient of {name!r} is {value}. A coefficient is a finite number. Correct it."
                )

    def to_ranks(self) -> dict[str, Any]:
        """What the ranks are told, as plain JSON values."""
        return {**asdict(self), "coefficients": dict(self.coefficients)}


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a weighing calls: what reads records, and what judges."""

    parse_objective: Callable[[str], Any]
    assemble: Callable[[Path], Assembly]
    judge_gradient: Callable[[GradientReading, str], Gradient]
    judge_reported: Callable[[LoggedNumber, str], Reported | None]

    @classmethod
    def load(cls) -> Parts:
        """The real ones."""
        from weighbridge.verdict import judge_gradient, judge_reported, parse_objective
        from weighbridge.weigh.assemble import assemble

        return cls(parse_objective, assemble, judge_gradient, judge_reported)


@dataclass(frozen=True, slots=True)
class Weighing:
    """An outcome, how the command ended, and where the records are (None: they were removed)."""

    outcome: Outcome
    result: CommandResult
    record_folder: Path | None


@dataclass(frozen=True, slots=True)
class _EmptyAssembly:
    """Stands for records that could not be put together."""

    problems: list[str]
    gradient: GradientReading | None = None
    logged: tuple[LoggedNumber, ...] = ()
    world_size: int = 0
    microbatches: int = 0
    steps: int = 0
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    saw_torch: bool = True
    saw_loss: bool = True
    comparable: bool = True
    left_out: bool = False
    not_finite: str = ""


def weigh(
    command: Sequence[str],
    *,
    objective: str = "token-mean",
    steps: int | None = None,
    keep_running: bool = False,
    uneven: bool = False,
    tracer: bool = True,
    timeout: float = 1800.0,
    record_folder: Path | None = None,
    coefficients: Mapping[str, float] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Run a training command and find out how much each token weighed.

    Args:
        command: program and arguments, as typed.
        objective: what the author means: `token-mean`, `sequence-mean`, `sum` or `constant:X`.
        steps: optimizer steps to weigh; None: as many as the tracer needs, at most 32.
        keep_running: let the command go on after the weighed steps.
        uneven: mask labels to counts that tell rules apart.
        tracer: weigh the logged numbers too.
        timeout: seconds until the weighed steps must be done.
        record_folder: where the records are kept; None: a temporary folder, removed if all went well.
        coefficients: declared coefficient of each named loss term.
        on_progress: called whenever something new is known.

    Raises:
        InputError: an option breaks its rule, the folder can't be written, or the command can't be started.
    """
    options = WeighOptions(objective, steps, keep_running, uneven, tracer, timeout, dict(coefficients or {}))
    return weigh_command(command, options, record_folder=record_folder, on_progress=on_progress).outcome


def weigh_command(
    command: Sequence[str],
    options: WeighOptions,
    *,
    record_folder: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    parts: Parts | None = None,
) -> Weighing:
    """As `weigh`, and says as well how the command ended and where the records are."""
    parts = parts or Parts.load()
    parts.parse_objective(options.objective)  # a misspelt objective is said before anything starts
    find_program(command)
    folder = _prepare_folder(record_folder)
    try:
        result = launch(
            command,
            record_folder=folder,
            options=options.to_ranks(),
            timeout=options.timeout,
            on_progress=on_progress,
        )
    except InputError:
        if record_folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        outcome = _judge(command, options, parts, folder, result)
    except Exception as error:
        error.add_note(f"The records of the run lie in {folder}")
        raise
    if record_folder is None and (_went_well(outcome, result) or not _has_records(folder)):
        shutil.rmtree(folder, ignore_errors=True)
        return Weighing(outcome, result, None)
    if record_folder is None:
        outcome = outcome.model_copy(update={"notes": [*outcome.notes, f"the records are kept in {folder}"]})
    return Weighing(outcome, result, folder)


def _judge(
    command: Sequence[str],
    options: WeighOptions,
    parts: Parts,
    folder: Path,
    result: CommandResult,
) -> Outcome:
    assembly: Assembly
    try:
        assembly = parts.assemble(folder)
    except WeighbridgeError as error:
        assembly = _EmptyAssembly(
            [str(error)], world_size=max((p.world_size or 0 for p in result.processes), default=0)
        )
    reading = _with_coefficients(assembly.gradient, options.coefficients)
    gradient = parts.judge_gradient(reading, options.objective) if reading else unread_gradient(assembly, result)
    if not assembly.comparable:
        gradient = not_comparable(gradient, assembly)
    elif assembly.left_out:
        gradient = not_reduced(gradient)
    framework = framework_of([number.source for number in assembly.logged], assembly.versions)
    judged = [(number.name, parts.judge_reported(number, options.objective)) for number in assembly.logged]
    return conclude(
        command=command,
        objective=options.objective,
        assembly=assembly,
        result=result,
        gradient=with_advice(gradient, framework),
        reported=_once([with_advice(found, framework, found.phase) for _, found in judged if found is not None]),
        unrelated=sorted({name for name, finding in judged if finding is None}),
        steps_asked=options.steps,
        keep_running=options.keep_running,
        timeout=options.timeout,
        notes=[*_unknown_terms(assembly.gradient, options.coefficients), *_tracer_note(options, assembly, result)],
    )


def _tracer_note(options: WeighOptions, assembly: Assembly, result: CommandResult) -> list[str]:
    """The note on logged losses, where the tracer may have been in one: from the second step on.

    In that step, which has a constant for the first time, a check of the loss may also end the command.
    """
    return [TRACER_NOTE] if options.tracer and assembly.steps > (0 if result.exit_code else 1) else []


def _with_coefficients(reading: GradientReading | None, declared: Mapping[str, float]) -> GradientReading | None:
    """The reading with what the user declared of its terms."""
    if reading is None or not declared:
        return reading
    terms = tuple(replace(term, coefficient=declared.get(term.name, term.coefficient)) for term in reading.terms)
    return replace(reading, terms=terms)


def _unknown_terms(reading: GradientReading | None, declared: Mapping[str, float]) -> list[str]:
    """What to say of declared coefficients whose term was not seen."""
    seen = [] if reading is None else [term.name for term in reading.terms]
    among = f"The terms seen are {', '.join(seen)}." if seen else "No term was seen."
    return [
        f"{name!r} has a coefficient and is no term of the loss that was weighed. {among} "
        "Pass --coefficient with one of these names, or mark the term."
        for name in declared
        if name not in seen
    ]


def _once(reported: Sequence[Reported]) -> list[Reported]:
    """Numbers that every rank logged with the same values and the same finding, once, without a rank."""
    kept: dict[str, Reported] = {}
    ranks: dict[str, int] = {}
    for number in reported:
        key = repr(
            (number.name, number.source, number.phase, number.verdict, number.rule, number.factor, number.values)
        )
        kept.setdefault(key, number)
        ranks[key] = ranks.get(key, 0) + 1
    return [number if ranks[key] == 1 else number.model_copy(update={"rank": None}) for key, number in kept.items()]


def _has_records(folder: Path) -> bool:
    return any(RECORD_NAME.fullmatch(path.name) for path in folder.iterdir())


def _went_well(outcome: Outcome, result: CommandResult) -> bool:
    """Whether nobody will want to look at the records."""
    return bool(
        outcome.gradient.verdict is not Verdict.INCONCLUSIVE
        and not outcome.problems
        and not result.dead
        and not result.exit_code
        and result.ended_by in ("command", "weighing")
    )


def _prepare_folder(folder: Path | None) -> Path:
    """The record folder, made if need be.

    Raises:
        InputError: it can't be made or written, or holds the records of another run.
    """
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="weighbridge-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise InputError(
            f"{str(folder)!r} can't be written: {error.strerror}. The record folder is written while the command "
            "runs. Name a folder that you may write, or leave out --record."
        ) from error
    if any(name == STOP_FILE or RECORD_NAME.fullmatch(name) for name in names):
        raise InputError(
            f"{str(folder)!r} holds the records of another run. Each run needs a record folder of its own. "
            "Name an empty or a new folder."
        )
    return folder

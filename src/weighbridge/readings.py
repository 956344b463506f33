"""What a weighing hands to the verdict: tables with the weights that were read, and the numbers that were logged.

`weigh` fills these from the records of a run; a test, a ledger or a catalogue case can fill them as well. Nothing here
is judged: `weighbridge.verdict` does that.
"""

from __future__ import annotations

from dataclasses import dataclass

from weighbridge.pieces import Table

__all__ = ["Clip", "GradientReading", "LoggedNumber", "LoggedValue", "WeighedTerm"]


@dataclass(frozen=True, slots=True)
class WeighedTerm:
    """One term of the loss in all weighed steps.

    Attributes:
        name: "cross_entropy", or what the user gave to `weighbridge.mark`.
        tables: one a weighed optimizer step, with `Row.weight` filled in.
        marked: True where the user marked it, False where a known loss function was seen.
        coefficient: what the user declared that this term is multiplied by; None: not declared.
        scalar: one already reduced number a microbatch: judged by its coefficient, not by tokens.
    """

    name: str
    tables: tuple[Table, ...]
    marked: bool = False
    coefficient: float | None = None
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class Clip:
    """One active gradient clip: it multiplied the gradients by `factor` when `microbatches` of `step` were done."""

    step: int
    rank: int
    microbatches: int
    factor: float


@dataclass(frozen=True, slots=True)
class GradientReading:
    """The gradient side of a weighed run.

    Attributes:
        terms: the main term first (the one seen first in a step).
        epsilon: machine epsilon (spacing at 1) of the coarsest dtype that the probe's gradient passed through.
        spread: largest relative difference between two readings of one weight through differently rounded paths; the
            measured estimate of what rounding does to a weight.
        disagreement: largest relative difference between two ranks' views of one reduced weight; 0.0 if they agree.
        disagreeing_ranks: the ranks whose view differs from the lowest rank's.
        clips: every active clip. A clip after the last microbatch is already divided out of the weights; one inside
            the accumulation is not.
    """

    terms: tuple[WeighedTerm, ...]
    epsilon: float
    spread: float = 0.0
    disagreement: float = 0.0
    disagreeing_ranks: tuple[int, ...] = ()
    clips: tuple[Clip, ...] = ()


@dataclass(frozen=True, slots=True)
class LoggedValue:
    """One value of a logged number, and what had been computed when it was logged.

    Attributes:
        value: as logged (possibly rounded by who logged it).
        tables: main-term tables of the steps (or evaluation passes) completed since this number was last logged,
            oldest first, `Row.constant` filled in. A table whose step is still running holds the microbatches so far.
        running: True where the last table's optimizer step was still running.
    """

    value: float
    tables: tuple[Table, ...]
    running: bool = False


@dataclass(frozen=True, slots=True)
class LoggedNumber:
    """One logged number over the run."""

    name: str
    source: str
    phase: str  # "training" or "evaluation"
    rank: int
    values: tuple[LoggedValue, ...]
    epsilon: float  # machine epsilon of the dtype in which losses were computed

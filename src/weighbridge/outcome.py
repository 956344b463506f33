"""What weighing found, as records: the model of the `--json` file, and all that a report is given.

`schema` is fixed ("weighbridge.weights/1"): other programs read these keys. Keys may be added, never changed.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["SCHEMA", "Finding", "Outcome", "PieceWeight", "Precision", "Reported", "Term", "Verdict"]

SCHEMA = "weighbridge.weights/1"


class Verdict(StrEnum):
    """right: the weights are what the objective asks for; wrong: they are not; inconclusive: could not tell."""

    RIGHT = "right"
    WRONG = "wrong"
    INCONCLUSIVE = "inconclusive"


class Record(BaseModel):
    """Base of all records: unknown keys are an error, values don't change after they were made."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="null", populate_by_name=True)


class PieceWeight(Record):
    """One piece and how much each of its tokens weighed, relative to what the objective asks for (1 is right)."""

    step: int | None = None  # optimizer step; for a reported number, the step whose weight was read
    rank: int
    microbatch: int
    tokens: int
    loss_sum: float | None = None
    relative_weight: float | None = None  # None: no token, or not read
    sequences: list[PieceWeight] | None = None  # one entry a sequence, where the loss call showed them
    inferred: bool = False  # True: follows from the rule named, was not read off by itself


class Precision(Record):
    """How precisely weights were read, and how that was derived."""

    right_within: float  # |relative weight - 1| up to this is right
    wrong_from: float  # |relative weight - 1| from this on is wrong; between the two is inconclusive
    derivation: str  # one or two sentences


class Finding(Record):
    """A verdict on one thing, with the rule that explains it."""

    verdict: Verdict
    rule: str | None = None  # id from weighbridge.rules; None: nothing was weighed
    factor: float | None = None  # rule times this factor; None: no factor
    factor_name: str | None = None  # "W", "1/M", "N/W", ...; None: no name fits
    indistinguishable: list[str] = Field(default_factory=list)  # rules this batch could not tell from `rule`
    story: str = ""  # what the rule does, one sentence
    remedy: str = ""  # what to change, one sentence
    reason: str = ""  # why the verdict is what it is, where rule and story don't say it (always for inconclusive)
    pieces: list[PieceWeight] = Field(default_factory=list)
    precision: Precision | None = None


class Term(Finding):
    """One term of the loss in the gradient: the main loss, an auxiliary loss, a KL term."""

    name: str
    coefficient: float | None = None  # as declared by the user
    observed_coefficient: float | None = None  # as read from the gradient, where it makes sense
    scalar: bool = False


class Gradient(Finding):
    """The gradient's verdict: that of the worst term; `rule`, `factor` and `pieces` are that term's."""

    term: str | None = None
    terms: list[Term] = Field(default_factory=list)
    clip_factors: list[float] = Field(default_factory=list)  # active clips after the last microbatch, one a step


class Reported(Finding):
    """One logged number."""

    name: str
    source: str  # "transformers.Trainer.log", "SummaryWriter.add_scalar", ...
    phase: str = "training"  # or "evaluation"
    rank: int | None = None  # the rank that logged it
    window: int = 1  # optimizer steps (or evaluation passes) that one logged value covers
    values: list[float] = Field(default_factory=list)  # as logged
    right_values: list[float | None] = Field(default_factory=list)  # what the objective gives for the same windows


class Outcome(Record):
    """All that one weighing found."""

    schema_: str = Field(default=SCHEMA, alias="schema", serialization_alias="schema")
    command: list[str]
    world_size: int
    microbatches: int = 0
    steps: int = 0  # weighed optimizer steps
    objective: str
    verdict: Verdict
    reason: str = ""
    gradient: Gradient
    reported: list[Reported] = Field(default_factory=list)
    unrelated: list[str] = Field(default_factory=list)  # logged numbers that don't come from the weighed losses
    problems: list[str] = Field(default_factory=list)  # what went wrong: a rank died, NaN in which piece, ...
    notes: list[str] = Field(default_factory=list)  # what a reader should know: torch.compile was weighed eagerly, ...
    command_exit_code: int | None = None  # None: ended by weighbridge after the weighed steps
    versions: dict[str, str] = Field(default_factory=dict)
    seconds: float | None = None

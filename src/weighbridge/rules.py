"""Every rule that weighbridge knows, right and wrong, as a weight formula with its name, its story and its remedy.

A way to aggregate a step is a formula that gives one token an absolute weight. The right one for a token mean is 1/N;
every other one is a fault that somebody shipped. The weight that a run shows is composed of four parts,

    weight of a token = survives(piece) * drift(microbatch) * base(row) * factor

where `survives` is 0 or 1 (only the last microbatch, one rank, ...), `drift` is a power that depends on how many
microbatches followed, `base` is one of the formulas below and `factor` is one number a step. Rules are data: adding
one is adding an entry to `RULES`. Letters are those of `weighbridge.sums`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from weighbridge.pieces import Columns
from weighbridge.sums import Floats, Sums

__all__ = ["BASES", "DRIFTS", "RULES", "Formula", "Kind", "Rule", "rule_of"]


class Kind(StrEnum):
    """Which part of a weight a rule describes."""

    BASE = "base"  # a formula for the weight of a token
    FACTOR = "factor"  # right proportions times one number
    MASK = "mask"  # some pieces don't arrive, or arrive more than once
    DRIFT = "drift"  # the weight depends on how many microbatches followed
    OBJECTIVE = "objective"  # what an author may ask for; never looked for as a fault
    STATE = "state"  # not a formula


@dataclass(frozen=True, slots=True)
class Formula:
    """One variant of a rule: `weigh` gives the weight of one token of every row [rows]."""

    name: str
    text: str
    weigh: Callable[[Sums], Floats]

    def of(self, sums: Sums) -> Floats:
        """Weight of one token of every row [rows]; 0 where the row has no mass, NaN where the variant can't apply."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            weights = np.broadcast_to(self.weigh(sums), sums.n.shape)
        return np.where(sums.n > 0, weights, 0.0)

    def __call__(self, columns: Columns) -> Floats:
        """Weight of one token of every row of one table [rows].

        >>> from weighbridge.pieces import Table
        >>> table = Table.from_counts([[[1]], [[3]]])
        >>> BASES["mean-of-rank-means"].formulas[0](table.columns).tolist()
        [0.5, 0.16666666666666666]
        """
        return self.of(Sums([columns]))


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to aggregate.

    Attributes:
        id: the name, in words.
        story: what the code does, one sentence.
        remedy: what to change, one sentence.
        formulas: the variants; empty where the rule only combines with others.
        kind: which part of a weight it describes.
    """

    id: str
    story: str
    remedy: str
    formulas: tuple[Formula, ...] = ()
    kind: Kind = Kind.BASE


DIVIDE_ONCE = "Keep loss sums, add up the token counts of all ranks and microbatches, and divide once by that total."

# Where several rules give the same weights, the one listed first is named: the common fault before the rare one.
_ALL = (
    Rule(
        "token-mean",
        "Every token of the step weighs the same: the sum of all losses is divided by their number.",
        DIVIDE_ONCE,
        (Formula("global", "1/N", lambda s: 1 / s.N),),
    ),
    Rule(
        "sum",
        "Losses are added up and never divided.",
        DIVIDE_ONCE,
        (Formula("plain", "1", lambda s: np.ones_like(s.n)),),
        Kind.OBJECTIVE,
    ),
    Rule(
        "constant",
        "Losses are added up and divided by a constant that does not depend on the batch.",
        DIVIDE_ONCE,
        (),
        Kind.OBJECTIVE,
    ),
    Rule(
        "mean-of-rank-means",
        "Each rank divides by its own number of tokens, and the ranks' means are averaged as equals.",
        "Divide each rank's loss sum by the number of tokens of all ranks, times W where gradients are averaged "
        "over ranks.",
        (Formula("all ranks", "1/(W n_r)", lambda s: 1 / (s.W * s.n_r)),),
    ),
    Rule(
        "mean-over-non-empty-ranks",
        "Each rank divides by its own number of tokens, and the means of the ranks that hold any token are averaged.",
        "Leaving empty ranks out is not enough: divide by the number of tokens of all ranks.",
        (Formula("ranks with tokens", "1/(W+ n_r)", lambda s: 1 / (s.W_plus * s.n_r)),),
    ),
    Rule(
        "mean-of-microbatch-means",
        "Each microbatch divides by its own number of tokens, and all microbatches of all ranks are averaged as "
        "equals.",
        "Count the tokens of the whole step before the first backward, and divide every microbatch's loss sum by "
        "that total.",
        (Formula("all microbatches", "1/(W M n_rm)", lambda s: 1 / (s.W * s.M * s.n_rm)),),
    ),
    Rule(
        "mean-of-rank-microbatch-means",
        "Each rank averages the means of its own non-empty microbatches, and the ranks are averaged as equals.",
        "Count the tokens of the whole step over all ranks, and divide every microbatch's loss sum by that total.",
        (Formula("per rank", "1/(W K_r n_rm)", lambda s: 1 / (s.W * s.K_r * s.n_rm)),),
    ),
    Rule(
        "mean-over-non-empty-pieces",
        "The means of all non-empty microbatches of all ranks are averaged as equals.",
        "Leaving empty microbatches out is not enough: divide every loss sum by the number of tokens of the step.",
        (Formula("pieces with tokens", "1/(K+ n_rm)", lambda s: 1 / (s.K_plus * s.n_rm)),),
    ),
    Rule(
        "global-mean-per-microbatch",
        "Counts are added up over ranks but not over microbatches: each microbatch becomes a mean over all ranks, "
        "and these are averaged as equals.",
        "Add up the counts over the microbatches of the step as well, before the first backward.",
        (
            Formula("all microbatches", "1/(M n_m)", lambda s: 1 / (s.M * s.n_m)),
            Formula("microbatches with tokens", "1/(M+ n_m)", lambda s: 1 / (s.M_plus * s.n_m)),
        ),
    ),
    Rule(
        "sequence-mean",
        "Every sequence of the step weighs the same, whatever its number of tokens.",
        "If tokens should weigh the same, divide by the number of tokens of the step; otherwise declare "
        "`--objective sequence-mean`.",
        (Formula("global", "1/(B n)", lambda s: 1 / (s.B * s.n)),),
    ),
    Rule(
        "sequence-means-per-rank",
        "Each rank averages the means of its own sequences, and the ranks are averaged as equals.",
        "Divide by the number of sequences (or, for a token mean, of tokens) of all ranks.",
        (Formula("all ranks", "1/(W B_r n)", lambda s: 1 / (s.W * s.B_r * s.n)),),
    ),
    Rule(
        "sequence-means-per-microbatch",
        "Each microbatch averages the means of its own sequences, and all microbatches are averaged as equals.",
        "Divide by the number of sequences (or, for a token mean, of tokens) of the whole step.",
        (Formula("all microbatches", "1/(W M B_rm n)", lambda s: 1 / (s.W * s.M * s.B_rm * s.n)),),
    ),
    Rule(
        "weighted-by-sequences",
        "Token means are averaged with the number of sequences as their weight instead of the number of tokens.",
        "Weigh each mean with the number of tokens it was divided by, or keep sums and divide once.",
        (
            Formula("per rank", "B_r/(B n_r)", lambda s: s.B_r / (s.B * s.n_r)),
            Formula("per microbatch", "B_rm/(B n_rm)", lambda s: s.B_rm / (s.B * s.n_rm)),
            Formula("per rank, masked ones too", "S_r/(S n_r)", lambda s: s.S_r / (s.S * s.n_r)),
            Formula("per microbatch, masked ones too", "S_rm/(S n_rm)", lambda s: s.S_rm / (s.S * s.n_rm)),
            # Samplers repeat items to even out ranks. A piece's mean holds the repeats; a list of one loss a sequence,
            # from which they are cut off again, does not. The Trainer's evaluation in transformers 5.24 is the last.
            Formula("per microbatch, repeats cut off", "F_rm/(F n_rm)", lambda s: s.F_rm / (s.F * s.n_rm)),
            Formula("per microbatch of all ranks", "W S_rm/(S n_m)", lambda s: s.W * s.S_rm / (s.S * s.n_m)),
            Formula(
                "per microbatch of all ranks, repeats cut off", "W F_rm/(F n_m)", lambda s: s.W * s.F_rm / (s.F * s.n_m)
            ),
            Formula("per microbatch, by positions", "T_rm/(T n_rm)", lambda s: s.T_rm / (s.T * s.n_rm)),
        ),
    ),
    Rule(
        "padded-length-mean",
        "The denominator counts padded and masked positions too.",
        "Count only positions whose label is not ignored.",
        (
            Formula("global", "1/T", lambda s: 1 / s.T),
            Formula("per rank", "1/(W T_r)", lambda s: 1 / (s.W * s.T_r)),
            Formula("per microbatch", "1/(W M T_rm)", lambda s: 1 / (s.W * s.M * s.T_rm)),
        ),
    ),
    Rule(
        "unshifted-count",
        "Tokens are counted before the labels are shifted, so that every sequence counts one token too many.",
        "Count the labels that the loss sees: shift first, then count.",
        (
            Formula("global", "1/(N+B)", lambda s: 1 / (s.N + s.B)),
            Formula("per rank", "1/(W (n_r+B_r))", lambda s: 1 / (s.W * (s.n_r + s.B_r))),
            Formula("per microbatch", "1/(W M (n_rm+B_rm))", lambda s: 1 / (s.W * s.M * (s.n_rm + s.B_rm))),
        ),
    ),
    Rule(
        "count-shifted-twice",
        "One token of every sequence was subtracted from the count once too often, after the labels had been "
        "shifted already.",
        "Count the labels that the loss sees, and subtract nothing from that count.",
        (
            Formula("global", "1/(N-B)", lambda s: _over(s.N - s.B)),
            Formula("per rank", "1/(W (n_r-B_r))", lambda s: _over(s.W * (s.n_r - s.B_r))),
            Formula("per microbatch", "1/(W M (n_rm-B_rm))", lambda s: _over(s.W * s.M * (s.n_rm - s.B_rm))),
        ),
    ),
    Rule(
        "sequence-count-denominator",
        "Loss sums are divided by the number of sequences instead of tokens.",
        DIVIDE_ONCE,
        (
            Formula("per rank", "1/(W B_r)", lambda s: 1 / (s.W * s.B_r)),
            Formula("per microbatch", "1/(W M B_rm)", lambda s: 1 / (s.W * s.M * s.B_rm)),
            Formula("per rank, masked ones too", "1/(W S_r)", lambda s: 1 / (s.W * s.S_r)),
            Formula("per microbatch, masked ones too", "1/(W M S_rm)", lambda s: 1 / (s.W * s.M * s.S_rm)),
        ),
    ),
    Rule(
        "last-microbatch-count",
        "Every microbatch is divided by the number of tokens of the rank's last one.",
        "Keep one count per microbatch, add them up before the first backward, and divide by the total.",
        (Formula("per rank", "1/(W M n_last)", lambda s: 1 / (s.W * s.M * np.maximum(s.n_last, 1))),),
    ),
    Rule(
        "scaled",
        "Tokens weigh alike among themselves, but all of them are multiplied by one factor.",
        "Find where the factor enters (a division that happens twice or never, or a compensation for an average "
        "that does not happen) and remove it.",
        (),
        Kind.FACTOR,
    ),
    Rule(
        "last-microbatch-only",
        "Only the last microbatch of a step reaches the optimizer; earlier ones are lost.",
        "Clear gradients after the optimizer step only, and add to the gradient buffer instead of overwriting it.",
        (),
        Kind.MASK,
    ),
    Rule(
        "first-microbatch-dropped",
        "The first microbatch of a step does not reach the optimizer.",
        "Clear gradients before the first backward of a step, not after it.",
        (),
        Kind.MASK,
    ),
    Rule(
        "single-rank-only",
        "Only the tokens of one rank count; those of the others are lost.",
        "Reduce over all ranks before the value is used.",
        (),
        Kind.MASK,
    ),
    Rule(
        "dropped-pieces",
        "The tokens of some pieces don't count at all.",
        "Look for what skips these pieces: a condition on the batch, an early return, a reduction left out.",
        (),
        Kind.MASK,
    ),
    Rule(
        "duplicated-items",
        "Some items count more than once.",
        "Feed every item once: pad the last batch with masked labels instead of repeated items, and run backward "
        "once per loss.",
        (),
        Kind.MASK,
    ),
    Rule(
        "earlier-microbatches-averaged-again",
        "Gradients are averaged over ranks after every microbatch, and the buffer that was already averaged is "
        "averaged again.",
        "Reduce once, after the last microbatch.",
        (Formula("divided by W each time", "W^-(M-1-m)", lambda s: s.W**-s.later),),
        Kind.DRIFT,
    ),
    Rule(
        "doubled-each-microbatch",
        "What has been accumulated is multiplied again with every further microbatch.",
        "Keep what was reduced apart from what is still local, and reduce every microbatch exactly once.",
        (
            Formula("doubled", "2^(M-1-m)", lambda s: 2.0**s.later),
            Formula("times W", "W^(M-1-m)", lambda s: s.W**s.later),
        ),
        Kind.DRIFT,
    ),
    Rule(
        "clipped-inside-accumulation",
        "Gradients are clipped before the step is complete, so that earlier microbatches are scaled down again.",
        "Clip once, after the last microbatch and after gradients were reduced over ranks.",
        (),
        Kind.DRIFT,
    ),
    Rule(
        "unsynchronised-ranks",
        "Ranks hold different reduced gradients, so that their models drift apart.",
        "Make every rank take part in the same reductions, and turn gradient synchronisation on for the last "
        "microbatch.",
        (),
        Kind.STATE,
    ),
    Rule(
        "unexplained",
        "No rule that weighbridge knows gives these weights.",
        "Look at the weights of the pieces, and follow one that is far from 1 through the code.",
        (),
        Kind.STATE,
    ),
)

RULES: dict[str, Rule] = {rule.id: rule for rule in _ALL}
BASES: dict[str, Rule] = {rule.id: rule for rule in _ALL if rule.kind is Kind.BASE}
DRIFTS: dict[str, Rule] = {rule.id: rule for rule in _ALL if rule.kind is Kind.DRIFT and rule.formulas}


def _over(count: Floats) -> Floats:
    """1/count where the count is positive; NaN (the variant can't apply) elsewhere."""
    return 1 / np.where(count > 0, count, np.nan)


def rule_of(identifier: str) -> Rule:
    """The rule named `identifier`, an objective such as "constant:512" included."""
    return RULES[identifier.split(":")[0]]

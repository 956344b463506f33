"""What the wrapper divides by, and whether every token ends up with the weight 1/N: measured, not looked up.

All ranks bring the fingerprints of their microbatches together. Their sum, over the fingerprint of the reduced
gradient, is what the wrapper divided by; it may differ from parameter to parameter. After scaling, the gradient's
fingerprints have to be the sum of all microbatches' over N. Where they are not, least squares finds the weight that
each microbatch did get: that is the table in the error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from weighbridge.collectives import Collective
from weighbridge.errors import InputError, WeightError
from weighbridge.training.watch import PRINTS, Key

__all__ = ["PieceCheck", "Prints", "StepCheck", "bring_together", "check_step", "divisors"]

Floats = npt.NDArray[np.float64]
COARSE = 2.0**-6  # what reductions in bfloat16 may do: up to here a difference is told, beyond it is an error
SAME = 1e-3  # relative: divisors this close are one number
NOISE = 1e-9  # a fingerprint this small beside its addends says nothing


@dataclass(frozen=True, slots=True)
class PieceCheck:
    """One microbatch of the checked step.

    Attributes:
        tokens: its number of tokens.
        weight: weight of each of them relative to the one it should have (1 is right); None where not determined.
    """

    rank: int
    microbatch: int
    tokens: int
    weight: float | None


@dataclass(frozen=True)
class StepCheck:
    """What checking a step found.

    Attributes:
        pieces: in order of rank and microbatch.
        divisor: what the wrapper divides by; the median where it differs by parameter.
        difference: of the gradient from the right one, relative.
        within: up to which difference it is right.
    """

    pieces: tuple[PieceCheck, ...]
    divisor: float
    difference: float
    within: float

    @property
    def is_right(self) -> bool:
        """Whether every token weighs what it should, to the precision of the gradients."""
        return self.difference <= self.within

    def table(self) -> str:
        """The weights, one microbatch a line."""
        lines = ["rank  microbatch  tokens  relative weight"]
        for piece in self.pieces:
            weight = "-" if piece.weight is None else f"{piece.weight:.4f}"
            lines.append(f"{piece.rank:4d}  {piece.microbatch:10d}  {piece.tokens:6d}  {weight:>15}")
        return "\n".join(lines)


@dataclass
class Prints:
    """Fingerprints of all ranks: of every microbatch, and of the reduced gradient.

    Attributes:
        keys: parameters, in one order on all ranks.
        local: [pieces, keys * PRINTS]; a microbatch that did not touch a parameter has zeros there.
        places: (rank, microbatch) of every piece; `tokens` how many tokens it has.
    """

    keys: list[Key]
    local: Floats
    places: list[tuple[int, int]]
    tokens: list[int]
    whole: dict[Key, Floats] = field(default_factory=dict)

    def summed(self, key: Key) -> Floats:
        """The sum over all pieces of one parameter's fingerprints [PRINTS]."""
        start = self.keys.index(key) * PRINTS
        return np.asarray(self.local[:, start : start + PRINTS].sum(axis=0))

    def size(self, key: Key) -> float:
        """The sum of the pieces' absolute fingerprints: what rounding is relative to."""
        start = self.keys.index(key) * PRINTS
        return float(np.abs(self.local[:, start : start + PRINTS]).sum())


def bring_together(pieces: Sequence[Mapping[Key, list[float]]], tokens: Sequence[int], ranks: Collective) -> Prints:
    """Everyone's fingerprints; a collective over `ranks`."""
    mine = [[[list(key), prints] for key, prints in piece.items()] for piece in pieces]
    gathered = [json.loads(text) for text in ranks.gather(json.dumps([mine, list(tokens)]))]
    keys = sorted({(key[0], key[1]) for held, _ in gathered for piece in held for key, _ in piece})
    column = {key: index * PRINTS for index, key in enumerate(keys)}
    places, counts, rows = [], [], []
    for rank, (held, numbers) in enumerate(gathered):
        for microbatch, (piece, count) in enumerate(zip(held, numbers, strict=True)):
            row = np.zeros(len(keys) * PRINTS)
            for key, prints in piece:
                start = column[key[0], key[1]]
                row[start : start + PRINTS] = prints
            places.append((rank, microbatch))
            counts.append(count)
            rows.append(row)
    return Prints(keys, np.array(rows).reshape(len(rows), len(keys) * PRINTS), places, counts)


def divisors(prints: Prints) -> dict[Key, float]:
    """What each parameter's gradient was divided by, as far as its fingerprints say.

    Raises:
        InputError: no parameter's gradient says anything.
    """
    found: dict[Key, float] = {}
    for key, whole in prints.whole.items():
        summed = prints.summed(key)
        if np.abs(summed).max() > NOISE * prints.size(key) and float(summed @ whole) != 0.0:
            found[key] = float(summed @ summed) / float(summed @ whole)
    if not found:
        raise InputError(
            "The gradients of the first step say nothing: they are zero or missing. What the wrapper divides by is "
            "measured on gradients. Call finish after the last backward, before they are cleared, or pass divisor=."
        )
    middle = float(np.median(list(found.values())))
    if all(abs(value - middle) <= SAME * abs(middle) for value in found.values()):
        return {key: _plain(middle) for key in prints.keys}
    return {key: _plain(found.get(key, middle)) for key in prints.keys}


def _plain(value: float) -> float:
    """The whole number, or the inverse of one, that a measured divisor stands for; itself where it is neither."""
    for number in (value, 1 / value):
        if number >= 0.5 and abs(number - round(number)) <= SAME * abs(number):
            return float(round(number)) if number is value else 1 / round(number)
    return value


def check_step(
    prints: Prints,
    scaled: Mapping[Key, Floats],
    global_tokens: int,
    *,
    divisor: float,
    given: bool,
    epsilon: float,
    ranks: Collective,
) -> StepCheck:
    """Compare the scaled gradient's fingerprints with what they should be; a collective over `ranks`.

    Args:
        prints: the microbatches' fingerprints, and those of the gradient before it was scaled.
        scaled: those of the gradient as the optimizer will see it.
        global_tokens: tokens of the step, N.
        divisor: what the wrapper divides by, `given` by the user or measured.
        epsilon: machine epsilon of the coarsest gradient.
        ranks: all ranks' gradients have to agree.
    """
    keys = [key for key in prints.keys if key in scaled]
    columns = np.concatenate([np.arange(PRINTS) + prints.keys.index(key) * PRINTS for key in keys])
    observed = np.concatenate([scaled[key] for key in keys])
    parts = prints.local[:, columns] / global_tokens
    size = float(np.linalg.norm(np.abs(parts).sum(axis=0))) or 1.0
    everyone = np.array([json.loads(text) for text in ranks.gather(json.dumps(observed.tolist()))])
    apart = float(np.abs(everyone - everyone[0]).max(initial=0.0)) / size
    difference = max(float(np.linalg.norm(observed - parts.sum(axis=0))) / size, apart)
    within = 64 * epsilon
    weights: list[float | None] = [1.0] * len(prints.places)
    if not difference <= within:
        reduced = np.concatenate([prints.whole[key] for key in keys])
        weights = _solved(prints.local[:, columns], reduced, prints.tokens, divisor if given else None)
    pieces = tuple(
        PieceCheck(rank, microbatch, count, weight if count else None)
        for (rank, microbatch), count, weight in zip(prints.places, prints.tokens, weights, strict=True)
    )
    return StepCheck(pieces, divisor, difference if math.isfinite(difference) else math.inf, within)


def _solved(parts: Floats, reduced: Floats, tokens: Sequence[int], divisor: float | None) -> list[float | None]:
    """The weights [pieces] with which the pieces' parts [pieces, prints] add up to the reduced gradient [prints].

    Relative to `divisor`; where that is not known, relative to the mean over all tokens.
    """
    live = np.abs(parts).sum(axis=1) > 0
    if not np.isfinite(reduced).all() or not live.any():
        return [None] * len(parts)
    solved, _, rank, _ = np.linalg.lstsq(parts[live].T, reduced, rcond=1e-10)
    if rank < int(live.sum()):
        return [None] * len(parts)
    counts = np.array(tokens, dtype=np.float64)[live]
    mean = float(solved @ counts) / float(counts.sum()) if divisor is None else 1 / divisor
    found = iter((solved / mean).tolist())
    return [next(found) if each else None for each in live]


def refusal(check: StepCheck) -> WeightError:
    """The error for a step whose tokens don't weigh what they should."""
    return WeightError(
        f"The gradient of the first step differs from the token mean's by {check.difference:.2g} of its size; up to "
        f"{check.within:.2g} is rounding. Every token of a step has to weigh the same (relative weight 1).\n"
        f"{check.table()}\n"
        "Look for what scales or skips some microbatches between backward and finish: an accumulation that divides by "
        "itself, a clip before finish, gradients that are cleared or not reduced."
    )

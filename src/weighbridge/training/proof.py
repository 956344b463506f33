"""What the wrapper divides by, and whether each microbatch ends up with the weight 1/N: measured, not looked up.

All ranks bring the fingerprints of their microbatches together. Their sum, over the fingerprint of the reduced
gradient, is what the wrapper divided by; it may differ from parameter to parameter. After scaling, the gradient's
fingerprints have to be the sum of all microbatches', each over the tokens of its term. Where they are not, least
squares finds the weight that each microbatch did get.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from weighbridge.collectives import Collective
from weighbridge.errors import InputError
from weighbridge.training.losses import CallWeights
from weighbridge.training.watch import PRINTS, Key, Piece

__all__ = ["GradientCheck", "Place", "Prints", "bring_together", "check_gradient", "divisors"]

Floats = npt.NDArray[np.float64]
SAME = 1e-3  # relative: divisors this close are one number
FINE = 1e-6  # largest epsilon of a fine dtype
NOISE = 1e-9  # a fingerprint this small beside its addends says nothing
GONE = (
    "The gradients of the first step say nothing: they are zero or missing. What each microbatch weighs is measured on "
    "gradients. Call finish after the last backward, before they are cleared."
)
SCALED_UP = 2.0**-6  # a divisor below this is the factor of a loss scaler


@dataclass(frozen=True)
class Place:
    """One term of one microbatch of one rank: where it is, how many tokens were counted, what its losses weigh."""

    rank: int
    microbatch: int
    term: str
    tokens: int
    calls: tuple[CallWeights, ...] = ()


@dataclass
class Prints:
    """Fingerprints of all ranks: of every piece, and of the reduced gradient.

    Attributes:
        keys: parameters, in one order on all ranks.
        local: [pieces, keys * PRINTS]; a piece that did not touch a parameter has zeros there.
        places: what each piece is.
        whole: the reduced gradient's, by parameter.
    """

    keys: list[Key]
    local: Floats
    places: list[Place]
    whole: dict[Key, Floats] = field(default_factory=dict)

    def of_term(self, term: str) -> Prints:
        """The same for one term of the loss; `whole` is empty."""
        chosen = [index for index, place in enumerate(self.places) if place.term == term]
        return Prints(self.keys, self.local[chosen], [self.places[index] for index in chosen])

    @cached_property
    def columns(self) -> dict[Key, slice]:
        """Where each parameter's fingerprints are in `local`."""
        return {key: slice(index * PRINTS, (index + 1) * PRINTS) for index, key in enumerate(self.keys)}

    def of_parameters(self, keys: Sequence[Key]) -> Floats:
        """The pieces' fingerprints of some parameters [pieces, keys * PRINTS]."""
        return np.concatenate([self.local[:, self.columns[key]] for key in keys], axis=1)

    def summed(self, key: Key) -> Floats:
        """The sum over all pieces of one parameter's fingerprints [PRINTS]."""
        return np.asarray(self.local[:, self.columns[key]].sum(axis=0))

    def size(self, key: Key) -> float:
        """The sum of the pieces' absolute fingerprints: what rounding is relative to."""
        return float(np.abs(self.local[:, self.columns[key]]).sum())


def bring_together(pieces: Sequence[Piece], ranks: Collective) -> Prints:
    """Everyone's fingerprints; a collective over `ranks`."""
    told = [
        [piece.term, int(piece.tokens), [astuple(call) for call in piece.call_weights()], piece.relative_prints()]
        for piece in pieces
    ]
    gathered = [json.loads(text) for text in ranks.gather(json.dumps(told))]
    keys = sorted({(key[0], key[1]) for told in gathered for *_, prints in told for key, _ in prints})
    column = {key: index * PRINTS for index, key in enumerate(keys)}
    places, rows = [], []
    for rank, told in enumerate(gathered):
        seen: dict[str, int] = {}
        for term, tokens, calls, prints in told:
            row = np.zeros(len(keys) * PRINTS)
            for key, values in prints:
                start = column[key[0], key[1]]
                row[start : start + PRINTS] = values
            seen[term] = seen.get(term, -1) + 1
            places.append(Place(rank, seen[term], term, tokens, tuple(CallWeights(*call) for call in calls)))
            rows.append(row)
    return Prints(keys, np.array(rows).reshape(len(rows), len(keys) * PRINTS), places)


def divisors(prints: Prints) -> dict[Key, float]:
    """What each parameter's gradient was divided by, as far as its fingerprints say.

    Raises:
        InputError: no parameter's gradient says anything, or a loss scaler's factor is still in it.
    """
    found: dict[Key, float] = {}
    for key, whole in prints.whole.items():
        summed = prints.summed(key)
        if np.abs(summed).max() > NOISE * prints.size(key) and float(summed @ whole) != 0.0:
            found[key] = float(summed @ summed) / float(summed @ whole)
    if not found:
        raise InputError(GONE)
    middle = float(np.median(list(found.values())))
    if 0 < middle < SCALED_UP:
        raise InputError(
            f"The gradients are {1 / middle:.6g} times the sum of the losses' gradients. A loss scaler's factor is "
            "still in them, and it would be divided out again after finish. Call scaler.unscale_(optimizer) first."
        )
    if all(abs(value - middle) <= SAME * abs(middle) for value in found.values()):
        return {key: _plain(middle) for key in prints.keys}
    return {key: _plain(found.get(key, middle)) for key in prints.keys}


def _plain(value: float) -> float:
    """The whole number, or the inverse of one, that a measured divisor stands for; itself where it is neither."""
    for number in (value, 1 / value):
        if number >= 0.5 and abs(number - round(number)) <= SAME * abs(number):
            return float(round(number)) if number is value else 1 / round(number)
    return value


@dataclass(frozen=True)
class GradientCheck:
    """How far the scaled gradient is from what it should be, and what each piece's loss sum got.

    Attributes:
        difference: relative; what `within` allows is rounding.
        weights: of each piece's loss sum, relative to what it should be; None where not determined.
    """

    difference: float
    within: float
    weights: list[float | None]


def check_gradient(
    prints: Prints,
    scaled: Mapping[Key, Floats],
    goals: Sequence[float],
    *,
    divisor: float | None,
    epsilon: float,
    ranks: Collective,
) -> GradientCheck:
    """Compare the scaled gradient's fingerprints with what they should be; a collective over `ranks`.

    Args:
        prints: the pieces' fingerprints, and those of the gradient before it was scaled, where it was looked at.
        scaled: those of the gradient as the optimizer will see it.
        goals: what each piece's loss sum should be multiplied by: coefficient over the term's tokens, [pieces].
        divisor: what the wrapper divides by, as the user said; None: it was measured, and a common factor is no fault.
        epsilon: machine epsilon of the coarsest gradient.
        ranks: all ranks' gradients have to agree.

    Raises:
        InputError: there is no gradient.

    A microbatch's gradient is rounded by half an epsilon at each of a few sums, scalings and casts. Where epsilon is
    small, 64 of it leave room for sums over many microbatches and ranks, and no fault is near. In bfloat16 that would
    be a half; there the rounding of single entries averages out over a gradient, and 4 epsilon are enough.
    """
    keys = [key for key in prints.keys if key in scaled]
    if not keys:
        raise InputError(GONE)
    observed = np.concatenate([scaled[key] for key in keys])
    parts = prints.of_parameters(keys) * np.array(goals)[:, None]
    size = float(np.linalg.norm(np.abs(parts).sum(axis=0))) or 1.0
    everyone = np.array([json.loads(text) for text in ranks.gather(json.dumps(observed.tolist()))])
    apart = float(np.abs(everyone - everyone[0]).max(initial=0.0)) / size
    difference = max(float(np.linalg.norm(observed - parts.sum(axis=0))) / size, apart)
    within = 64 * epsilon if epsilon <= FINE else 4 * epsilon
    if difference <= within:
        return GradientCheck(difference, within, [1.0] * len(parts))
    if prints.whole:  # scaling by what was measured on a faulty gradient hides what the fault was
        observed = np.concatenate([prints.whole[key] for key in keys])
        parts = prints.of_parameters(keys) / (divisor or 1.0)
    tokens = [place.tokens for place in prints.places] if divisor is None else None
    weights = _solved(parts, observed, tokens)
    return GradientCheck(difference if math.isfinite(difference) else math.inf, within, weights)


def _solved(parts: Floats, observed: Floats, tokens: Sequence[int] | None) -> list[float | None]:
    """The weights [pieces] with which the pieces' parts [pieces, prints] add up to the gradient [prints].

    With `tokens`, relative to the mean over all of them.
    """
    live = np.abs(parts).sum(axis=1) > 0
    if not np.isfinite(observed).all() or not live.any():
        return [None] * len(parts)
    solved, _, rank, _ = np.linalg.lstsq(parts[live].T, observed, rcond=1e-10)
    if rank < int(live.sum()):
        return [None] * len(parts)
    if tokens is not None:
        counts = np.array(tokens, dtype=np.float64)[live]
        solved = solved / (float(solved @ counts) / float(counts.sum()) or 1.0)
    found = iter(solved.tolist())
    return [next(found) if each else None for each in live]

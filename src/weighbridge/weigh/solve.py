"""The solve: weights of sequences from gradients alone, as a road to them that needs no hook in the loss.

Every rule of aggregation is linear. With G_s the gradient of sequence s's summed loss, taken in one process at the same
parameters, the gradient that an optimizer receives is

    g = sum over s of w_s * G_s

whatever was averaged with what, and w_s is the weight of each of the sequence's tokens: d(total loss) / d(its loss).
With more parameters than sequences that is an overdetermined system, and least squares gives w. What is left over,
|g - sum w_s G_s| / |g|, tells the kinds of fault apart: it is rounding where only weights are off, and large where
something else came into the gradient, such as another dropout mask, batch statistics, or tokens that were not there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weighbridge.errors import InputError

__all__ = ["Solution", "solve"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Solution:
    """Weights that explain a gradient.

    Attributes:
        weights: one a sequence [S]; NaN for a sequence whose own gradient is zero, as it has no token.
        residual: what the weights leave unexplained, as a part of the gradient's norm, from 0 to 1.
        unique: True where no other weights explain the gradient as well.
    """

    weights: Floats
    residual: float
    unique: bool


def solve(observed: npt.ArrayLike, sequence_gradients: npt.ArrayLike) -> Solution:
    """The weights w that minimise |observed - sum of w_s * sequence_gradients[s]|.

    Each sequence's gradient is divided by its norm before the solve and its weight afterwards, so that a long sequence
    doesn't spoil the precision of a short one's weight. The solution is unique if the gradients of the sequences with
    tokens are linearly independent, which needs at least as many parameters as such sequences, and no two sequences
    alike. One row of an embedding table that a single sequence uses tells that sequence from all others.

    Args:
        observed: the gradient that the optimizer receives, flat [P].
        sequence_gradients: gradient of each sequence's summed loss at the same parameters [S, P].

    Raises:
        InputError: the shapes don't match.

    >>> solution = solve([1.0, 4.0, 0.0], [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> [round(float(weight), 12) for weight in solution.weights], solution.residual < 1e-12, solution.unique
    ([0.5, 2.0], True, True)
    """
    g, rows = np.asarray(observed, dtype=np.float64), np.asarray(sequence_gradients, dtype=np.float64)
    if g.ndim != 1 or rows.ndim != 2 or rows.shape[1] != g.size:
        raise InputError(
            f"shapes are {g.shape} and {rows.shape}. The gradient is [P] and the sequences' gradients are "
            "[S, P] over the same P parameters. Flatten them in the same order."
        )
    norms = np.linalg.norm(rows, axis=1)
    counted = norms > 0
    weights = np.full(len(rows), np.nan)
    unit = rows[counted] / norms[counted, None]
    scaled, _, rank, _ = np.linalg.lstsq(unit.T, g, rcond=None)
    weights[counted] = scaled / norms[counted]
    size = float(np.linalg.norm(g))
    residual = float(np.linalg.norm(g - scaled @ unit)) / size if size else 0.0
    return Solution(weights, residual, bool(rank == len(unit)))

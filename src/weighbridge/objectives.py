"""What an author means by the loss of a step: the weight that every token should have.

A relative weight is the weight that was read divided by the one that the objective asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weighbridge.errors import InputError
from weighbridge.rules import BASES, RULES, Formula

__all__ = ["Objective", "parse_objective"]


@dataclass(frozen=True, slots=True)
class Objective:
    """What the author means: `text` as declared, `rule` its id in `weighbridge.rules`, `formula` its weights."""

    text: str
    rule: str
    formula: Formula


def parse_objective(text: str) -> Objective:
    """The objective that `text` names: token-mean, sequence-mean, sum, or constant:X (losses divided by X).

    Raises:
        InputError: the text names no objective, or X is not a positive finite number.

    >>> parse_objective("constant:512").formula.text
    '1/512'
    """
    name = text.strip()
    if name in ("token-mean", "sequence-mean"):
        return Objective(name, name, BASES[name].formulas[0])
    if name == "sum":
        return Objective(name, name, RULES[name].formulas[0])
    kind, colon, number = name.partition(":")
    if kind == "constant" and colon:
        return Objective(name, "constant", _constant(text, number))
    raise InputError(
        f"objective is {text!r}. An objective is one of token-mean, sequence-mean, sum and constant:X. "
        "Pass one of these."
    )


def _constant(text: str, number: str) -> Formula:
    try:
        divisor = float(number)
    except ValueError:
        divisor = math.nan
    if not math.isfinite(divisor) or divisor <= 0:
        raise InputError(
            f"objective is {text!r}. The X of constant:X is a positive number that losses are divided "
            "by. Pass one, as in constant:512."
        )
    return Formula("constant", f"1/{number.strip()}", lambda s: np.full_like(s.n, 1 / divisor))

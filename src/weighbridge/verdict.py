"""Weights or logged numbers in, verdicts out.

`judge_gradient` judges the weights that the probe read from the gradient, `judge_reported` one logged number. Both
name the rule that explains what they saw, list the rules that this batch could not tell from it, and say why when
they can't decide. How far a weight may be off is derived in `weighbridge.band`, which rule fits is found in
`weighbridge.matching` and `weighbridge.predictions`.
"""

from __future__ import annotations

from weighbridge.judge_gradient import judge_gradient
from weighbridge.judge_reported import judge_reported
from weighbridge.objectives import Objective, parse_objective

__all__ = ["Objective", "judge_gradient", "judge_reported", "parse_objective"]

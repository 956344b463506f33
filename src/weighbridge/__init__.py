"""weighbridge: how much does each token weigh in your distributed training step?

The public names are loaded when they are first used, so that `import weighbridge` costs next to nothing: neither torch
nor any framework is imported by it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weighbridge.marking import mark as mark
    from weighbridge.marking import report as report
    from weighbridge.mean import Mean as Mean
    from weighbridge.mean import token_mean as token_mean
    from weighbridge.tally import Tally as Tally
    from weighbridge.training import GradientNormalizer as GradientNormalizer
    from weighbridge.training import loss_scale as loss_scale

__version__ = "0.1.0"

_PUBLIC = {  # name: module that holds it
    "GradientNormalizer": "weighbridge.training",
    "Mean": "weighbridge.mean",
    "Tally": "weighbridge.tally",
    "loss_scale": "weighbridge.training",
    "mark": "weighbridge.marking",
    "report": "weighbridge.marking",
    "token_mean": "weighbridge.mean",
}

__all__ = ["GradientNormalizer", "Mean", "Tally", "loss_scale", "mark", "report", "token_mean"]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'weighbridge' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})

"""Exact sums on one thread against torch.sum and math.fsum."""

from __future__ import annotations

import math

import numpy as np
import torch
from timing import Line, medians

from weighbridge.exact import exact_lanes


def lines() -> list[Line]:
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    found = []
    for dtype, name in ((np.float32, "float32"), (np.float64, "float64")):
        for size, goal in ((65_536, None), (10**6, 2.0), (10**7, 3.0 if dtype == np.float32 else 2.0)):
            values = torch.from_numpy(generator.gamma(2, 1.5, size).astype(dtype))
            mask = torch.from_numpy(generator.random(size) < 0.8)
            repeats = 15 if size > 10**6 else 51
            ours, masked, theirs = medians(
                lambda v=values: exact_lanes(v),  # type: ignore[misc]
                lambda v=values, m=mask: exact_lanes(v, m),  # type: ignore[misc]
                lambda v=values: v.sum(),  # type: ignore[misc]
                repeats=repeats,
            )
            against = f"torch.sum {name}"
            found.append(Line(f"exact sum, {name}, {size:,} values", against, ours, theirs, goal))
            found.append(Line("the same with a mask of 80 %", against, masked, theirs))
    values = generator.gamma(2, 1.5, 10**6)
    ours, theirs = medians(lambda: exact_lanes(values), lambda: math.fsum(values), repeats=5)
    found.append(Line("exact sum, float64, 1,000,000 values", "math.fsum", ours, theirs, 0.01))
    narrow = torch.from_numpy(values.astype(np.float32))
    ours, theirs = medians(lambda: exact_lanes(narrow, producer="torch"), lambda: narrow.sum(), repeats=15)
    note = f"{ours * 1e3:.2f} ns per value (goal 4)"
    found.append(Line("plain torch producer, float32, 1,000,000 values", "torch.sum float32", ours, theirs, note=note))
    return found

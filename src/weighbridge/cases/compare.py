"""When two JSON values count as the same answer.

Numbers are equal as numbers, so 1 is 1.0. None is only None: not 0, not NaN. A bool is not a number, although
Python says so. Lists and objects are the same if their members are. A program shows NaN and infinity as the strings
"nan" and "inf", since JSON has no such numbers.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["plain", "same"]


def same(actual: Any, expected: Any, *, tolerance: float = 0.0) -> bool:
    """Whether `actual` is the answer `expected`; `tolerance` is relative, and 0 asks for the very same number.

    >>> same(1, 1.0), same(True, 1), same(0, None)
    (True, False, False)
    """
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    if isinstance(actual, (int, float)) and isinstance(expected, (int, float)):
        return actual == expected or _close(actual, expected, tolerance)
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(
            same(one, other, tolerance=tolerance) for one, other in zip(actual, expected, strict=True)
        )
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            same(actual[key], expected[key], tolerance=tolerance) for key in actual
        )
    return type(actual) is type(expected) and bool(actual == expected)


def plain(value: Any) -> Any:
    """`value` as JSON can show it: tuples as lists, NaN and infinity by name, any other object by its type's name."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return type(value).__name__


def _close(actual: float, expected: float, tolerance: float) -> bool:
    try:
        return tolerance > 0 and math.isclose(actual, expected, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # a whole number too large for a float is close to no other
        return False

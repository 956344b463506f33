"""Fixture values written in terms of N.

An entry is data that a stranger may have written, so its values are never handed to `eval`: the few kinds of
expression that fixtures need are walked by hand, and everything else is refused by name.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from weighbridge.errors import InputError

__all__ = ["evaluate"]

_MOST_ITEMS = 1_000_000
_MOST_TEXT = 20_000

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_CONSTANTS = {"nan": math.nan, "inf": math.inf}
_FUNCTIONS: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "log": math.log, "exp": math.exp}


def evaluate(text: str, *, n: int) -> Any:
    """The value of `text` with N set to `n`.

    Numbers, strings, True, False, None, lists, tuples, dicts, arithmetic, N, and `math.` nan, inf, sqrt, log, exp.

        >>> evaluate("[[N, 1], [9*N, 3]]", n=2)
        [[2, 1], [18, 3]]

    Raises InputError for anything else.
    """
    if len(text) > _MOST_TEXT:
        raise InputError(f"A fixture value is {len(text)} characters long. At most {_MOST_TEXT} are read. Shorten it.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _walk(tree.body, n)
    except (SyntaxError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"The fixture value {_short(text)} can't be worked out at N = {n}: {error}. "
            "A value is a Python expression in N. Correct it in case.toml."
        ) from error


def _walk(node: ast.expr, n: int) -> Any:
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, (bool, int, float, str)):
            return value
        case ast.Name(id="N"):
            return n
        case ast.List(elts=items):
            return [_walk(item, n) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_walk(item, n) for item in items)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_walk(key, n): _walk(value, n) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_walk(operand, n)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _combine(op, _walk(left, n), _walk(right, n))
        case ast.Attribute(value=ast.Name(id="math"), attr=attr) if attr in _CONSTANTS:
            return _CONSTANTS[attr]
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=attr), args=[argument], keywords=[]) if (
            attr in _FUNCTIONS
        ):
            return _FUNCTIONS[attr](_walk(argument, n))
    raise InputError(
        f"A fixture value holds {_short(ast.unparse(node))}. Values are made of numbers, strings, None, lists, dicts, "
        "arithmetic, N, and math.nan, inf, sqrt, log, exp. Write it with those."
    )


def _combine(op: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(op, ast.Mult):
        for items, times in ((left, right), (right, left)):
            if isinstance(items, (list, tuple, str)) and isinstance(times, int) and len(items) * times > _MOST_ITEMS:
                raise InputError(f"A fixture repeats a list to {len(items) * times} items. At most {_MOST_ITEMS}.")
    if isinstance(op, ast.Pow) and (not isinstance(right, int) or right > 1000 or abs(left) > 1e6):
        raise InputError(f"A fixture raises {left} to the power {right}. The power is a whole number up to 1000.")
    return _BINARY[type(op)](left, right)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

"""Mutants of a program: cosmic-ray's operators, and two of our own.

cosmic-ray is run as a library, for its operators only: wrong binary and comparison operators, numbers off by one,
negated conditions, loops that never run. It has none that drops a guard or takes the wrong one of two quantities, the
faults that this catalogue is about, so those are added here: `without_guards` makes each condition true in turn, and
`with_wrong_names` reads another of the program's variables in one place.
"""

from __future__ import annotations

import ast
import copy
import hashlib

from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

__all__ = ["choose_mutants"]


def choose_mutants(source: str, *, count: int) -> list[str]:
    """`count` distinct mutants of `source` (or all, if there are fewer): guards first, then by hash, so repeatable."""
    guards = without_guards(source)
    others = sorted({*by_operator(source), *with_wrong_names(source)}, key=_hash)
    known = {ast.unparse(ast.parse(source))}
    chosen: list[str] = []
    for text in guards + others:
        shape = ast.unparse(ast.parse(text))
        if shape not in known:
            known.add(shape)
            chosen.append(text)
    return chosen[:count]


def by_operator(source: str) -> list[str]:
    """Every mutant that one of cosmic-ray's operators makes of `source` in one place."""
    mutants = []
    for name in sorted(operator_names()):
        if name.endswith(("_Is", "_IsNot")):  # identity for equality: no other result for these programs' constants
            continue
        operator_class = get_operator(name)
        if operator_class.arguments():  # such as the name of a decorator: these programs have none
            continue
        occurrence = 0
        while (text := mutate_code(source.encode(), operator_class(), occurrence)) is not None:
            mutants.append(text)
            occurrence += 1
    return [text for text in mutants if _parses(text)]


def without_guards(source: str) -> list[str]:
    """`source` with one condition (of an if, a conditional expression, a comprehension) made true, for each in turn."""
    tree = ast.parse(source)
    mutants = []
    for index, node in enumerate(ast.walk(tree)):
        places: list[int | None] = []
        if isinstance(node, (ast.If, ast.IfExp)):
            places = [None]
        elif isinstance(node, ast.comprehension):
            places = list(range(len(node.ifs)))
        for place in places:
            changed = copy.deepcopy(tree)
            target = list(ast.walk(changed))[index]
            if place is None:
                target.test = ast.Constant(True)  # type: ignore[attr-defined]
            else:
                target.ifs[place] = ast.Constant(True)  # type: ignore[attr-defined]
            mutants.append(ast.unparse(changed) + "\n")
    return mutants


def with_wrong_names(source: str) -> list[str]:
    """`source` with one variable read where another of its variables was meant, for every such pair."""
    tree = ast.parse(source)
    names = sorted(
        {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    )
    mutants = []
    for index, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            for other in names:
                changed = copy.deepcopy(tree)
                target = list(ast.walk(changed))[index]
                target.id = other  # type: ignore[attr-defined]
                mutants.append(ast.unparse(changed) + "\n")
    return mutants


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True

"""Fixture values in N, and when two answers are the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.cases.catalogue import load_catalogue
from weighbridge.cases.compare import plain, same
from weighbridge.cases.entry import Implementation
from weighbridge.cases.expressions import evaluate
from weighbridge.cases.programs import published_program
from weighbridge.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[[N, 1], [9*N, 3]]", [[3, 1], [27, 3]]),
        ("2.5*N", 7.5),
        ("None", None),
        ("{'a': -N, 'b': (N, 'x')}", {"a": -3, "b": (3, "x")}),
        ("[[N]] * 2 + [[1]]", [[3], [3], [1]]),
        ("math.sqrt(3*N) + N**2", 12.0),
        ("math.inf", math.inf),
        ("(7*N)//2 % 4 - 1", 1),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert evaluate(text, n=3) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "N.bit_length()",
        "[x for x in [N]]",
        "lambda: N",
        "M",
        "math.pi",
        "math.factorial(9)",
        "1/0",
        "[1] * 10**9",
        "9**9**9",
        "10**100000",
        "{**{}}",
        "[",
        "'a' + 1",
        "1j",
        "(" * 5000 + "1" + ")" * 5000,
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        evaluate(text, n=1)


def test_numbers_are_equal_as_numbers_and_nothing_else_is() -> None:
    assert same(1, 1.0)
    assert same([1, {"a": 2.0}], [1.0, {"a": 2}])
    assert same(None, None)
    assert same("nan", "nan")
    assert same(10**400, 10**400)
    for actual, expected in [
        (True, 1),
        (0, False),
        (None, 0),
        (0, None),
        (None, "nan"),
        ("1", 1),
        ([1], [1, 1]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
        (1, 1 + 1e-12),
        (10**400, 1.0),
        ([], {}),
        (None, []),
    ]:
        assert not same(actual, expected)


def test_a_tolerance_is_relative_and_asked_for() -> None:
    assert same(1e6, 1e6 + 1e-7, tolerance=1e-12)
    assert not same(1.0, 1.0 + 1e-9, tolerance=1e-12)
    assert not same(10**400, 1.0, tolerance=1e-6)
    assert not same(True, 1.0, tolerance=1e-6)


def test_plain_shows_what_json_can_hold() -> None:
    assert plain((1, [math.nan, -math.inf], {1: object()})) == [1, ["nan", "-inf"], {"1": "object"}]


numbers = st.one_of(st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, 2.5, math.nan, math.inf]), st.none())
values = st.recursive(
    st.one_of(numbers, st.sampled_from(["", "nan", "1"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=5,
)


@given(values, values)
def test_published_programs_compare_as_we_do(one: Any, other: Any) -> None:
    """A published program can't import our rules, so it repeats them; here the two are held together."""
    actual, expected = plain(one), plain(other)
    assert PUBLISHED["plain"](one) == actual
    assert PUBLISHED["same"](actual, expected) is same(actual, expected)
    assert PUBLISHED["same"](actual, actual)


def functions_of_a_published_program() -> dict[str, Any]:
    text = published_program(load_catalogue()[0], Implementation.REPAIR, n=1)
    space: dict[str, Any] = {}
    exec(text[: text.index("observations = []")], space)
    return space


PUBLISHED = functions_of_a_published_program()

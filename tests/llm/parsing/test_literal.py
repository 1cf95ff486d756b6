"""Python literals as models write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovserve.llm.parsing.literal import python_literal

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_repr_is_read_back(value: object) -> None:
    found = python_literal(repr(value))
    assert found is not None
    assert json.loads(found) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'it's fine'", "it's fine"),
        ("['it's', 'fine']", ["it's", "fine"]),
        (r'"C:\Users\x"', r"C:\Users\x"),
        (r'"C:\new\Users"', r"C:\new\Users"),
        (r'"\d+\n"', "\\d+\n"),
        ("'a\nb'", "a\nb"),
        ('"""say "hi", ok"""', 'say "hi", ok'),
        (r"'\u00e9\x41\101'", "éAA"),
        (r"'\ud83e\udd86'", "🦆"),
        ("(1, 2,)", [1, 2]),
        ("{'a': true, 1: null}", {"a": True, "1": None}),
        ("-.5e3", -500),
        ("5.", 5),
        ("1_000", 1000),
        ("0b11", 3),
        ("007", 7),
    ],
)
def test_by_ear(text: str, expected: object) -> None:
    found = python_literal(text)
    assert found is not None
    assert json.loads(found) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Oslo",
        "f(1)",
        "[1",
        "1 2",
        "'a",
        "{1}",
        "[1 2]",
        "--1",
        "1.2.3",
        "nan",
        "1e",
        "[" * 5000,
        "9" * 9999 + "_1",
    ],
)
def test_no_literal(text: str) -> None:
    assert python_literal(text) is None

"""Bounded repetition is written in blocks: the same lengths as the plain form, in few rules."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ovserve.llm.grammar.rules import Rules
from ovserve.llm.grammar.text import BLOCK_REPETITIONS, INLINE_REPETITIONS, repeated
from ovserve.llm.grammar.writer import write
from tests.breadth import examples
from tests.bytewise import instances
from tests.ebnf import parse

BORDERS = [
    near
    for size in (BLOCK_REPETITIONS, INLINE_REPETITIONS, BLOCK_REPETITIONS**2)
    for near in range(size - 2, size + 3)
]
COUNTS = st.sampled_from(BORDERS) | st.integers(0, 3000)


def grammar(unit: str, least: int, most: int) -> str:
    rules = Rules()
    written = rules.write(rules.text(repeated(unit, least, most, rules.name_rule)))
    assert written is not None
    return written


def lengths(text: str) -> set[int]:
    """Of all texts of a grammar without recursion."""
    rules = parse(text)
    known: dict[str, set[int]] = {}

    def add(one: set[int], other: set[int]) -> set[int]:
        return {a + b for a in one for b in other}

    def of(node: Any) -> set[int]:
        kind = node[0]
        if kind == "rule":
            if node[1] not in known:
                known[node[1]] = of(rules[node[1]])
            return known[node[1]]
        if kind == "or":
            return set().union(*map(of, node[1]))
        found = {0}
        if kind == "all":
            for part in node[1]:
                found = add(found, of(part))
            return found
        if kind == "repeat":
            _, inner, least, most = node
            each, power, found = of(inner), {0}, set()
            for count in range(most + 1):
                found |= power if count >= least else set()
                power = add(power, each)
            return found
        return {1 if kind == "class" else len(node[1])}

    return of(("rule", "root"))


@settings(max_examples=examples(25), deadline=None)
@given(least=COUNTS, more=COUNTS)
@example(0, 1000)
@example(0, BLOCK_REPETITIONS**2)
@example(BLOCK_REPETITIONS**2, 0)
@example(0, INLINE_REPETITIONS + 1)
def test_the_lengths_are_those_of_the_plain_form(least: int, more: int) -> None:
    most = max(least + more, 1)
    written = grammar("[a-z]", least, most)
    assert lengths(written) == set(range(least, most + 1))


def test_a_large_bound_has_a_short_text() -> None:
    assert len(grammar("[a-z]", 0, 64)) < 40, "what is short is written as it stands"
    assert len(grammar("[a-z]", 0, 10**6)) < 500
    assert len(grammar("[a-z]", 999_999, 10**6)) < 500


def test_lengths_of_strings_and_patterns() -> None:
    for schema, least, most in (
        ({"maxLength": 100}, 0, 100),
        ({"minLength": 70, "maxLength": 96}, 70, 96),
        ({"minLength": 96, "maxLength": 96}, 96, 96),
        ({"pattern": "^x{3,97}$"}, 3, 97),
        ({"pattern": "^(a|b){128}$"}, 128, 128),
    ):
        language = instances({"type": "string", **schema})
        char = "x" if "x" in str(schema.get("pattern", "x")) else "a"
        for count in (least - 1, least, most, most + 1):
            if count >= 0:
                text = f'"{char * count}"'
                assert (text in language) is (least <= count <= most), (schema, count)


def test_strings_with_a_bound_may_hold_escapes() -> None:
    for schema in (
        {"maxLength": 9},
        {"maxLength": 500},
        {"minLength": 3},
        {"minLength": 3, "maxLength": 40000},
    ):
        language = instances({"type": "string", **schema})
        for value in ('a "b"\n', "a\\b\t\u0001", "\U0001d54f\u00e9\u4e2d"):
            assert json.dumps(value) in language, (schema, value)
            assert json.dumps(value, ensure_ascii=False) in language, (schema, value)
    assert json.dumps("\n" * 10) not in instances({"type": "string", "maxLength": 9})


def test_a_least_length_without_a_bound_above() -> None:
    for schema in ({"minLength": 100}, {"pattern": "^x{100,}$"}):
        written = write({"type": "string", **schema})
        assert not written.unenforced
        assert len(written.grammar) < 3500

"""Schemas under the library's own matcher: every text by chance is an instance, and usual values are accepted.

Chance has the tokens of the real model, all equally likely, which is sampling at an endless temperature.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from ovserve.llm.grammar.constraint import Constraint, constrain
from ovserve.llm.grammar.formats import EXPRESSIONS
from ovserve.llm.grammar.writer import compact
from tests.breadth import examples
from tests.engine.walks import Walks

pytestmark = pytest.mark.long

NUMBERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"exclusiveMinimum": 0.1, "maximum": 0.2}, ["0.2", "0.15", "0.1001"]),
    ({"minimum": 0.5, "maximum": 2.5}, ["0.5", "2.5", "1", "1.75"]),
    ({"minimum": 0, "maximum": 1}, ["0", "1", "0.827"]),
    ({"exclusiveMinimum": 0}, ["0.001", "12345"]),
    ({"minimum": -1.5, "exclusiveMaximum": -0.25}, ["-1.5", "-1", "-0.26"]),
    ({"maximum": -3}, ["-3", "-1000.5"]),
    ({"minimum": -2, "maximum": 1e300}, ["-2", "0", "100000.5"]),
    ({"minimum": 0, "maximum": 5, "multipleOf": 0.25}, ["0.25", "5", "4.5"]),
    ({"type": "integer", "minimum": -5, "maximum": 120}, ["-5", "0", "99", "120"]),
    ({"type": "integer", "multipleOf": 7, "minimum": 1}, ["7", "700"]),
]
OTHERS: list[dict[str, Any]] = [
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": '[^a-z]{1,9}"?'},
    {"properties": {"a": {"type": "null"}, "b": {"enum": [1, "x"]}}, "additionalProperties": {"type": "integer"}},
    {"required": ["a/b"], "additionalProperties": {"$ref": "#/$defs/x~1y"}, "$defs": {"x/y": {"type": "boolean"}}},
    {"allOf": [{"type": "object", "properties": {"n": {"minimum": 1}}}, {"properties": {"n": {"maximum": 2}}}]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
]  # fmt: skip
LENGTHS: list[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ({"maxLength": 96}, (0, 31, 32, 33, 95, 96), (97,)),
    ({"minLength": 33, "maxLength": 1030}, (33, 1030), (32, 1031)),  # 17 ms a token
    ({"minLength": 70}, (70, 200), (69,)),
    ({"pattern": "^[a-z]{2,100}$"}, (2, 99, 100), (1, 101)),
]


@pytest.fixture(scope="module")
def walks(model_path: str) -> Walks:
    return Walks(model_path)


def constraint(schema: dict[str, Any]) -> Constraint:
    return constrain(compact(schema), "x")


def check(walks: Walks, schema: dict[str, Any]) -> None:
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    ends = 0
    for seed in range(examples(6)):
        text, ended = walks.anything(constraint(schema), seed, tokens=200)
        ends += ended
        if ended:
            assert judge.is_valid(json.loads(text)), text
    assert ends


@pytest.mark.parametrize(("bounds", "values"), NUMBERS)
def test_numbers(walks: Walks, bounds: dict[str, Any], values: list[str]) -> None:
    schema = {"type": "number", **bounds}
    check(walks, schema)
    walks.learn(values)
    assert [walks.tries(constraint(schema), value) for value in values] == values


# A random walk through parts without a bound hardly ever ends.
UNBOUNDED = {"uri": '"https://a.example:80/b/c?d=e#f"', "iri": '"https://\u00e4.example/\u00f6?d=\u4e2d#f"'}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_formats(walks: Walks, name: str) -> None:
    schema = {"type": "string", "format": name}
    if (value := UNBOUNDED.get(name)) is None:
        check(walks, schema)
        return
    walks.learn([value])
    assert walks.tries(constraint(schema), value) == value


@pytest.mark.parametrize("schema", OTHERS)
def test_other_schemas(walks: Walks, schema: dict[str, Any]) -> None:
    check(walks, schema)


def test_a_thousand_optional_properties(walks: Walks) -> None:
    check(walks, {"type": "object", "properties": {f"k{i}": {"type": "boolean"} for i in range(1000)}})


@pytest.mark.parametrize(("schema", "good", "bad"), LENGTHS)
def test_lengths_around_the_borders_of_blocks(
    walks: Walks, schema: dict[str, Any], good: tuple[int, ...], bad: tuple[int, ...]
) -> None:
    texts = {count: '"' + ("lorem" * 300)[:count] + '"' for count in (*good, *bad)}
    walks.learn(texts.values())
    asked = constraint({"type": "string", **schema})
    for count, text in texts.items():
        assert (walks.tries(asked, text) == text) is (count in good), count

"""Untyped text that becomes the wrong JSON: by schema, by union, by reference."""

from __future__ import annotations

from typing import Any

import pytest

from ovserve.llm.parsing.literal import Tools, to_json
from tests.llm.parsing.cuts import tool


def typed(text: str, schema: dict[str, Any] | None, **definitions: Any) -> str:
    made = tool("f", **({"p": schema} if schema is not None else {}))
    made["function"]["parameters"]["$defs"] = definitions
    return to_json(text, Tools([made]).types("f", "p"))


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("3.10", {"type": "string"}, '"3.10"'),
        ('{ "a":1 }', {"type": "string"}, '"{ \\"a\\":1 }"'),
        ('"x"', {"type": "string"}, '"\\"x\\""'),
        ("null", {"type": "string"}, '"null"'),
        (" keep ", {"type": "string"}, '" keep "'),
        ("7", {"type": "integer"}, "7"),
        ("9007199254740993", {"type": "integer"}, "9007199254740993"),
        (" 1.50\n", {"type": "number"}, "1.50"),
        (".5", {"type": "number"}, "0.5"),
        ("+3", {"type": "integer"}, "3"),
        ("1_000", {"type": "integer"}, "1000"),
        ("0x1F", {"type": "integer"}, "31"),
        ("abc", {"type": "integer"}, '"abc"'),
        ("True", {"type": "boolean"}, "true"),
        ("FALSE", {"type": "boolean"}, "false"),
        ("None", {"type": ["integer", "null"]}, "null"),
        ("null", {"type": ["string", "null"]}, "null"),
        ("5", {"type": ["string", "null"]}, '"5"'),
        ("5", {"type": "STRING"}, '"5"'),
        ("true", {"type": "str"}, '"true"'),
        ("5", {"type": ["TEXT", "NULL"]}, '"5"'),
        ("TRUE", {"type": "BOOLEAN"}, "true"),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5"),
        ("null", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null"),
        ("42", {"oneOf": [{"type": "string"}, {"type": "integer"}]}, "42"),
        ("true", {"type": ["string", "boolean"]}, "true"),
        ("hello", {"type": ["string", "object"]}, '"hello"'),
        ("{'a': [True, None]}", {"type": "object"}, '{"a": [true, null]}'),
        ("['x', \"it's\"]", {"type": "array"}, '["x", "it\'s"]'),
        ('{"a": "x\ny"}', {"type": "object"}, '{"a": "x\\ny"}'),
        ("{broken", {"type": "object"}, '"{broken"'),
        ("1", {"enum": ["1", "2"]}, '"1"'),
        ("1", {"enum": [1, 2]}, "1"),
        ("2", {"const": 2}, "2"),
        ('{"x": 1}', {"$ref": "#/$defs/point"}, '{"x": 1}'),
        ("12", {"$ref": "#/$defs/code"}, '"12"'),
        ("x", {"$ref": "#/$defs/loop"}, '"x"'),
        ("{'a': 1}", {"properties": {}}, '{"a": 1}'),
        ("null", {"type": "integer", "nullable": True}, "null"),
        ("3", None, "3"),
        ("Mars", None, '"Mars"'),
        ("", {"type": "integer"}, '""'),
    ],
)
def test_by_schema(text: str, schema: dict[str, Any] | None, expected: str) -> None:
    definitions = {"point": {"type": "object"}, "code": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    assert typed(text, schema, **definitions) == expected


def test_tools_of_any_shape() -> None:
    odd: list[Any] = [None, 5, {}, {"function": None}, {"function": {"name": 3}}, {"name": "flat"}]
    odd += [
        {"function": {"name": "g", "parameters": None}},
        {"function": {"name": "h", "parameters": {"properties": []}}},
    ]
    tools = Tools(odd)
    assert "flat" in tools
    assert all(not tools.types(name, "p") for name in ("flat", "g", "h", "unknown"))

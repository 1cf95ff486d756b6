"""The values of `enum` and `const`, and when two values are equal."""

from __future__ import annotations

from typing import Any

from ovserve.llm.grammar import text
from ovserve.llm.grammar.conjunction import Schema
from ovserve.llm.grammar.rule_writer import RuleWriter


def common(writer: RuleWriter, plain: tuple[Schema, ...]) -> list[Any] | None:
    """Return the values that every `enum` and `const` has, each once, in their order; None without any."""
    lists = []
    for node in plain:
        if "const" in node:
            lists.append([node["const"]])
        if "enum" in node:
            if not isinstance(node["enum"], list):
                raise writer.document.fault(node, "enum", "expected an array", node["enum"])
            lists.append(node["enum"])
    if not lists:
        return None
    tables = []
    for values in lists:
        writer.rules.spend(len(values))
        table: dict[Any, Any] = {}
        for value in values:
            table.setdefault(identity(value), value)
        tables.append(table)
    return [value for key, value in tables[0].items() if all(key in table for table in tables[1:])]


def identity(value: Any) -> Any:
    """Return a key of equality: 1 and 1.0 are one value, 1 and true are two."""
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, list):
        return ("array", tuple(map(identity, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(part)) for name, part in value.items()))
    return ("string", value) if isinstance(value, str) else ("json", text.one_line(value))


def is_kind(value: Any, kind: Any) -> bool:
    """Return whether the value is of this type of JSON schema."""
    if isinstance(value, bool):
        return bool(kind == "boolean")
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return bool(names.get(type(value)) == kind)

"""Filter the values of `enum` and `const` by the other keywords, as far as simple checks go."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ovserve.llm.grammar import text
from ovserve.llm.grammar.conjunction import Schema

if TYPE_CHECKING:
    from ovserve.llm.grammar.writer import Writer

_UNJUDGED: dict[type, tuple[str, ...]] = {
    str: ("pattern", "format"),
    dict: ("properties", "required", "additionalProperties", "patternProperties", "propertyNames",
           "minProperties", "maxProperties", "unevaluatedProperties"),
    list: ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems"),
}  # fmt: skip


def admitted(writer: Writer, plain: tuple[Schema, ...]) -> list[Any]:
    """Return the admitted values, each once, in their order."""
    lists = []
    for node in plain:
        if "const" in node:
            lists.append([node["const"]])
        if "enum" in node:
            if not isinstance(node["enum"], list):
                raise writer.document.fault(node, "enum", "expected an array", node["enum"])
            lists.append(node["enum"])
    tables = []
    for values in lists:
        writer.rules.spend(len(values))
        tables.append({identity(value): value for value in values})
    found = [value for key, value in tables[0].items() if all(key in table for table in tables[1:])]
    writer.rules.spend(len(found) * len(plain))
    kept = [value for value in found if all(_admits(value, node) for node in plain)]
    for kind in {type(value) for value in kept}:
        writer.asked(plain, *_UNJUDGED.get(kind, ()))
    return kept


def identity(value: Any) -> Any:
    """Return a key of equality: 1 and 1.0 are one value, 1 and true are two."""
    if isinstance(value, bool) or value is None:
        return ("constant", value)
    if isinstance(value, int | float):
        return ("number", value)
    return ("string", value) if isinstance(value, str) else ("json", text.one_line(value))


def _admits(value: Any, node: Schema) -> bool:
    kinds = node.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    if isinstance(kinds, list) and not any(_is(value, kind) for kind in kinds):
        return False
    if isinstance(value, str):
        return _between(len(value), node, "minLength", "maxLength")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if not _between(value, node, "minimum", "maximum"):
        return False
    above, below = _number(node, "exclusiveMinimum"), _number(node, "exclusiveMaximum")
    if (above is not None and value <= above) or (below is not None and value >= below):
        return False
    multiple = _number(node, "multipleOf")
    return not multiple or Fraction(repr(value)) % Fraction(repr(multiple)) == 0


def _between(value: float, node: Schema, least: str, most: str) -> bool:
    low, high = _number(node, least), _number(node, most)
    return (low is None or value >= low) and (high is None or value <= high)


def _number(node: Schema, keyword: str) -> float | None:
    value = node.get(keyword)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return bool(kind == "boolean")
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return bool(names.get(type(value)) == kind)

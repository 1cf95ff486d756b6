"""The rules of a grammar while a schema is written, and what the keywords of its subschemas say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ovserve.llm.grammar import numbers, text
from ovserve.llm.grammar.conjunction import Conjunction, Document, Schema
from ovserve.llm.grammar.rules import STEP_BYTES, Rules

_ENDLESS = (math.inf, -math.inf)  # no integer is compared as a double: one beyond it would raise
MAX_COUNT = 2**31 - 1
KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
_OBJECT_SIGNS = frozenset(
    (
        "properties", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
        "required",
    )
)  # fmt: skip
_ARRAY_SIGNS = frozenset(("items", "prefixItems", "unevaluatedItems"))
MAX_COMPARISONS = 4000  # of conjunctions, in all unions of a schema


class RuleWriter:
    """Each conjunction of subschemas is one rule, which is filled later: `todo`."""

    def __init__(self, rules: Rules, document: Document, *, exact: bool) -> None:
        self.rules, self.document, self.exact = rules, document, exact
        self.comparisons = MAX_COMPARISONS  # left for finding out which branches exclude each other
        self._known: dict[Any, tuple[int, Conjunction]] = {}  # holds the objects whose ids are the key
        self.todo: list[tuple[int, Conjunction]] = []

    def rule(self, conjunction: Conjunction | None) -> int:
        """Return the rule of these subschemas, written later; for None, a rule that matches no text."""
        if conjunction is None:
            return self.rules.new()
        key = conjunction.key
        if key not in self._known:
            self._known[key] = self.rules.new(), conjunction
            self.todo.append(self._known[key])
        return self._known[key][0]

    def contradiction(self, rule: int, schema: Any) -> list[str]:
        """Return the paths of the keywords because of which a schema with this rule has no instance."""
        by_rule = dict(self._known.values())
        some = [by_rule[one] for one in self.rules.missing(rule) if one in by_rule]
        choice = next((one for one in some if one.unions), None)
        whole = [Conjunction((schema,) if isinstance(schema, Mapping) else ())]
        return self.document.assertions(choice or (some or whole)[-1])

    def of(self, *schemas: Any) -> int:
        return self.rule(self.document.conjunction(*schemas))

    def numbers_of(self, plain: tuple[Schema, ...], keyword: str) -> list[tuple[Schema, Any]]:
        """Return the values of a numeric keyword. Raises InvalidArgument for another value."""
        pairs = []
        for node in plain:
            if keyword in node:
                value = node[keyword]
                if isinstance(value, bool) or not isinstance(value, int | float) or value in _ENDLESS:
                    raise self.document.fault(node, keyword, "expected a number", value)
                pairs.append((node, value))
        return pairs

    def count(self, plain: tuple[Schema, ...], least: str, most: str) -> tuple[int, int | None]:
        """Return the strictest bounds on a count. One that no answer can exceed is none: XGrammar reads no
        greater one."""
        for keyword in (least, most):
            for node, value in self.numbers_of(plain, keyword):
                if value < 0 or value != int(value):
                    raise self.document.fault(node, keyword, "expected a count", value)
        lows = [int(value) for _, value in self.numbers_of(plain, least)]
        highs = [int(value) for _, value in self.numbers_of(plain, most)]
        return max(lows, default=0), min((high for high in highs if high <= MAX_COUNT), default=None)

    def mapping(self, node: Schema, keyword: str) -> Mapping[str, Any]:
        value = node.get(keyword, {})
        if not isinstance(value, Mapping):
            raise self.document.fault(node, keyword, "expected an object", value)
        return value

    def prefix(self, node: Schema) -> list[Any]:
        """Return the schemas of the first items; drafts before 2020 write them as an array in `items`."""
        prefix = node.get("prefixItems", node.get("items") if isinstance(node.get("items"), list) else [])
        if not isinstance(prefix, list):
            raise self.document.fault(node, "prefixItems", "expected an array", prefix)
        return prefix

    def required(self, node: Schema) -> dict[str, None]:
        value = node.get("required", [])
        if isinstance(value, bool) or value == {}:  # draft 3, inside a property; an empty list of PHP
            return {}
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.document.fault(node, "required", "expected an array of names", value)
        self.rules.spend(len(value))
        return dict.fromkeys(value)

    def report_present(self, plain: tuple[Schema, ...], *keywords: str) -> None:
        for node in plain:
            for keyword in keywords:
                if keyword in node:
                    self.document.report(node, keyword)

    def literal(self, value: Any) -> str:
        """Return JSON in one line, in the form of an EBNF literal."""
        line = text.one_line(value)
        self.rules.spend(len(line) // STEP_BYTES)
        return text.quoted(line)

    def kinds(self, plain: tuple[Schema, ...]) -> set[str]:
        allowed = set(KINDS)
        for node in plain:
            if "type" not in node:
                continue
            value = node["type"]
            kinds = [value] if isinstance(value, str) else value
            if isinstance(kinds, list):  # YAML reads an unquoted null in a list as null
                kinds = ["null" if kind is None else kind for kind in kinds]
            if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) for kind in kinds):
                raise self.document.fault(node, "type", "expected a type or an array of types", value)
            for kind in kinds:
                if kind not in KINDS:
                    raise self.document.fault(node, "type", f"expected one of {', '.join(KINDS)}", kind)
            allowed &= {*kinds, "integer"} if "number" in kinds else set(kinds)
        if self.exact or any("type" in node for node in plain):
            return allowed
        if any(node.keys() & _OBJECT_SIGNS for node in plain):
            return {"object"}
        return {"array"} if any(node.keys() & _ARRAY_SIGNS for node in plain) else allowed

    def bounds(self, plain: tuple[Schema, ...], range_: numbers.Range) -> None:
        for node in plain:  # in draft 4 a boolean makes a bound exclusive
            for keyword, other, take in (
                ("minimum", "exclusiveMinimum", range_.at_least),
                ("maximum", "exclusiveMaximum", range_.at_most),
            ):
                flag = node.get(other)
                for _, value in self.numbers_of((node,), keyword):
                    take(value, exclusive=flag is True)
                if not isinstance(flag, bool):
                    for _, value in self.numbers_of((node,), other):
                        take(value, exclusive=True)
        for node, value in self.numbers_of(plain, "multipleOf"):
            if value <= 0:
                raise self.document.fault(node, "multipleOf", "expected a number above 0", value)
            range_.multiple_of(value)


# The values of enum and const, and when two values are equal.


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

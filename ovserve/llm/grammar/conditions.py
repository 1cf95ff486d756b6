"""`not`, `if` and the dependent keywords as alternatives: lists of schemas of which at least one holds.

A negation is exact if it can be. Otherwise it is a part of what a schema does not admit, so that some valid
instances are not written, but no invalid one is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from typing import Any

from ovserve.llm.grammar import patterns
from ovserve.llm.grammar.conjunction import CONDITIONS, Conjunction, Document, Schema
from ovserve.llm.grammar.rule_writer import identity, is_kind

# Keywords of our own, for what a negation needs. No client spells them, because half a surrogate pair is
# malformed JSON.
WITHOUT = "\ud800without"  # strings that are excluded
UNLIKE = "\ud800unlike"  # patterns that do not match
BEYOND = "\ud800beyond"  # names; the object has a property that is not one of them
UNNAMED = "\ud800unnamed"  # the object has a property without a name in the schema
FRACTION = "\ud800fraction"  # the number is not an integer
MAX_DEPTH = 12  # of negations within each other
MAX_ALTERNATIVES = 64
MAX_NEGATED_ONE_OF = 6  # branches, of which every two are a way to break the rule
MAX_OVERLAPPING = 4  # branches of `anyOf` whose conjunctions are written
KINDS = ("object", "array", "string", "number", "boolean", "null")
OPPOSITE = {
    "minimum": ("exclusiveMaximum", "number"),
    "maximum": ("exclusiveMinimum", "number"),
    "exclusiveMinimum": ("maximum", "number"),
    "exclusiveMaximum": ("minimum", "number"),
}
COUNTS = {
    "minLength": ("maxLength", "string"),
    "maxLength": ("minLength", "string"),
    "minItems": ("maxItems", "array"),
    "maxItems": ("minItems", "array"),
    "minProperties": ("maxProperties", "object"),
    "maxProperties": ("minProperties", "object"),
}
# Assertions that have no opposite here.
UNOPPOSED = frozenset(
    (
        "format", "multipleOf", "patternProperties", "additionalProperties", "propertyNames",
        "items", "additionalItems", "uniqueItems",
        "unevaluatedProperties", "unevaluatedItems", WITHOUT, UNLIKE, BEYOND, UNNAMED, FRACTION,
    )
)  # fmt: skip
Found = list[Any] | None


class Alternatives:
    """`narrow`: whether negations may be partial."""

    def __init__(self, document: Document, *, narrow: bool) -> None:
        self._document, self._narrow = document, narrow
        self._of: dict[tuple[int, bool], tuple[Schema, list[tuple[str, Found]]]] = {}  # by identity
        self._overlaps: dict[int, tuple[list[Any], list[Any]]] = {}  # by identity of the branches
        self._negated: dict[tuple[int, bool], tuple[Any, Found]] = {}
        self._partial = False
        self._asides: dict[int, Schema] = {}
        self._depth = 0

    def is_aside(self, node: Schema) -> bool:
        return id(node) in self._asides

    def of(self, node: Schema, *, evaluates: bool) -> list[tuple[str, Found]]:
        """Return the alternatives of each condition of the schema; None for one that is not enforced.

        `evaluates`: an `if` counts without `then` too, because an unevaluated keyword asks what it matched.
        """
        key = id(node), evaluates
        if key not in self._of:
            self._of[key] = node, list(self._conditions(node, evaluates))
        return self._of[key][1]

    def with_overlaps(self, branches: list[Any], origin: Schema) -> list[Any]:
        """Return the branches of `anyOf`, and conjunctions of several, which evaluate more than each."""
        if len(branches) > MAX_OVERLAPPING:
            return branches
        if id(branches) not in self._overlaps:
            sizes = range(2, len(branches) + 1)
            some = [list(one) for size in sizes for one in combinations(branches, size)]
            several = [self._document.derive({"allOf": one}, origin, "anyOf") for one in some]
            self._overlaps[id(branches)] = branches, [*branches, *several]
        return self._overlaps[id(branches)][1]

    def _conditions(self, node: Schema, evaluates: bool) -> Iterator[tuple[str, Found]]:
        if "not" in node:
            yield "not", self._aside(self.negation(node["not"]), node, "not")
        if "if" in node and "then" not in node and "else" not in node:
            if evaluates:
                yield "if", [self._document.derive(one, node, "if") for one in ({"allOf": [node["if"]]}, {})]
        elif "if" in node:
            otherwise = self._aside(self.negation(node["if"]), node, "if")
            if otherwise is None:
                yield "if", None
            else:
                holds = {"allOf": [node["if"], node.get("then", True)]}
                fails = [{"allOf": [one, node.get("else", True)]} for one in otherwise]
                yield "if", [self._document.derive(one, node, "if") for one in (holds, *fails)]
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            if keyword in node:
                yield from self._dependent(node, keyword)

    def _dependent(self, node: Schema, keyword: str) -> Iterator[tuple[str, Found]]:
        value = node[keyword]
        if not isinstance(value, Mapping):
            raise self._document.fault(node, keyword, "expected an object", value)
        for name, part in value.items():
            part = [part] if isinstance(part, str) and keyword == "dependencies" else part  # draft 3
            present: dict[str, Any] = {"type": "object", "required": [name]}
            if isinstance(part, list) and keyword != "dependentSchemas":
                if not part:
                    continue
                present["required"] = [name, *part]
            else:
                present["allOf"] = [part]
            absent = {"properties": {name: False}}
            yield keyword, [self._document.derive(one, node, keyword) for one in (absent, present)]

    def _aside(self, options: Found, origin: Schema, keyword: str) -> Found:
        if options is None:
            return None
        wrapped = [self._document.derive({"allOf": [one]}, origin, keyword) for one in options]
        self._asides.update((id(one), one) for one in wrapped)
        return wrapped

    # ---- negation

    def negation(self, schema: Any) -> Found:
        """Return schemas of which one holds only where `schema` does not, and if possible wherever it does
        not; None if there are none."""
        exact = self.exact_negation(schema)
        if exact is not None or not self._narrow:
            return exact
        return self._negated_as(schema, partial=True) or None

    def exact_negation(self, schema: Any) -> Found:
        return self._negated_as(schema, partial=False)

    def _negated_as(self, schema: Any, *, partial: bool) -> Found:
        before, self._partial = self._partial, partial
        try:
            return self.negated(schema)
        finally:
            self._partial = before

    def negated(self, schema: Any) -> Found:
        """Return the negation as it is being made, exact or partial; None if an exact one has no schemas."""
        if isinstance(schema, bool):
            return [] if schema else [True]
        cached = self._negated.get((id(schema), self._partial))
        if cached is not None:
            return cached[1]
        if self._depth == MAX_DEPTH:
            return self._unknown()
        self._depth += 1
        try:
            with self._document.quiet():
                conjunction = self._document.conjunction(schema, conditions=False)
                negations = [True] if conjunction is None else self._opposite(conjunction)
        finally:
            self._depth -= 1
        if negations is not None and len(negations) > MAX_ALTERNATIVES:
            negations = self._unknown()
        self._negated[id(schema), self._partial] = schema, negations
        return negations

    def _unknown(self) -> Found:
        return [] if self._partial else None

    def _opposite(self, conjunction: Conjunction) -> Found:
        if not conjunction.complete and not self._partial:
            return None
        options: list[Any] = []
        for part in (
            *map(self._of_node, conjunction.plain),
            *map(self._of_union, conjunction.unions),
        ):
            if part is None:
                return None
            options += part
        return options

    def _of_union(self, union: list[Any]) -> Found:
        parts = [self.negated(branch) for branch in union]
        negations = [part for part in parts if part is not None]
        if len(negations) < len(parts):
            return None
        several: list[Any] = []
        if id(union) in self._document.one_of:
            if len(union) > MAX_NEGATED_ONE_OF and not self._partial:
                return None
            several = [{"allOf": list(pair)} for pair in combinations(union[:MAX_NEGATED_ONE_OF], 2)]
        if [] in negations:  # a branch always holds
            return several
        if not negations:
            return [True]
        return [{"allOf": [_any_of(part) for part in negations]}, *several]

    def _of_node(self, node: Schema) -> Found:
        options: list[Any] = []
        for keyword, value in node.items():
            part = self._of_keyword(node, keyword, value)
            if part is None and not self._partial:
                return None
            part = part or []
            options += [self._document.derive(one, node, keyword) for one in part]
        return options

    def _of_keyword(self, node: Schema, keyword: str, value: Any) -> Found:
        if keyword in OPPOSITE:
            return _bound(node, keyword, value)
        if keyword in COUNTS:
            return _count(keyword, value)
        if keyword in ("type", "required"):
            return (_kinds if keyword == "type" else _required)(value)
        if keyword in CONDITIONS:
            return self._of_condition(node, keyword, value)
        if keyword in ("enum", "const"):
            return self._values(value if keyword == "enum" else [value])
        if keyword == "properties":
            return self._members(value)
        if keyword == "pattern":
            return self._unlike(value)
        if keyword == "contains":
            return self._miscounted(node, value)
        if keyword in ("prefixItems", "items", "additionalItems"):
            is_list = keyword == "prefixItems" or (keyword == "items" and isinstance(value, list))
            return self._positions(value) if is_list else self._rest(node, keyword, value)
        if keyword == "additionalProperties" and value is False and not node.get("patternProperties"):
            return [{"type": "object", BEYOND: list(node.get("properties", ()))}]
        return self._unopposed(keyword, value)

    def _of_condition(self, node: Schema, keyword: str, value: Any) -> Found:
        """Return the negation of a condition. No part is negated twice: a partial negation of a partial one
        would admit too much."""
        if keyword == "not":
            return [value]
        if keyword == "if":
            holds, fails = self.negated(node.get("then", True)), self.negated(node.get("else", True))
            otherwise = self.negated(value) if fails else []
            if holds is None or fails is None or otherwise is None:
                return None
            ways = [{"allOf": [value, _any_of(holds)]}] if holds else []
            return [*ways, {"allOf": [_any_of(otherwise), _any_of(fails)]}] if fails and otherwise else ways
        if not isinstance(value, Mapping):
            return None
        ways = []
        for name, part in value.items():
            part = [part] if isinstance(part, str) else part
            missing = [{"properties": {other: False}} for other in part] if isinstance(part, list) else None
            options: Found = self.negated(part) if missing is None else [*missing]
            if options is None:
                return None
            if options:
                present: dict[str, Any] = {"type": "object", "required": [name]}
                ways.append({**present, "allOf": [_any_of(options)]})
        return ways

    def _unlike(self, pattern: Any) -> Found:
        if not isinstance(pattern, str):
            return None
        try:
            patterns.read(pattern)
        except (patterns.Malformed, patterns.Unsupported):
            return None
        return [{"type": "string", UNLIKE: [pattern]}]

    def _unopposed(self, keyword: str, value: Any) -> Found:
        if keyword not in UNOPPOSED:
            return []  # an annotation
        if value is True or value == {} or (keyword == "uniqueItems" and not value):
            return []  # asserts nothing
        return None

    def _miscounted(self, node: Schema, schema: Any) -> Found:
        """Return arrays in which too few items match `contains`, or too many."""
        fewest, greatest = node.get("minContains", 1), node.get("maxContains")
        if not is_kind(fewest, "integer") or not (greatest is None or is_kind(greatest, "integer")):
            return None
        found: list[Any] = []
        if fewest == 1:
            opposites = self.negated(schema)
            if opposites is None:
                return None
            found.append({"type": "array", "items": _any_of(opposites)})
        elif fewest > 1:
            found.append({"type": "array", "contains": schema, "minContains": 0, "maxContains": fewest - 1})
        if greatest is not None:
            found.append({"type": "array", "contains": schema, "minContains": greatest + 1})
        return found

    def _members(self, value: Any) -> Found:
        if not isinstance(value, Mapping):
            return None
        opposites: list[Any] = []
        for name, part in value.items():
            options = self.negated(part)
            if options is None:
                return None
            if options:
                opposites.append(
                    {"type": "object", "required": [name], "properties": {name: _any_of(options)}}
                )
        return opposites

    def _rest(self, node: Schema, keyword: str, value: Any) -> Found:
        """Return arrays with an item, after those that have their own schema, that is not of this one."""
        if not isinstance(value, Mapping | bool):
            return None
        before = node.get("prefixItems") if keyword == "items" else node.get("items")
        if keyword == "additionalItems" and not isinstance(before, list):
            return []  # it has no effect
        length = len(before) if isinstance(before, list) else 0
        if value is False:
            return [{"type": "array", "minItems": length + 1}]
        opposites = self.negated(value)
        if not opposites or length:
            return None if opposites or opposites is None else []
        return [{"type": "array", "contains": _any_of(opposites)}]

    def _positions(self, value: Any) -> Found:
        if not isinstance(value, list):
            return None
        opposites: list[Any] = []
        for i, part in enumerate(value):
            options = self.negated(part)
            if options is None:
                return None
            if options:
                items = [True] * i + [_any_of(options)]
                opposites.append({"type": "array", "prefixItems": items, "minItems": i + 1})
        return opposites

    def _values(self, values: Any) -> Found:
        if not isinstance(values, list):
            return None
        values = list({identity(value): value for value in values}.values())
        options: list[Any] = []
        kinds = {_kind(value) for value in values}
        if others := [kind for kind in KINDS if kind not in kinds]:
            options.append({"type": others})
        if "string" in kinds:
            options.append({"type": "string", WITHOUT: [value for value in values if isinstance(value, str)]})
        if "number" in kinds:
            options += _between([value for value in values if _kind(value) == "number"])
        if "boolean" in kinds:
            options += [{"const": one} for one in (True, False) if not any(value is one for value in values)]
        for kind in ("object", "array"):
            some = [value for value in values if _kind(value) == kind]
            if some:
                parts = [self.negated({"type": kind, **_shape(value)}) for value in some]
                if any(part is None for part in parts):
                    return None
                options.append({"type": kind, "allOf": [_any_of(part or []) for part in parts]})
        return options


def _any_of(options: list[Any]) -> Any:
    if not options:
        return False
    return options[0] if len(options) == 1 else {"anyOf": options}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if value is None:
        return "null"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _shape(value: Any) -> dict[str, Any]:
    """Return keywords that only this object or array satisfies."""
    if isinstance(value, list):
        items = [{"enum": [item]} for item in value]
        return {"prefixItems": items, "minItems": len(value), "maxItems": len(value)}
    properties = {name: {"enum": [part]} for name, part in value.items()}
    return {"properties": properties, "required": list(value), "additionalProperties": False}


def _kinds(value: Any) -> Found:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list):
        return None
    fraction = "integer" in names and "number" not in names
    others = [kind for kind in KINDS if kind not in names and not (fraction and kind == "number")]
    options: list[Any] = [{"type": others}] if others else []
    return [*options, {"type": "number", FRACTION: True}] if fraction else options


def _bound(node: Schema, keyword: str, value: Any) -> Found:
    if isinstance(value, bool):
        return []  # draft 4, a part of the other bound
    opposite, kind = OPPOSITE[keyword]
    exclusive = node.get({"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}.get(keyword, ""))
    if exclusive is True:
        opposite = {"minimum": "maximum", "maximum": "minimum"}[keyword]
    return [{"type": kind, opposite: value}]


def _count(keyword: str, value: Any) -> Found:
    opposite, kind = COUNTS[keyword]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    bound = value - 1 if keyword.startswith("min") else value + 1
    return [] if bound < 0 else [{"type": kind, opposite: bound}]


def _required(value: Any) -> Found:
    if isinstance(value, bool):
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return None
    return [{"type": "object", "properties": {name: False}} for name in value]


def _between(values: list[float]) -> list[Any]:
    """Return the ranges of numbers between these."""
    ordered = sorted(values)
    intervals: list[dict[str, Any]] = [{"type": "number", "exclusiveMaximum": ordered[0]}]
    for low, high in pairwise(ordered):
        intervals.append({"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high})
    return [*intervals, {"type": "number", "exclusiveMinimum": ordered[-1]}]

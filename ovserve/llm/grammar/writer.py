"""Write a JSON schema as EBNF, one rule per subschema, without recursion; report what is left out.

JSON comes in one line, with a blank after commas and colons. Properties come in the order of the schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar import arrays, numbers, objects, strings, text
from ovserve.llm.grammar.conjunction import Conjunction, Document, Schema
from ovserve.llm.grammar.enums import admitted
from ovserve.llm.grammar.exclusive import exclusive
from ovserve.llm.grammar.rules import STEP_BYTES, Repeat, Rules

KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
_OBJECT_SIGNS = frozenset(
    (
        "properties", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
        "required",
    )
)  # fmt: skip
_ARRAY_SIGNS = frozenset(("items", "prefixItems", "unevaluatedItems"))
_ALWAYS_OPEN = ("not", "if", "$dynamicRef", "$recursiveRef")  # never enforced
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
_VALUES = frozenset(("enum", "const"))
WRITING = 20  # steps that the smallest schema takes
PARAMETER = 15  # steps that a parameter written apart takes
DIGIT = 4  # characters of a number's text that take as long as a step


class Written(msgspec.Struct, frozen=True):
    grammar: str  # EBNF; the rule `root` is an instance
    unenforced: list[str]  # paths of keywords without effect, such as "properties.age.not"


def write(schema: Any, *, root: Any = None, what: str = "schema", report: bool = True) -> Written:
    """Write the schema. `root` is the document that references point into, by default `schema` itself.

    `report` lists what is left out, which takes another walk.

    Raises InvalidArgument for an invalid schema, or one without instances, or too large.
    """
    writer = Writer(schema if root is None else root, what)
    writer.rules.spend(WRITING)
    first = writer.of(schema)
    writer.finish()
    grammar = writer.rules.write(first)
    if grammar is None:
        raise InvalidArgument(f"{what}: no value is valid under the schema", param=what)
    return Written(grammar, writer.document.reported if report else [])


class Writer:
    def __init__(self, root: Any, what: str) -> None:
        self.rules = Rules(what)
        self.document = Document(root, self.rules, what)
        self._known: dict[Any, tuple[int, Conjunction]] = {}  # holds the objects whose ids are the key
        self._todo: list[tuple[int, Conjunction]] = []

    def rule(self, conjunction: Conjunction | None) -> int:
        """Return the rule of these subschemas, written later; for None, a rule that matches no text."""
        if conjunction is None:
            return self.rules.new()
        key = conjunction.key
        if key not in self._known:
            self._known[key] = self.rules.new(), conjunction
            self._todo.append(self._known[key])
        return self._known[key][0]

    def of(self, *schemas: Any) -> int:
        return self.rule(self.document.conjunction(*schemas))

    def finish(self) -> None:
        while self._todo:
            rule, conjunction = self._todo.pop()
            self.rules.fill(rule, self._body(conjunction))

    def numbers_of(self, plain: tuple[Schema, ...], keyword: str) -> list[tuple[Schema, Any]]:
        """Return the values of a numeric keyword. Raises InvalidArgument for another value."""
        found = []
        for node in plain:
            if keyword in node:
                value = node[keyword]
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise self.document.fault(node, keyword, "expected a number", value)
                found.append((node, value))
        return found

    def count(self, plain: tuple[Schema, ...], least: str, most: str) -> tuple[int, int | None]:
        """Return the strictest bounds on a count."""
        for keyword in (least, most):
            for node, value in self.numbers_of(plain, keyword):
                if value < 0 or value != int(value):
                    raise self.document.fault(node, keyword, "expected a count", value)
        lows = [int(value) for _, value in self.numbers_of(plain, least)]
        highs = [int(value) for _, value in self.numbers_of(plain, most)]
        return max(lows, default=0), min(highs, default=None)

    def mapping(self, node: Schema, keyword: str) -> Mapping[str, Any]:
        value = node.get(keyword, {})
        if not isinstance(value, Mapping):
            raise self.document.fault(node, keyword, "expected an object", value)
        return value

    def asked(self, plain: tuple[Schema, ...], *keywords: str) -> None:
        """Report these keywords where they are present."""
        for node in plain:
            for keyword in keywords:
                if keyword in node:
                    self.document.report(node, keyword)

    def any_value(self) -> int:
        return self.of(True)

    def literal(self, value: Any) -> str:
        """Return JSON in one line, in the form of an EBNF literal."""
        line = text.one_line(value)
        self.rules.spend(len(line) // STEP_BYTES)
        return text.quoted(line)

    # ---- bodies

    def _body(self, conjunction: Conjunction) -> list[list[str | int | Repeat]]:
        plain = conjunction.plain
        if conjunction.unions:
            branches = conjunction.unions[0]
            self.rules.spend(len(branches))
            one_of = self.document.one_of.get(id(branches))
            if one_of is not None and not exclusive(self, branches):
                self.document.report(one_of, "oneOf")
            return [[self.rule(self.document.branch(conjunction, one))] for one in branches]
        self.rules.spend(len(plain))
        self.asked(plain, *_ALWAYS_OPEN)
        if any(node.keys() & _VALUES for node in plain):
            return [[self.literal(value)] for value in admitted(self, plain)]
        kinds = self.kinds(plain)
        body: list[list[str | int | Repeat]] = []
        if "object" in kinds:
            body += objects.body(self, plain)
        if "array" in kinds:
            body += arrays.body(self, plain)
        if "string" in kinds:
            body += strings.body(self, plain)
        if "number" in kinds or "integer" in kinds:
            body += self._number(plain, integer="number" not in kinds)
        if "boolean" in kinds:
            body.append(['"true"'])
            body.append(['"false"'])
        if "null" in kinds:
            body.append(['"null"'])
        return body

    def kinds(self, plain: tuple[Schema, ...]) -> set[str]:
        found = set(KINDS)
        for node in plain:
            if "type" not in node:
                continue
            value = node["type"]
            kinds = [value] if isinstance(value, str) else value
            if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) for kind in kinds):
                raise self.document.fault(node, "type", "expected a type or an array of types", value)
            for kind in kinds:
                if kind not in KINDS:
                    raise self.document.fault(node, "type", f"expected one of {', '.join(KINDS)}", kind)
            found &= {*kinds, "integer"} if "number" in kinds else set(kinds)
        if any("type" in node for node in plain):
            return found
        if any(node.keys() & _OBJECT_SIGNS for node in plain):
            return {"object"}
        return {"array"} if any(node.keys() & _ARRAY_SIGNS for node in plain) else found

    def _number(self, plain: tuple[Schema, ...], *, integer: bool) -> list[list[str | int | Repeat]]:
        range_ = numbers.Range()
        try:
            self._bounds(plain, range_)
            found = numbers.expression(range_, integer=integer, home=self.rules)
        except numbers.Inexpressible:
            self.asked(plain, *_BOUNDS)
            found = numbers.expression(numbers.Range(), integer=integer, home=self.rules)
        self.rules.spend(len(found or "") // DIGIT)
        return [] if found is None else [[self.rules.text(found)]]

    def _bounds(self, plain: tuple[Schema, ...], range_: numbers.Range) -> None:
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


def parameters(schema: Any, what: str) -> list[tuple[str, Any, bool]]:
    """Return name, schema and required flag of each parameter, for arguments that are written separately.

    A required name without a schema gets that of `additionalProperties`. Raises InvalidArgument.
    """
    writer = Writer(schema, what)
    conjunction = writer.document.conjunction(schema)
    plain = conjunction.plain if conjunction is not None else ()
    found = objects.named(writer, plain)
    writer.rules.spend(PARAMETER * len(found))
    return found

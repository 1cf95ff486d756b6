"""Write a JSON schema as EBNF, one rule per subschema, without recursion; report what is left out.

JSON comes in one line, with a blank after commas and colons. Properties come in the order of the schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar import arrays, numbers, objects, text
from ovserve.llm.grammar.conditions import FRACTION
from ovserve.llm.grammar.conjunction import Conjunction, Document, Enforced, Schema
from ovserve.llm.grammar.constraint import JSON_MARK
from ovserve.llm.grammar.enums import common
from ovserve.llm.grammar.exclusive import one_each
from ovserve.llm.grammar.judge import admitted
from ovserve.llm.grammar.keys import strings_without
from ovserve.llm.grammar.rules import STEP_BYTES, Repeat, Rules, TooLarge

KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
_OBJECT_SIGNS = frozenset(
    (
        "properties", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
        "required",
    )
)  # fmt: skip
_ARRAY_SIGNS = frozenset(("items", "prefixItems", "unevaluatedItems"))
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
SCHEMA_STEPS = 20  # steps that the smallest schema takes
PARAMETER_STEPS = 15  # steps that a parameter written apart takes
MAX_COMPARISONS = 4000  # of conjunctions, in all unions of a schema
MAX_WHOLE = 2**53  # up to which a double is one integer
CHARACTERS_PER_STEP = 4  # characters of a number's text that take as long as a step


class Written(msgspec.Struct, frozen=True):
    grammar: str  # EBNF; the rule `root` is an instance
    unenforced: list[str]  # paths of keywords without effect, such as "properties.age.not"
    noted: list[str] = []  # formats of unknown names, which only annotate, such as "format: colour"


def write(
    schema: Any, *, root: Any = None, what: str = "schema", report: bool = True, exact: bool = True
) -> Written:
    """Write the schema. `root` is the document that references point into, by default `schema` itself.

    `report` lists what is left out, which takes another walk. `exact` admits all that the schema allows;
    otherwise unnamed properties and items, and other types, only where the schema mentions them.

    Raises InvalidArgument for an invalid schema, or one without instances, or too large.
    """
    document = schema if root is None else root
    # Partial negations may leave nothing; without strict, a schema may contradict itself by its conditions.
    levels: list[Enforced] = ["narrowly", "exactly"] if exact else ["narrowly", "exactly", "not"]
    while levels:
        writer = Writer(document, what, exact=exact, conditions=levels.pop(0))
        try:
            grammar = writer.grammar(schema)
        except TooLarge:
            if not writer.document.conditions:
                raise
            levels = ["not"]  # negations take the most text
            continue
        if grammar is not None:
            reported = writer.document.reported if report else []
            return Written(grammar, reported, [*writer.rules.noted])
    raise InvalidArgument(f"{what}: no value is valid under the schema", param=what)


class Writer:
    """`conditions`: how `oneOf`, `not`, `if` and the dependent keywords are enforced."""

    def __init__(
        self, root: Any, what: str, *, exact: bool = True, conditions: Enforced = "narrowly"
    ) -> None:
        self.exact = exact
        self.comparisons = MAX_COMPARISONS  # left for finding out which branches exclude each other
        self.rules = Rules(what)
        self.document = Document(root, self.rules, what, conditions)
        self._known: dict[Any, tuple[int, Conjunction]] = {}  # holds the objects whose ids are the key
        self._todo: list[tuple[int, Conjunction]] = []

    def grammar(self, schema: Any) -> str | None:
        """Return EBNF of the schema's instances; None if there are none."""
        self.rules.spend(SCHEMA_STEPS)
        first = self.of(schema)
        self.finish()
        grammar = self.rules.write(first)
        return None if grammar is None else JSON_MARK + grammar

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
        pairs = []
        for node in plain:
            if keyword in node:
                value = node[keyword]
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise self.document.fault(node, keyword, "expected a number", value)
                pairs.append((node, value))
        return pairs

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

    def report_present(self, plain: tuple[Schema, ...], *keywords: str) -> None:
        """Report these keywords where they are present."""
        for node in plain:
            for keyword in keywords:
                if keyword in node:
                    self.document.report(node, keyword)

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
            self.rules.spend(len(branches) + 1)
            if (one_of := self.document.one_of.get(id(branches))) is not None:
                branches = one_each(self, conjunction, one_of)
            return [[self.rule(self.document.branch(conjunction, one))] for one in branches]
        self.rules.spend(len(plain))
        if (values := common(self, plain)) is not None:
            return [
                [self.literal(form)]
                for value in admitted(self, conjunction, values)
                for form in _forms(value)
            ]
        kinds = self.kinds(plain)
        body: list[list[str | int | Repeat]] = []
        if "object" in kinds:
            body += objects.body(self, conjunction)
        if "array" in kinds:
            body += arrays.body(self, conjunction)
        if "string" in kinds:
            body += strings_without(self, plain)
        if "number" in kinds or "integer" in kinds:
            body += self._number(plain, integer="number" not in kinds)
        if "boolean" in kinds:
            body.append(['"true"'])
            body.append(['"false"'])
        if "null" in kinds:
            body.append(['"null"'])
        return body

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

    def _number(self, plain: tuple[Schema, ...], *, integer: bool) -> list[list[str | int | Repeat]]:
        fraction = any(FRACTION in node for node in plain)
        if fraction and integer:
            return []

        def expression(range_: numbers.Range) -> str | None:
            if fraction:
                return numbers.fraction(range_, self.rules)
            return numbers.expression(range_, integer=integer, home=self.rules)

        range_ = numbers.Range()
        try:
            self.bounds(plain, range_)
            rule = expression(range_)
        except numbers.Inexpressible:
            self.report_present(plain, *_BOUNDS)
            rule = expression(numbers.Range())
        self.rules.spend(len(rule or "") // CHARACTERS_PER_STEP)
        return [] if rule is None else [[self.rules.text(rule)]]

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


def _forms(value: Any) -> list[Any]:
    """Return the value, and 2 for 2.0."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < MAX_WHOLE
    return [value, int(value)] if whole else [value]


def parameters(schema: Any, what: str, *, exact: bool = False) -> list[tuple[str, Any, bool]]:
    """Return name, schema and required flag of each parameter, for arguments that are written separately.

    A required name without a schema gets that of `additionalProperties`; a parameter that may not be there is
    left out. Raises InvalidArgument; if `exact`, also for what the schema says of several together.
    """
    writer = Writer(schema, what)
    conjunction = writer.document.conjunction(schema)
    triples = objects.named_members(writer, conjunction) if conjunction is not None else []
    writer.rules.spend(PARAMETER_STEPS * len(triples))
    triples = [one for one in triples if one[2] or writer.document.conjunction(one[1]) is not None]
    if exact and (conjunction is None or _relates(writer, conjunction, triples)):
        raise InvalidArgument(
            f"{what}: with strict: true a schema may ask only for what can be enforced; this model writes "
            "each parameter by itself, so nothing may depend on several, as with anyOf, if or minProperties",
            param=what,
        )
    return triples


def _relates(writer: Writer, conjunction: Conjunction, triples: list[tuple[str, Any, bool]]) -> bool:
    """Return whether not every choice of valid parameters is valid, if those that are required are there."""
    least, most = writer.count(conjunction.plain, "minProperties", "maxProperties")
    return (
        bool(conjunction.unions)
        or not conjunction.complete
        or any(keyword in node for node in conjunction.plain for keyword in ("enum", "const"))
        or least > sum(must for _, _, must in triples)
        or (most is not None and most < len(triples))
    )

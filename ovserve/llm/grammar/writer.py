"""Write a JSON schema as EBNF, one rule per subschema, without recursion; report what is left out.

JSON comes in one line, with a blank after commas and colons. Properties come in the order of the schema.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar import arrays, numbers, objects
from ovserve.llm.grammar.conditions import FRACTION, Alternatives
from ovserve.llm.grammar.conjunction import Conjunction, Document, Schema
from ovserve.llm.grammar.constraint import JSON_MARK
from ovserve.llm.grammar.enums import common
from ovserve.llm.grammar.exclusive import one_each
from ovserve.llm.grammar.judge import admitted
from ovserve.llm.grammar.keys import strings_without
from ovserve.llm.grammar.rule_writer import RuleWriter
from ovserve.llm.grammar.rules import Repeat, Rules, TooLarge

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
Enforced = Literal["narrowly", "exactly", "not"]  # how conditions are, with partial negations or without
SCHEMA_STEPS = 20  # steps that the smallest schema takes
PARAMETER_STEPS = 15  # steps that a parameter written apart takes
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
        writer = _rule_writer(document, what, exact=exact, conditions=levels.pop(0))
        try:
            grammar = _grammar(writer, schema)
        except TooLarge:
            if not writer.document.conditions:
                raise
            levels = ["not"]  # negations take the most text
            continue
        if grammar is not None:
            reported = writer.document.reported if report else []
            return Written(grammar, reported, [*writer.rules.noted])
    raise InvalidArgument(f"{what}: no value is valid under the schema", param=what)


def _rule_writer(
    root: Any, what: str, *, exact: bool = True, conditions: Enforced = "narrowly"
) -> RuleWriter:
    """`conditions`: how `oneOf`, `not`, `if` and the dependent keywords are enforced."""
    rules = Rules(what)

    def negations(document: Document) -> Alternatives:
        return Alternatives(document, narrow=conditions == "narrowly")

    return RuleWriter(rules, Document(root, rules, what, conditions != "not", negations), exact=exact)


def _grammar(writer: RuleWriter, schema: Any) -> str | None:
    """Return EBNF of the schema's instances; None if there are none."""
    writer.rules.spend(SCHEMA_STEPS)
    first = writer.of(schema)
    while writer.todo:
        rule, conjunction = writer.todo.pop()
        writer.rules.fill(rule, _body(writer, conjunction))
    grammar = writer.rules.write(first)
    return None if grammar is None else JSON_MARK + grammar


def _body(writer: RuleWriter, conjunction: Conjunction) -> list[list[str | int | Repeat]]:
    plain = conjunction.plain
    if conjunction.unions:
        branches = conjunction.unions[0]
        writer.rules.spend(len(branches) + 1)
        if (one_of := writer.document.one_of.get(id(branches))) is not None:
            branches = one_each(writer, conjunction, one_of)
        return [[writer.rule(writer.document.branch(conjunction, one))] for one in branches]
    writer.rules.spend(len(plain))
    if (values := common(writer, plain)) is not None:
        return [
            [writer.literal(form)]
            for value in admitted(writer, conjunction, values)
            for form in _forms(value)
        ]
    kinds = writer.kinds(plain)
    body: list[list[str | int | Repeat]] = []
    if "object" in kinds:
        body += objects.body(writer, conjunction)
    if "array" in kinds:
        body += arrays.body(writer, conjunction)
    if "string" in kinds:
        body += strings_without(writer, plain)
    if "number" in kinds or "integer" in kinds:
        body += _number(writer, plain, integer="number" not in kinds)
    if "boolean" in kinds:
        body.append(['"true"'])
        body.append(['"false"'])
    if "null" in kinds:
        body.append(['"null"'])
    return body


def _number(
    writer: RuleWriter, plain: tuple[Schema, ...], *, integer: bool
) -> list[list[str | int | Repeat]]:
    fraction = any(FRACTION in node for node in plain)
    if fraction and integer:
        return []

    def expression(range_: numbers.Range) -> str | None:
        if fraction:
            return numbers.fraction(range_, writer.rules)
        return numbers.expression(range_, integer=integer, home=writer.rules)

    range_ = numbers.Range()
    try:
        writer.bounds(plain, range_)
        rule = expression(range_)
    except numbers.Inexpressible:
        writer.report_present(plain, *_BOUNDS)
        rule = expression(numbers.Range())
    writer.rules.spend(len(rule or "") // CHARACTERS_PER_STEP)
    return [] if rule is None else [[writer.rules.text(rule)]]


def _forms(value: Any) -> list[Any]:
    """Return the value, and 2 for 2.0."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < MAX_WHOLE
    return [value, int(value)] if whole else [value]


def parameters(schema: Any, what: str, *, exact: bool = False) -> list[tuple[str, Any, bool]]:
    """Return name, schema and required flag of each parameter, for arguments that are written separately.

    A required name without a schema gets that of `additionalProperties`; a parameter that may not be there is
    left out. Raises InvalidArgument; if `exact`, also for what the schema says of several together.
    """
    writer = _rule_writer(schema, what)
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


def _relates(writer: RuleWriter, conjunction: Conjunction, triples: list[tuple[str, Any, bool]]) -> bool:
    """Return whether not every choice of valid parameters is valid, if those that are required are there."""
    least, most = writer.count(conjunction.plain, "minProperties", "maxProperties")
    return (
        bool(conjunction.unions)
        or not conjunction.complete
        or any(keyword in node for node in conjunction.plain for keyword in ("enum", "const"))
        or least > sum(must for _, _, must in triples)
        or (most is not None and most < len(triples))
    )

"""Write a JSON schema as EBNF, one rule per subschema, without recursion; report what is left out.

JSON comes in one line, with a blank after commas and colons. Properties come in the order of the schema.

The branches of a `oneOf` are made to exclude each other, so that one by itself is enough. Most do by type,
constants, or a required property that the other forbids or gives another value. A branch that overlaps with
another one gets the negation of that.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar import arrays, numbers, objects
from ovserve.llm.grammar.arrays import Items
from ovserve.llm.grammar.conditions import FRACTION, Alternatives
from ovserve.llm.grammar.conjunction import Conjunction, Document, Schema, pointed_at
from ovserve.llm.grammar.constraint import JSON_MARK, Format, ebnf
from ovserve.llm.grammar.judge import admitted
from ovserve.llm.grammar.objects import named_members, strings_without
from ovserve.llm.grammar.rule_writer import KINDS, RuleWriter, common, identity
from ovserve.llm.grammar.rules import Body, Rules, TooLarge

MAX_BRANCHES = 64  # pairs are compared
MAX_OVERLAPS = 6  # of one branch with others, each a negation
Facts = dict[str, frozenset[Any]]  # possible values of a property, or of "$" (the value) and "$type"


def one_each(writer: RuleWriter, conjunction: Conjunction, origin: Schema) -> list[Any]:
    """Return the branches of the first union, or others that exclude each other; report if there are none."""
    branches = conjunction.unions[0]
    with writer.document.quiet():
        overlaps = _overlaps(writer, conjunction)
        exclusive_branches = (
            None
            if overlaps is None
            else [_alone(writer, conjunction, i, overlaps, origin) for i in range(len(branches))]
        )
    if exclusive_branches is None or None in exclusive_branches:
        writer.document.report(origin, "oneOf")
        return branches
    return exclusive_branches


def _overlaps(writer: RuleWriter, conjunction: Conjunction) -> list[tuple[int, int]] | None:
    """Return the pairs of branches that may hold together; None if there are too many branches."""
    branches = conjunction.unions[0]
    if len(branches) > MAX_BRANCHES or not (writer.document.conditions or len(branches) == 1):
        return None
    overlaps: list[tuple[int, int]] = []
    earlier: list[tuple[int, Facts, Conjunction]] = []
    for i, branch in enumerate(branches):
        one = writer.document.branch(conjunction, branch)
        if one is None:
            continue
        facts = _facts(writer, one)
        writer.rules.spend(len(earlier) * sum(map(len, facts.values())) + 1)
        for j, other_facts, other in earlier:
            if not _apart(facts, other_facts) and not impossible(writer, writer.document.both(one, other)):
                overlaps.append((j, i))
        earlier.append((i, facts, one))
    return overlaps


def _alone(
    writer: RuleWriter, conjunction: Conjunction, i: int, overlaps: list[tuple[int, int]], origin: Schema
) -> Any:
    """Return the branch without what others admit; None if that has no schema."""
    others = [sum(pair) - i for pair in overlaps if i in pair]
    if len(others) > MAX_OVERLAPS:
        return None
    branches = conjunction.unions[0]
    parts = [branches[i]]
    for j in others:
        negation = writer.document.alternatives.negation(branches[j])
        if negation is None:
            return None
        parts.append(writer.document.derive({"not": branches[j]}, origin, "oneOf"))
    if len(parts) == 1:
        return parts[0]
    alone = writer.document.derive({"allOf": parts}, origin, "oneOf")
    exact_negation = writer.document.alternatives.exact_negation
    if all(exact_negation(branches[j]) is not None for j in others):
        return alone
    return None if impossible(writer, writer.document.branch(conjunction, alone)) else alone


def _apart(one: Facts, other: Facts) -> bool:
    return any(not values & other[name] for name, values in one.items() if name in other)


def _facts(writer: RuleWriter, conjunction: Conjunction) -> Facts:
    facts = _values(writer, "$", conjunction.plain)
    if any("type" in node for node in conjunction.plain):
        kinds = writer.kinds(conjunction.plain)
        facts["$type"] = frozenset(kinds | {"integer"} if "number" in kinds else kinds)
    if facts.get("$type") == frozenset(("object",)):
        for name, schema, must in named_members(writer, conjunction):
            inner = writer.document.conjunction(schema) if must else None
            if inner is not None:
                facts.update(_values(writer, f".{name}", inner.plain))
    return facts


def _values(writer: RuleWriter, name: str, plain: tuple[Schema, ...]) -> Facts:
    values = common(writer, plain)
    return {} if values is None else {name: frozenset(map(identity, values))}


# ---- whether a conjunction has no instance: False only means that no simple reason was found

MAX_DEPTH = 4
MAX_SEARCHED_BRANCHES = 16  # of a union that is looked into


def impossible(writer: RuleWriter, conjunction: Conjunction | None, depth: int = MAX_DEPTH) -> bool:
    if conjunction is None:
        return True
    writer.comparisons -= 1
    if depth == 0 or writer.comparisons < 0:
        return False
    plain = conjunction.plain
    writer.rules.spend(len(plain) + 1)
    values = common(writer, plain)
    if values is not None:
        return not values
    kinds = writer.kinds(plain)
    # In this order, since the comparisons are counted, and the last ones need none.
    if all(
        _kind_is_impossible(writer, conjunction, kind, depth) for kind in reversed(KINDS) if kind in kinds
    ):
        return True
    if not conjunction.unions or len(conjunction.unions[0]) > MAX_SEARCHED_BRANCHES:
        return False
    branches = conjunction.unions[0]
    return all(impossible(writer, writer.document.branch(conjunction, one), depth - 1) for one in branches)


def _kind_is_impossible(writer: RuleWriter, conjunction: Conjunction, kind: str, depth: int) -> bool:
    plain = conjunction.plain
    if kind == "object":
        return _object_is_impossible(writer, conjunction, depth)
    if kind == "array":
        return _array_is_impossible(writer, conjunction, depth)
    if kind == "string":
        least, most = writer.count(plain, "minLength", "maxLength")
        return most is not None and least > most
    if kind in ("number", "integer"):
        return _range_is_empty(writer, plain, integer="number" not in writer.kinds(plain))
    return False


def _object_is_impossible(writer: RuleWriter, conjunction: Conjunction, depth: int) -> bool:
    least, most = writer.count(conjunction.plain, "minProperties", "maxProperties")
    required = [part for _, part, must in named_members(writer, conjunction) if must]
    if most is not None and max(least, len(required)) > most:
        return True
    return any(impossible(writer, writer.document.conjunction(part), depth - 1) for part in required)


def _array_is_impossible(writer: RuleWriter, conjunction: Conjunction, depth: int) -> bool:
    least, most = writer.count(conjunction.plain, "minItems", "maxItems")
    if most is not None and least > most:
        return True
    items = Items(writer, conjunction)
    some = [items.at(i) for i in range(min(least, items.length + 1))]
    return any(impossible(writer, writer.document.conjunction(*parts), depth - 1) for parts in some)


def _range_is_empty(writer: RuleWriter, plain: tuple[Schema, ...], *, integer: bool) -> bool:
    range_ = numbers.Range()
    try:
        writer.bounds(plain, range_)
    except numbers.Inexpressible:
        return False
    low, high = range_.low, range_.high
    if low is None or high is None:
        return False
    return math.ceil(low) > math.floor(high) if integer else low > high


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
Enforced = Literal["narrowly", "exactly", "not"]  # how conditions are, with partial negations or without
SCHEMA_STEPS = 20  # steps that the smallest schema takes
PARAMETER_STEPS = 15  # steps that a parameter written apart takes
# Keywords that may make one parameter depend on another.
_RELATING = (
    *("anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies"),
    *("enum", "const"),
)
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
    why: list[str] = []
    while levels:
        writer = _rule_writer(document, what, exact=exact, conditions=levels.pop(0))
        writer.rules.spend(SCHEMA_STEPS)
        try:
            first = writer.of(schema)
            grammar = _grammar(writer, first)
        except TooLarge:
            if not writer.document.conditions:
                raise
            levels = ["not"]  # negations take the most text
            continue
        if grammar is not None:
            reported = writer.document.reported if report else []
            return Written(grammar, reported, [*writer.rules.noted])
        why = writer.contradiction(first, schema)
    because = f" because of {', '.join(why)}" if why else ""
    raise InvalidArgument.at(what, f"no value is valid under the schema{because}")


def _rule_writer(
    root: Any, what: str, *, exact: bool = True, conditions: Enforced = "narrowly"
) -> RuleWriter:
    """`conditions`: how `oneOf`, `not`, `if` and the dependent keywords are enforced."""
    rules = Rules(what)

    def negations(document: Document) -> Alternatives:
        return Alternatives(document, narrow=conditions == "narrowly")

    return RuleWriter(rules, Document(root, rules, what, conditions != "not", negations), exact=exact)


def _grammar(writer: RuleWriter, first: int) -> str | None:
    """Return EBNF of the instances of a schema, whose rule is given; None if there are none."""
    while writer.todo:
        rule, conjunction = writer.todo.pop()
        writer.rules.fill(rule, _body(writer, conjunction))
    grammar = writer.rules.write(first)
    return None if grammar is None else JSON_MARK + grammar


def _body(writer: RuleWriter, conjunction: Conjunction) -> Body:
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
    body: Body = []
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


def _number(writer: RuleWriter, plain: tuple[Schema, ...], *, integer: bool) -> Body:
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


def lost_relations(schema: Any, what: str) -> list[str]:
    """Return the keywords of the schema that are lost where each of its parameters is written by itself."""
    writer = _rule_writer(schema, what)
    conjunction = writer.document.conjunction(schema)
    if conjunction is None:
        return []
    triples = _triples(writer, conjunction)
    if not _relates(writer, conjunction, triples):
        return []
    least, most = writer.count(conjunction.plain, "minProperties", "maxProperties")
    keywords = [*_RELATING]
    keywords += ["minProperties"] if least > sum(must for _, _, must in triples) else []
    keywords += ["maxProperties"] if most is not None and most < len(triples) else []
    nodes: dict[int, Schema] = {}
    todo: list[Any] = [schema, *conjunction.plain]
    while todo:
        node = todo.pop()
        if isinstance(node, dict) and id(node) not in nodes:
            nodes[id(node)] = node
            todo += node["allOf"] if isinstance(node.get("allOf"), list) else []
            todo.append(pointed_at(schema, node["$ref"]) if isinstance(node.get("$ref"), str) else None)
    return [keyword for keyword in keywords if any(keyword in node for node in nodes.values())] or ["$ref"]


def parameters(schema: Any, what: str, *, exact: bool = False) -> list[tuple[str, Any, bool]]:
    """Return name, schema and required flag of each parameter, for arguments that are written separately.

    A required name without a schema gets that of `additionalProperties`; a parameter that may not be there is
    left out. Raises InvalidArgument; if `exact`, also for what the schema says of several together.
    """
    writer = _rule_writer(schema, what)
    conjunction = writer.document.conjunction(schema)
    triples = _triples(writer, conjunction) if conjunction is not None else []
    if exact and (conjunction is None or _relates(writer, conjunction, triples)):
        raise InvalidArgument(
            f"{what}: with strict: true a schema may ask only for what can be enforced; this model writes "
            "each parameter by itself, so nothing may depend on several, as with anyOf, if or minProperties",
            param=what,
        )
    return triples


def _triples(writer: RuleWriter, conjunction: Conjunction) -> list[tuple[str, Any, bool]]:
    triples = objects.named_members(writer, conjunction)
    writer.rules.spend(PARAMETER_STEPS * len(triples))
    return [one for one in triples if one[2] or writer.document.conjunction(one[1]) is not None]


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


def compact(schema: Any, root: Any = None, what: str = "schema", *, exact: bool = False) -> Format:
    """Return a JSON schema as one format of a constraint: of an answer, or of the arguments of a tool.

    The EBNF comes from this package: in one line, linear in the schema, and correct where the library's
    conversion is not. `root`: the document that references point into, if `schema` is a part. `what`: the
    field. `exact`: see `write`.

    Raises InvalidArgument for an invalid schema, or one without instances, or too large."""
    return ebnf(write(schema, root=root, what=what, report=False, exact=exact).grammar)


def strictly(schema: Any, what: str) -> Written:
    """Write a schema that must be enforced in full. Raises InvalidArgument if some of it cannot be."""
    result = write(schema, what=what)
    if result.unenforced:
        raise InvalidArgument(
            f"{what}: with strict: true a schema may ask only for what can be enforced, "
            f"got {result.unenforced[0]}",
            param=what,
        )
    return result

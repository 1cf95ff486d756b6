"""Judge a value by a schema: values of `enum` by the other keywords, and names by `propertyNames`.

An answer is True, False, or None if a keyword is not judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from ovserve.llm.grammar import automata, formats, patterns, regular
from ovserve.llm.grammar.conditions import BEYOND, FRACTION, UNLIKE, UNNAMED, WITHOUT
from ovserve.llm.grammar.conjunction import Conjunction, Schema
from ovserve.llm.grammar.rule_writer import RuleWriter, common, identity, is_kind

Verdict = bool | None
MAX_DEPTH = 8
MIN_SEARCH_STEPS = 4  # that a search takes at least
MAX_TEXTS = 32  # of a pattern that names all its texts, and characters of one
_UNJUDGED = ("unevaluatedProperties", "unevaluatedItems", BEYOND, UNNAMED)


# Keywords to report where they may exclude a value and are not judged.
_OF_TYPE: dict[type, tuple[str, ...]] = {
    str: ("pattern", "format"),
    dict: (
        "properties",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "unevaluatedProperties",
    ),
    list: ("items", "prefixItems", "contains", "unevaluatedItems"),
}


def admitted(writer: RuleWriter, conjunction: Conjunction, values: list[Any]) -> list[Any]:
    """Return which values of `enum` and `const` the other keywords admit; report what is not judged."""
    plain = tuple(
        {keyword: part for keyword, part in node.items() if keyword not in ("enum", "const")}
        for node in conjunction.plain
    )
    others = Conjunction(plain)
    judged = [(value, fits_all(writer, others, value)) for value in values]
    for kind in dict.fromkeys(type(value) for value, verdict in judged if verdict is None):
        writer.report_present(conjunction.plain, *_OF_TYPE.get(kind, ()))
    return [value for value, verdict in judged if verdict is not False]


def finite_values(writer: RuleWriter, conjunction: Conjunction | None) -> list[Any] | None:
    """Return all values of the conjunction if constants name them, else None."""
    if conjunction is None:
        return []
    values = common(writer, conjunction.plain)
    kinds = writer.kinds(conjunction.plain)
    if values is None and kinds <= {"boolean", "null"}:
        values = [True, False] if "boolean" in kinds else []
        values += [None] if "null" in kinds else []
    if values is not None:
        verdicts = [fits_all(writer, conjunction, value) for value in values]
        if None in verdicts:
            return None
        return [value for value, verdict in zip(values, verdicts, strict=True) if verdict]
    if not conjunction.unions:
        return None
    candidates: list[Any] = []
    for branch in conjunction.unions[0]:
        some = finite_values(writer, writer.document.branch(conjunction, branch))
        if some is None:
            return None
        candidates += some
    return candidates


def finite_strings(writer: RuleWriter, conjunction: Conjunction | None) -> list[str] | None:
    """Return all strings of the conjunction if constants name them, else None."""
    if conjunction is not None and "string" not in writer.kinds(conjunction.plain):
        return []
    values = finite_values(writer, conjunction)
    if values is not None:
        return list(dict.fromkeys(v for v in values if isinstance(v, str)))
    for node in conjunction.plain if conjunction is not None else ():
        texts = finite_texts(writer, node.get("pattern"))
        verdicts = [conjunction and fits_all(writer, conjunction, text) for text in texts or ()]
        if texts is not None and None not in verdicts:
            return [text for text, verdict in zip(texts, verdicts, strict=True) if verdict]
    return None


def finite_texts(writer: RuleWriter, pattern: Any) -> list[str] | None:
    """Return the texts of an anchored pattern, if it has few."""
    if not isinstance(pattern, str):
        return None
    writer.rules.spend(MIN_SEARCH_STEPS * len(pattern))
    try:
        tree = regular.anchored(patterns.read(pattern), regular.FREE)
    except (patterns.Unsupported, patterns.Malformed):
        return None
    texts = regular.texts(tree[0], MAX_TEXTS) if tree is not None else None
    return None if texts is None else sorted(texts)


def fits(writer: RuleWriter, schema: Any, value: Any, depth: int = MAX_DEPTH) -> Verdict:
    conjunction = writer.document.conjunction(schema)
    return False if conjunction is None else fits_all(writer, conjunction, value, depth)


def fits_all(writer: RuleWriter, conjunction: Conjunction, value: Any, depth: int = MAX_DEPTH) -> Verdict:
    if depth == 0:
        return None
    writer.rules.spend(len(conjunction.plain) + 1)
    verdicts = [_by_keywords(writer, node, value, depth) for node in conjunction.plain]
    verdicts += [_by_union(writer, union, value, depth) for union in conjunction.unions]
    return _all(verdicts if conjunction.complete else [*verdicts, None])


def fits_pattern(writer: RuleWriter, pattern: str, text: str) -> Verdict:
    """Search the text for the pattern; None if it has no automaton."""
    machine = _search(writer, pattern)
    writer.rules.spend(MIN_SEARCH_STEPS + len(text))
    if machine is None:
        return None
    state = 0
    for char in text:
        following = [to for ranges, to in machine.edges[state] if any(a <= ord(char) <= b for a, b in ranges)]
        if not following:
            return False
        state = following[0]
    return bool(machine.accepting[state])


def may_match_all(writer: RuleWriter, some: tuple[str, ...]) -> bool:
    """Return whether all these patterns may be found in one text."""
    machine = _search(writer, *some)
    return machine is None or any(machine.accepting)


def _search(writer: RuleWriter, *some: str) -> automata.Automaton | None:
    """Return the automaton of texts in which the patterns are found; None if it cannot be made."""
    cache: dict[Any, automata.Automaton | None] = writer.rules.made
    key = ("search", *some)
    if key not in cache:
        try:
            cache[key] = automata.automaton((), [*map(patterns.read, some)], writer.rules.spend)
        except (patterns.Unsupported, patterns.Malformed, automata.TooLarge):
            cache[key] = None
    return cache[key]


def _all(verdicts: Iterable[Verdict]) -> Verdict:
    results = list(verdicts)
    return False if False in results else None if None in results else True


def _by_union(writer: RuleWriter, union: list[Any], value: Any, depth: int) -> Verdict:
    verdicts = [fits(writer, branch, value, depth - 1) for branch in union]
    if id(union) not in writer.document.one_of:
        return True if True in verdicts else None if None in verdicts else False
    if verdicts.count(True) > 1:
        return False
    return None if None in verdicts else True in verdicts


def _by_keywords(writer: RuleWriter, node: Schema, value: Any, depth: int) -> Verdict:
    kinds = [node["type"]] if isinstance(node.get("type"), str) else node.get("type")
    if isinstance(kinds, list) and not any(is_kind(value, kind) for kind in kinds):
        return False
    if "const" in node and identity(node["const"]) != identity(value):
        return False
    if isinstance(node.get("enum"), list) and identity(value) not in map(identity, node["enum"]):
        return False
    if any(keyword in node for keyword in _UNJUDGED):
        return None
    if isinstance(value, str):
        return _string(writer, node, value)
    if isinstance(value, Mapping):
        return _object(writer, node, value, depth)
    if isinstance(value, list):
        return _array(writer, node, value, depth)
    return value is None or isinstance(value, bool) or _number(writer, node, value)


def _string(writer: RuleWriter, node: Schema, value: str) -> Verdict:
    least, most = writer.count((node,), "minLength", "maxLength")
    if len(value) < least or (most is not None and len(value) > most) or value in node.get(WITHOUT, ()):
        return False
    pattern, format_ = node.get("pattern"), node.get("format")
    verdict = fits_pattern(writer, pattern, value) if isinstance(pattern, str) else True
    matches = [fits_pattern(writer, one, value) for one in node.get(UNLIKE, ())]
    unlike = [None if match is None else not match for match in matches]
    return _all(
        [verdict, *unlike, None if isinstance(format_, str) and format_ in formats.EXPRESSIONS else True]
    )


def _number(writer: RuleWriter, node: Schema, value: float) -> bool:
    if FRACTION in node and is_kind(value, "integer"):
        return False
    numbers = {keyword: number for keyword in _COMPARED for _, number in _bound(writer, node, keyword)}
    if any(not _COMPARED[keyword](value, bound) for keyword, bound in numbers.items()):
        return False
    exclusive = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))  # flags of draft 4
    if any(node.get(flag) is True and numbers.get(bound) == value for flag, bound in exclusive):
        return False
    multiples = [number for _, number in writer.numbers_of((node,), "multipleOf")]
    return all(not one or Fraction(repr(value)) % Fraction(repr(one)) == 0 for one in multiples)


_COMPARED = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}


def _bound(writer: RuleWriter, node: Schema, keyword: str) -> list[tuple[Schema, Any]]:
    return [] if isinstance(node.get(keyword), bool) else writer.numbers_of((node,), keyword)


def _object(writer: RuleWriter, node: Schema, value: Mapping[str, Any], depth: int) -> Verdict:
    least, most = writer.count((node,), "minProperties", "maxProperties")
    if len(value) < least or (most is not None and len(value) > most):
        return False
    if not all(name in value for name in writer.required(node)):
        return False
    verdicts: list[Verdict] = []
    own, by_pattern = writer.mapping(node, "properties"), writer.mapping(node, "patternProperties")
    for name, part in value.items():
        schemas = [own[name]] if name in own else []
        matches = {pattern: fits_pattern(writer, pattern, name) for pattern in by_pattern}
        if None in matches.values():
            return None
        schemas += [by_pattern[pattern] for pattern, match in matches.items() if match]
        if not schemas and "additionalProperties" in node:
            schemas = [node["additionalProperties"]]
        verdicts += [fits(writer, schema, part, depth - 1) for schema in schemas]
        if "propertyNames" in node:
            verdicts.append(fits(writer, node["propertyNames"], name, depth - 1))
    return _all(verdicts)


def _array(writer: RuleWriter, node: Schema, value: list[Any], depth: int) -> Verdict:
    least, most = writer.count((node,), "minItems", "maxItems")
    if len(value) < least or (most is not None and len(value) > most):
        return False
    if node.get("uniqueItems") and len(set(map(identity, value))) < len(value):
        return False
    if "contains" in node:
        matches = [fits(writer, node["contains"], item, depth - 1) for item in value]
        fewest, greatest = writer.count((node,), "minContains", "maxContains")
        fewest = fewest if "minContains" in node else 1
        if None in matches:
            return None
        if matches.count(True) < fewest or (greatest is not None and matches.count(True) > greatest):
            return False
    prefix = writer.prefix(node)
    rest = node.get("items") if not isinstance(node.get("items"), list) else node.get("additionalItems")
    schemas = [prefix[i] if i < len(prefix) else rest for i in range(len(value))]
    return _all(
        fits(writer, schema, item, depth - 1)
        for schema, item in zip(schemas, value, strict=True)
        if schema is not None
    )

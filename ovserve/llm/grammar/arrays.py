"""Arrays: `prefixItems`, `items`, the number of items, `contains`, and `uniqueItems` of few values."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from ovserve.llm.grammar.conjunction import Conjunction, Schema
from ovserve.llm.grammar.judge import finite_values
from ovserve.llm.grammar.rule_writer import RuleWriter, identity
from ovserve.llm.grammar.rules import Body, Repeat, Tokens

CONTAINS = ("contains", "minContains", "maxContains")
MAX_STATES = 256  # rules of an array whose items are counted
MAX_ORDERED = 6  # different items that may come in any order
REST = ("items", "additionalItems", "unevaluatedItems")


def body(writer: RuleWriter, conjunction: Conjunction) -> Body:
    plain = conjunction.plain
    items = Items(writer, conjunction)
    least, most = writer.count(plain, "minItems", "maxItems")
    unique = [node for node in plain if node.get("uniqueItems")]
    containing = _containing(writer, plain)
    if unique and (most is None or most > 1) and (most is None or least <= most):
        alternatives = None if containing else _distinct(writer, items, least, most)
        if alternatives is not None:
            return alternatives
        for node in unique:
            writer.document.report(node, "uniqueItems")
    if containing:
        alternatives = _with_matches(writer, items, containing, least, most)
        if alternatives is not None:
            return alternatives
        writer.report_present(plain, *CONTAINS)
    length = items.length
    if most is not None:
        length = min(length, most)
        if least > most:
            return []
    writer.rules.spend(length * len(plain))
    schemas = items.rest()
    more = None if most is None else most - length
    closed = not schemas and items.length and least <= items.length and not writer.exact
    item = None if closed or more == 0 else writer.of(*schemas)
    firsts = [writer.of(*items.at(i)) for i in range(length)]
    tokens: Tokens = []
    if item is not None:
        if not firsts:
            return _with_rest(item, least, more)
        tokens = [Repeat(['", "', item], max(least - length, 0), more)]
    needed = min(least, length) if writer.exact else length
    return _prefixed(firsts, tokens, needed)


def _containing(writer: RuleWriter, plain: tuple[Schema, ...]) -> list[Schema]:
    """Return the schemas whose `contains` says something."""
    nodes = []
    for node in plain:
        if "contains" in node:
            fewest, greatest = _matches(writer, node)
            if fewest or greatest is not None:
                nodes.append(node)
    return nodes


def _matches(writer: RuleWriter, node: Schema) -> tuple[int, int | None]:
    fewest, greatest = writer.count((node,), "minContains", "maxContains")
    return (fewest if "minContains" in node else 1), greatest


def _with_matches(
    writer: RuleWriter, items: Items, containing: list[Schema], least: int, most: int | None
) -> Body | None:
    """Return arrays in which enough items, and not too many, match each `contains`; None if that is too much.

    A rule is the rest of an array after some items, of which some match. With `maxContains` the others must
    not match; without it they may.
    """
    limits = [_matches(writer, node) for node in containing]
    if any(greatest is not None and greatest < fewest for fewest, greatest in limits):
        return []
    others: list[list[Any]] = []
    for node, (_, greatest) in zip(containing, limits, strict=True):
        negation = writer.document.alternatives.negation(node["contains"]) if greatest is not None else []
        if negation is None:
            return None
        opposite = writer.document.derive({"anyOf": negation}, node, "contains") if negation else False
        others.append([] if greatest is None else [opposite])
    last = max(items.length, least, most or 0, 1)  # beyond, all positions are alike
    caps = [max(fewest, 0 if greatest is None else greatest) for fewest, greatest in limits]
    choices = list(product((False, True), repeat=len(containing)))  # which schemas an item is held to
    if (last + 1) * math.prod(cap + 1 for cap in caps) * len(choices) > 2 * MAX_STATES:
        return None
    counts = list(product(*[range(cap + 1) for cap in caps]))
    rules = {(i, some): writer.rules.new() for i in range(last + 1) for some in counts}
    for (i, some), rule in rules.items():
        enough = all(k >= fewest for k, (fewest, _) in zip(some, limits, strict=True))
        body: Body = [['"]"']] if i >= least and enough else []
        for contained in choices if most is None or i < most else ():
            ways = zip(contained, some, limits, strict=True)
            if any(one and k == greatest for one, k, (_, greatest) in ways):
                continue
            parts = items.at(i)
            for one, node, other in zip(contained, containing, others, strict=True):
                parts += [node["contains"]] if one else other
            to = tuple(min(k + one, cap) for one, k, cap in zip(contained, some, caps, strict=True))
            body.append([*(['", "'] if i else []), writer.of(*parts), rules[min(i + 1, last), to]])
        writer.rules.fill(rule, body)
    return [['"["', rules[0, (0,) * len(caps)]]]


def _distinct(writer: RuleWriter, items: Items, least: int, most: int | None) -> Body | None:
    """Return arrays of different constants; None for other items. Many come in their order."""
    if items.length:
        return None
    values = finite_values(writer, writer.document.conjunction(*items.rest()))
    if values is None:
        return None
    values = list({identity(value): value for value in values}.values())
    most = len(values) if most is None else min(most, len(values))
    if least > most:
        return []
    texts = [writer.literal(value) for value in values]
    in_any_order = len(values) <= MAX_ORDERED
    if not in_any_order and len(values) * most > MAX_STATES:
        return None
    # A state is what is left to choose from, as bits, and how many were chosen.
    start = (1 << len(values)) - 1, 0
    rules, todo = {start: writer.rules.new()}, [start]
    while todo:
        unused, count = todo.pop()
        body: Body = [['"]"']] if count >= least else []
        for i, text in enumerate(texts):
            if not unused >> i & 1 or count == most:
                continue
            rest = unused & ~(1 << i) if in_any_order else unused >> (i + 1) << (i + 1)
            to = rest, count + 1
            if to not in rules:
                writer.rules.spend(len(texts))
                rules[to] = writer.rules.new()
                todo.append(to)
            body.append([*(['", "'] if count else []), text, rules[to]])
        writer.rules.fill(rules[unused, count], body)
    return [['"["', rules[start]]]


def _prefixed(firsts: list[int], rest: Tokens, needed: int) -> Body:
    """Return arrays of at least `needed` of the first items; `rest` follows only all of them."""
    tail = rest
    for i in reversed(range(len(firsts))):
        comma: Tokens = ['", "'] if i else []
        tail = [*comma, firsts[i], *tail]
        if i >= needed:
            tail = [Repeat(tail)]
    return [['"["', *tail, '"]"']]


def _with_rest(item: int, least: int, most: int | None) -> Body:
    others = Repeat(['", "', item], max(least - 1, 0), None if most is None else most - 1)
    filled: Tokens = ['"["', item, others, '"]"']
    return [filled] if least else [['"[]"'], filled]


class Items:
    """The schemas of an array's items."""

    def __init__(self, writer: RuleWriter, conjunction: Conjunction) -> None:
        plain = conjunction.plain
        self._prefixes = [writer.prefix(node) for node in plain]
        self._rests: list[tuple[str, Any] | None] = []
        self._evaluated: list[float] = []  # how many first items are evaluated, for unevaluatedItems
        self._unless: list[list[Any]] = []  # schemas of `contains`, which evaluate the items that match
        for node in plain:
            keyword = _rest(node)
            self._rests.append(None if not keyword else (keyword, node[keyword]))
            evaluators = conjunction.evaluated_by(node) if keyword == "unevaluatedItems" else []
            counts = [
                float("inf") if _rest(one) and one is not node else len(writer.prefix(one))
                for one in evaluators
            ]
            self._evaluated.append(max(counts, default=0))
            self._unless.append([one["contains"] for one in evaluators if "contains" in one])
        self.length = max((len(prefix) for prefix in self._prefixes), default=0)

    def at(self, i: int) -> list[Any]:
        """Return the schemas of the item at this position."""
        schemas = []
        for prefix, rest, evaluated, unless in zip(
            self._prefixes, self._rests, self._evaluated, self._unless, strict=True
        ):
            if i < len(prefix):
                schemas.append(prefix[i])
            elif rest is not None and i >= evaluated:
                schemas.append({"anyOf": [rest[1], *unless]} if unless else rest[1])
        return schemas

    def rest(self) -> list[Any]:
        """Return the schemas of the items after all that have their own."""
        return self.at(self.length)


def _rest(node: Schema) -> str:
    """Return the keyword for the items after those; "" if there is none."""
    if "items" in node and not isinstance(node["items"], list):
        return "items"
    return next((name for name in REST[1:] if name in node), "")

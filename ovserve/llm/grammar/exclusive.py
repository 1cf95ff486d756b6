"""Make the branches of a `oneOf` exclude each other, so that one branch by itself is enough.

Most do by type, constants, or a required property that the other forbids or gives another value. A branch
that overlaps with another one gets the negation of that.
"""

from __future__ import annotations

import math
from typing import Any

from ovserve.llm.grammar import numbers
from ovserve.llm.grammar.arrays import Items
from ovserve.llm.grammar.conjunction import Conjunction, Schema
from ovserve.llm.grammar.enums import common, identity
from ovserve.llm.grammar.objects import named_members
from ovserve.llm.grammar.rule_writer import RuleWriter

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
        negation = writer.document.negation(branches[j])
        if negation is None:
            return None
        parts.append(writer.document.derive({"not": branches[j]}, origin, "oneOf"))
    if len(parts) == 1:
        return parts[0]
    alone = writer.document.derive({"allOf": parts}, origin, "oneOf")
    if all(writer.document.has_exact_negation(branches[j]) for j in others):
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
MAX_BRANCHES = 16  # of a union that is looked into


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
    if all(_kind_is_impossible(writer, conjunction, kind, depth) for kind in writer.kinds(plain)):
        return True
    if not conjunction.unions or len(conjunction.unions[0]) > MAX_BRANCHES:
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

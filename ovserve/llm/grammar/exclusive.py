"""Decide whether the branches of a `oneOf` exclude each other, so that one branch by itself is enough.

They do so by type, by their own constants, or by the constant of a required property (a discriminator).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ovserve.llm.grammar.enums import identity
from ovserve.llm.grammar.objects import named

if TYPE_CHECKING:
    from ovserve.llm.grammar.conjunction import Schema
    from ovserve.llm.grammar.writer import Writer

MAX_BRANCHES = 64  # pairs are compared
Facts = dict[str, frozenset[Any]]  # possible values of a property, or of "$" (the value) and "$type"


def exclusive(writer: Writer, branches: list[Any]) -> bool:
    if len(branches) > MAX_BRANCHES:
        return len(branches) == 1
    facts: list[Facts] = []
    for branch in branches:
        conjunction = writer.document.conjunction(branch)
        if conjunction is None:
            continue
        found = _facts(writer, conjunction.plain)
        writer.rules.spend(len(facts) * sum(map(len, found.values())))
        if not all(_apart(found, other) for other in facts):
            return False
        facts.append(found)
    return True


def _apart(one: Facts, other: Facts) -> bool:
    return any(not values & other[name] for name, values in one.items() if name in other)


def _facts(writer: Writer, plain: tuple[Schema, ...]) -> Facts:
    facts = _values("$", plain)
    if any("type" in node for node in plain):
        kinds = writer.kinds(plain)
        facts["$type"] = frozenset(kinds | {"integer"} if "number" in kinds else kinds)
    if facts.get("$type") == frozenset(("object",)):
        for name, schema, must in named(writer, plain):
            conjunction = writer.document.conjunction(schema) if must else None
            if conjunction is not None:
                facts.update(_values(f".{name}", conjunction.plain))
    return facts


def _values(name: str, plain: tuple[Schema, ...]) -> Facts:
    for node in plain:
        if "const" in node:
            return {name: frozenset([identity(node["const"])])}
        if isinstance(node.get("enum"), list):
            return {name: frozenset(map(identity, node["enum"]))}
    return {}

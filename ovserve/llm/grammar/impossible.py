"""Decide whether a conjunction has no instance. True is certain; False only means that none of the simple
reasons was found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ovserve.llm.grammar import numbers
from ovserve.llm.grammar.arrays import Items
from ovserve.llm.grammar.enums import common
from ovserve.llm.grammar.objects import named_members

if TYPE_CHECKING:
    from ovserve.llm.grammar.conjunction import Conjunction, Schema
    from ovserve.llm.grammar.writer import Writer

MAX_DEPTH = 4
MAX_BRANCHES = 16  # of a union that is looked into


def impossible(writer: Writer, conjunction: Conjunction | None, depth: int = MAX_DEPTH) -> bool:
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


def _kind_is_impossible(writer: Writer, conjunction: Conjunction, kind: str, depth: int) -> bool:
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


def _object_is_impossible(writer: Writer, conjunction: Conjunction, depth: int) -> bool:
    least, most = writer.count(conjunction.plain, "minProperties", "maxProperties")
    required = [part for _, part, must in named_members(writer, conjunction) if must]
    if most is not None and max(least, len(required)) > most:
        return True
    return any(impossible(writer, writer.document.conjunction(part), depth - 1) for part in required)


def _array_is_impossible(writer: Writer, conjunction: Conjunction, depth: int) -> bool:
    least, most = writer.count(conjunction.plain, "minItems", "maxItems")
    if most is not None and least > most:
        return True
    items = Items(writer, conjunction)
    some = [items.at(i) for i in range(min(least, items.length + 1))]
    return any(impossible(writer, writer.document.conjunction(*parts), depth - 1) for parts in some)


def _range_is_empty(writer: Writer, plain: tuple[Schema, ...], *, integer: bool) -> bool:
    range_ = numbers.Range()
    try:
        writer.bounds(plain, range_)
    except numbers.Inexpressible:
        return False
    low, high = range_.low, range_.high
    if low is None or high is None:
        return False
    return math.ceil(low) > math.floor(high) if integer else low > high

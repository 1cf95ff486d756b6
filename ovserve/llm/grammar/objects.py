"""Objects: named properties in their order, then others; written as a chain, one rule per optional property.

A rule of the chain is the rest of the object after the earlier properties, given how many of them
were written. That number matters for the comma, so it is 0 or 1, and for bounds on the number of properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ovserve.llm.grammar import text
from ovserve.llm.grammar.conjunction import Schema
from ovserve.llm.grammar.keys import other_keys
from ovserve.llm.grammar.rules import STEP_BYTES, Repeat

if TYPE_CHECKING:
    from ovserve.llm.grammar.writer import Writer

UNENFORCED = ("dependentRequired", "dependentSchemas", "dependencies")
OPEN = ("additionalProperties", "unevaluatedProperties")
MAX_CHAIN = 4000  # rules spent on the number of properties
INLINE = 24  # tokens of a run of required properties in one rule
Tokens = list["str | int | Repeat"]


def body(writer: Writer, plain: tuple[Schema, ...]) -> list[list[str | int | Repeat]]:
    writer.asked(plain, *UNENFORCED)
    if any("patternProperties" in node for node in plain) and any("properties" in node for node in plain):
        writer.asked(plain, "patternProperties")
    writer.asked(plain[1:], "unevaluatedProperties")
    found = {name: (writer.of(part), must) for name, part, must in named(writer, plain)}
    writer.rules.properties = max(writer.rules.properties, len(found))
    pairs = _others(writer, plain, found)
    least, most = _bounds(writer, plain, found, pairs is not None)
    return _Chain(writer, found, pairs, least, most).written()


def named(writer: Writer, plain: tuple[Schema, ...]) -> list[tuple[str, Any, bool]]:
    """Return name, schema and required flag of each property.

    Required names missing from `properties` come last, with the schema of other properties.
    """
    properties = [writer.mapping(node, "properties") for node in plain]
    required = [_required(writer, node) for node in plain]
    every = {name: None for names in required for name in names}
    names = {name: None for one in properties for name in one} | every
    writer.rules.spend(len(names) * len(plain))
    found = []
    for name in names:
        parts = []
        for node, own, needed in zip(plain, properties, required, strict=True):
            if name in own:
                parts.append(own[name])
            elif not node.get("patternProperties") and (keyword := _open(node)):
                if node[keyword] is False and name in needed:
                    why = f"{keyword} is false and properties lack this name"
                    raise writer.document.fault(node, "required", why, name)
                if keyword == "additionalProperties" or name in every:
                    parts.append(node[keyword])
        found.append(
            (name, parts[0] if len(parts) == 1 else {"allOf": parts} if parts else True, name in every)
        )
    return found


def _required(writer: Writer, node: Schema) -> dict[str, None]:
    value = node.get("required", [])
    if isinstance(value, bool):  # draft 3, inside a property
        return {}
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise writer.document.fault(node, "required", "expected an array of names", value)
    writer.rules.spend(len(value))
    return dict.fromkeys(value)


def _open(node: Schema) -> str:
    return next((keyword for keyword in OPEN if keyword in node), "")


def _others(
    writer: Writer, plain: tuple[Schema, ...], named: dict[str, tuple[int, bool]]
) -> list[Tokens] | None:
    """Return alternatives of an unnamed property; None if there are none."""
    patterned = [
        (node, writer.mapping(node, "patternProperties")) for node in plain if node.get("patternProperties")
    ]
    opened = [node[keyword] for node in plain if (keyword := _open(node))]
    if patterned:
        return _by_pattern(writer, plain, patterned, opened)
    if False in opened:
        return None
    least, _ = writer.count(plain, "minProperties", "maxProperties")
    said = any("properties" in node or "required" in node for node in plain)
    if not opened and said and least <= len(named):
        return None
    key: Tokens = [other_keys(writer, named)]
    names = [node["propertyNames"] for node in plain if "propertyNames" in node]
    if names:
        if named:
            writer.asked(plain, "propertyNames")
        else:
            key = [writer.of({"type": "string"}, *names)]
    return [[*key, '": "', writer.of(*opened)]]


def _by_pattern(
    writer: Writer, plain: tuple[Schema, ...], patterned: list[tuple[Schema, Any]], opened: list[Any]
) -> list[Tokens]:
    """Return keys of any of the patterns. With several patterns a key could match more than one."""
    patterns = [(pattern, schema) for _, found in patterned for pattern, schema in found.items()]
    if len(patterns) > 1 or any(value is not False for value in opened):
        writer.asked(plain, "patternProperties")
    if any(value is not False for value in opened) or any("propertyNames" in node for node in plain):
        writer.asked(plain, *OPEN, "propertyNames")
    return [
        [writer.of({"type": "string", "pattern": pattern}), '": "', writer.of(schema)]
        for pattern, schema in patterns
    ]


def _bounds(
    writer: Writer, plain: tuple[Schema, ...], named: dict[str, tuple[int, bool]], others: bool
) -> tuple[int, int | None]:
    """Return bounds on the number of properties that are not met anyway."""
    least, most = writer.count(plain, "minProperties", "maxProperties")
    required = sum(must for _, must in named.values())
    least = least if least > required else 0
    if most is not None and not others and most >= len(named):
        most = None
    if others and least > required + 1:  # a repeated key counts once
        writer.asked(plain, "minProperties")
    if len(named) * max(least, most or 0) > MAX_CHAIN:
        writer.asked(plain, "minProperties", "maxProperties")
        return 0, None
    return least, most


class _Chain:
    def __init__(
        self,
        writer: Writer,
        named: dict[str, tuple[int, bool]],
        others: list[Tokens] | None,
        least: int,
        most: int | None,
    ) -> None:
        self._writer, self._named, self._least, self._most = writer, list(named.items()), least, most
        self._others = None if others is None else writer.rules.add(others)
        self._cap = max(1, least, 0 if most is None else most)

    def written(self) -> list[list[str | int | Repeat]]:
        reached = self._reached()
        tails = {count: self._end(count) for count in reached[-1]}
        for at in reversed(range(len(self._named))):
            tails = {count: self._tail(at, count, tails) for count in reached[at]}
        start = tails[0]
        return [['"{"', *start]] if start is not None else []

    def _reached(self) -> list[set[int]]:
        """Return, for each property, how many may have been written before it."""
        found = [{0}]
        for _, (_, must) in self._named:
            after = {min(count + 1, self._cap) for count in found[-1] if self._may_grow(count)}
            found.append(after if must else after | found[-1])
        return found

    def _may_grow(self, count: int) -> bool:
        return self._most is None or count < self._most

    def _tail(self, at: int, count: int, after: dict[int, Tokens | None]) -> Tokens | None:
        key, (value, must) = self._named[at]
        self._writer.rules.spend(len(key) // STEP_BYTES)
        begin = f"{', ' if count else ''}{text.one_line(key)}: "
        written = after.get(min(count + 1, self._cap)) if self._may_grow(count) else None
        pair: Tokens | None = None if written is None else [text.quoted(begin), value, *self._short(written)]
        if must:
            return pair
        skipped = after.get(count)
        if pair is None or skipped is None:
            return skipped if pair is None else pair
        return [self._writer.rules.add([pair, self._short(skipped)])]

    def _short(self, tokens: Tokens) -> Tokens:
        """Return it as a rule if it is long, because it may be written in two places."""
        if len(tokens) <= 2:
            return tokens
        if len(tokens) > INLINE or any(isinstance(token, Repeat) for token in tokens):
            tokens[:] = [self._writer.rules.add([list(tokens)])]
        return tokens

    def _end(self, count: int) -> Tokens | None:
        """Return other properties after `count`, and the end."""
        least = max(self._least - count, 0)
        most = None if self._most is None else self._most - count
        if self._others is None or most == 0:
            return ['"}"'] if not least else None
        following: Tokens = ['", "', self._others]
        if count:
            return [Repeat(following, least, most), '"}"']
        first: Tokens = [
            self._others,
            Repeat(following, max(least - 1, 0), None if most is None else most - 1),
        ]
        return [*first, '"}"'] if least else [Repeat(first), '"}"']

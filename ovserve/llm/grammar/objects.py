"""Objects: named properties in their order, then others; written as a chain, one rule per optional property.

A rule of the chain is the rest of the object after the earlier properties, given how many of them
were written. That number matters for the comma, so it is 0 or 1, and for bounds on the number of properties.

Strings without some are a trie of the complement of a set. They are keys of an object that are not named
properties, because a repeated key would replace a named
property's value by one of another schema; and strings that a negated `enum` excludes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from msgspec import structs

from ovserve.llm.grammar import strings, text
from ovserve.llm.grammar.conditions import BEYOND, UNLIKE, UNNAMED, WITHOUT
from ovserve.llm.grammar.conjunction import Conjunction, Schema
from ovserve.llm.grammar.judge import finite_strings, finite_texts, fits, fits_pattern, may_match_all
from ovserve.llm.grammar.rule_writer import RuleWriter
from ovserve.llm.grammar.rules import STEP_BYTES, Body, Repeat, Tokens
from ovserve.llm.grammar.text import PLAIN_ASCII, complement, in_string, intersection

_NARROWING = frozenset(("format", "pattern", "minLength", "maxLength", UNLIKE))
_END = ""  # the mark of a name's end in the trie


def strings_without(writer: RuleWriter, plain: tuple[Schema, ...]) -> Body:
    """Return the strings of these schemas, without those that a negation excludes."""
    excluded = [text for node in plain for text in node.get(WITHOUT, ())]
    if excluded and not any(node.keys() & _NARROWING for node in plain):
        return [[other_keys(writer, excluded)]]
    return strings.body(writer, plain)


def other_keys(writer: RuleWriter, names: Iterable[str]) -> int:
    trie: dict[str, Any] = {}
    for name in names:
        writer.rules.spend(len(name))
        node = trie
        for char in name:
            node = node.setdefault(char, {})
        node[_END] = {}
    if not trie:
        return strings.free(writer)
    start = writer.rules.new()
    todo = [(start, trie)]
    leaf = 0
    while todo:
        rule, node = todo.pop()
        alternatives: Body = [] if _END in node else [['"\\""']]
        children = [(char, child) for char, child in node.items() if char]
        alternatives += _others(writer, [char for char, _ in children])
        for char, child in children:
            inner = in_string([(ord(char), ord(char))])
            if inner is not None:
                if child.keys() == {_END}:  # most nodes end a name, and are one rule
                    following = leaf = leaf or writer.rules.add(_others(writer, []))
                else:
                    following = writer.rules.new()
                    todo.append((following, child))
                alternatives.append([inner, following])
        writer.rules.fill(rule, alternatives)
    return writer.rules.add([['"\\""', start]])


def _others(writer: RuleWriter, chars: list[str]) -> Body:
    """Return the rest of a string that begins with none of these, as a rule, which places with the same
    characters share: a mask of one takes 5 ms to compile."""
    ranges, end = complement([(ord(char), ord(char)) for char in chars]), strings.end(writer)
    plain, others = (in_string(intersection(ranges, part)) for part in (PLAIN_ASCII, complement(PLAIN_ASCII)))
    texts = [f"{first} {end}" for first in (plain, others and writer.rules.name_rule(others)) if first]
    return [[writer.rules.text(" | ".join(texts))]]


OPEN = ("additionalProperties", "unevaluatedProperties")
MAX_CHAIN = 4000  # rules spent on the number of properties
MAX_SETS = 16  # of patterns that a key of one object may match together, each with keys of its own
INLINE_TOKENS = 24  # tokens of a run of required properties in one rule


def body(writer: RuleWriter, conjunction: Conjunction) -> Body:
    plain = conjunction.plain
    beyond = next((node for node in plain if BEYOND in node), None)
    if beyond is not None:
        return [[rule] for rule in _with_another(writer, conjunction, beyond)]
    members = Members(writer, conjunction)
    properties = {name: (writer.of(part), must) for name, part, must in members.named_members()}
    writer.rules.properties = max(writer.rules.properties, len(properties))
    pairs = members.others(properties)
    least, most = _bounds(writer, plain, properties, pairs is not None)
    fewest = int(any(UNNAMED in node for node in plain))
    return _Chain(writer, properties, pairs, least, most, fewest).written()


def _with_another(writer: RuleWriter, conjunction: Conjunction, node: Schema) -> list[int]:
    """Return objects with a property that is not among some, which may have a name here or not."""
    document, names = writer.document, node[BEYOND]
    rest = structs.replace(conjunction, plain=tuple(one for one in conjunction.plain if one is not node))
    taken_names = dict.fromkeys(names)
    others = [name for name, _, _ in named_members(writer, rest) if name not in taken_names]
    writer.rules.spend(len(others) * len(rest.plain))
    schemas: list[Schema] = [{"type": "object", "required": [name]} for name in others]
    schemas.append({"type": "object", "properties": dict.fromkeys(names, True), UNNAMED: True})
    parts = [document.conjunction(document.derive(one, node)) for one in schemas]
    return [writer.rule(document.both(rest, part)) for part in parts if part is not None]


class Members:
    """The properties that an object may have."""

    def __init__(self, writer: RuleWriter, conjunction: Conjunction) -> None:
        self._writer, self._conjunction = writer, conjunction
        plain = conjunction.plain
        self._required = [writer.required(node) for node in plain]
        self._nodes = {id(node): _Node(writer, node) for node in plain}
        for node in plain:
            if "unevaluatedProperties" in node:
                self._nodes[id(node)].evaluators = [
                    self._nodes[id(one)] for one in conjunction.evaluated_by(node) if one is not node
                ]
        self._key_schemas = [node["propertyNames"] for node in plain if "propertyNames" in node]
        self._keys: list[str] | None = None
        if self._key_schemas:
            self._keys = finite_strings(writer, writer.document.conjunction(*self._key_schemas))

    def named_members(self) -> list[tuple[str, Any, bool]]:
        """Return name, schema and required flag of each property.

        Names that are only required come last, with the schema of other properties. So do all keys of
        a pattern or of `propertyNames` if they are few, and none of them comes twice.
        """
        nodes = list(self._nodes.values())
        every = {name: None for names in self._required for name in names}
        of_patterns = {
            name: None
            for one in nodes
            for pattern in one.patterns
            for name in finite_texts(self._writer, pattern) or ()
        }
        names = {name: None for one in nodes for name in one.properties} | of_patterns | every
        names |= dict.fromkeys(self._keys or ())
        self._writer.rules.spend(len(names) * len(nodes))
        ordered = list(names)
        if self._conjunction.chosen:
            places = self._writer.document.order(self._conjunction.sources)
            ordered.sort(key=lambda name: places.get(name, len(places)))
        members = []
        for name in ordered:
            parts = [part for node in nodes for part in self._parts(node, name)]
            if self._key_schemas and not self._is_key(name):
                parts = [False]
            members.append(
                (name, parts[0] if len(parts) == 1 else {"allOf": parts} if parts else True, name in every)
            )
        return members

    def _parts(self, node: _Node, name: str) -> list[Any]:
        """Return the schemas that this node has for the property."""
        parts = node.own(name)
        if parts or not (keyword := node.open):
            return parts
        if keyword == "unevaluatedProperties" and any(one.evaluates(name) for one in node.evaluators):
            return []
        value = node.schema[keyword]
        if value is False and name in self._writer.required(node.schema) and not self._conjunction.chosen:
            why = f"{keyword} is false and properties lack this name"
            raise self._writer.document.fault(node.schema, "required", why, name)
        return [value]

    def _is_key(self, name: str) -> bool:
        if self._keys is not None:
            return name in self._keys
        verdicts = [fits(self._writer, schema, name) for schema in self._key_schemas]
        if None in verdicts:
            self._writer.report_present(self._conjunction.plain, "propertyNames")
        return False not in verdicts

    def others(self, members: dict[str, tuple[int, bool]]) -> Body | None:
        """Return alternatives of an unnamed property; None if there are none."""
        writer, nodes = self._writer, list(self._nodes.values())
        if self._keys is not None:
            return None
        opened = [
            node.schema[node.open]
            for node in nodes
            if node.open == "additionalProperties"
            or (node.open and not any(one.open for one in node.evaluators))
        ]
        if any(node.patterns for node in nodes):
            return self._by_pattern(opened, members)
        if False in opened or self._is_closed(opened, len(members)):
            return None
        key: Tokens = [other_keys(writer, members)]
        if self._key_schemas:
            key = [
                writer.of(
                    {"type": "string", **({WITHOUT: list(members)} if members else {})}, *self._key_schemas
                )
            ]
        return [[*key, '": "', writer.of(*opened)]]

    def _is_closed(self, opened: list[Any], num_named: int) -> bool:
        """Return whether unnamed properties are left out although the schema allows them."""
        if (
            self._writer.exact
            or opened
            or self._key_schemas
            or any(UNNAMED in n.schema for n in self._nodes.values())
        ):
            return False
        least, _ = self._writer.count(self._conjunction.plain, "minProperties", "maxProperties")
        has_properties = any(self._required) or any(
            one.schema.get("properties") == {} or any(part is not False for part in one.properties.values())
            for one in self._nodes.values()
        )
        return has_properties and least <= num_named

    def _by_pattern(self, opened: list[Any], members: dict[str, tuple[int, bool]]) -> Body:
        """Return keys by the patterns that they match, each with the schemas of these."""
        writer, nodes = self._writer, list(self._nodes.values())
        patterns = list(dict.fromkeys(pattern for node in nodes for pattern in node.patterns))
        origin = next(node.schema for node in nodes if node.patterns)
        sets = _matched_together(writer, patterns)
        if sets is None:  # a key that matches several is held to any one of them
            writer.report_present(self._conjunction.plain, "patternProperties")
        pairs: Body = []
        for matched in sets or [(), *((one,) for one in patterns)]:
            some = nodes if sets or not matched else [one for one in nodes if matched[0] in one.patterns]
            parts = [part for node in some for part in node.matched_by(matched)]
            if False in parts or not (matched or writer.exact or opened):
                continue
            others = [pattern for pattern in patterns if pattern not in matched] if sets else []
            schemas: list[Schema] = [{"type": "string", WITHOUT: list(members), UNLIKE: others}]
            schemas += [{"pattern": pattern} for pattern in matched]
            keys = [writer.document.derive(one, origin, "patternProperties") for one in schemas]
            pairs.append([writer.of(*keys, *self._key_schemas), '": "', writer.of(*parts)])
        return pairs


def _matched_together(writer: RuleWriter, patterns: list[str]) -> list[tuple[str, ...]] | None:
    """Return the sets of patterns that one key may match; None if they are too many."""
    sets: list[tuple[str, ...]] = [()]
    for pattern in patterns:
        sets += [(*one, pattern) for one in sets if may_match_all(writer, (*one, pattern))]
        if len(sets) > MAX_SETS:
            return None
    return sets


class _Node:
    """The keywords of one schema about properties."""

    def __init__(self, writer: RuleWriter, schema: Schema) -> None:
        self._writer, self.schema = writer, schema
        self.properties = writer.mapping(schema, "properties")
        self.patterns = writer.mapping(schema, "patternProperties")
        self.open = next((keyword for keyword in OPEN if keyword in schema), "")
        self.evaluators: list[_Node] = []

    def own(self, name: str) -> list[Any]:
        parts = [self.properties[name]] if name in self.properties else []
        for pattern, part in self.patterns.items():
            fits = fits_pattern(self._writer, pattern, name)
            if fits is None:
                self._writer.document.report(self.schema, "patternProperties")
            elif fits:
                parts.append(part)
        return parts

    def matched_by(self, patterns: Collection[str]) -> list[Any]:
        """Return the schemas of an unnamed property whose name matches these patterns."""
        parts = [part for pattern, part in self.patterns.items() if pattern in patterns]
        if parts or not self.open:
            return parts
        if self.open == "unevaluatedProperties":
            for one in self.evaluators:
                if one.open or any(pattern in one.patterns for pattern in patterns):
                    return []
        return [self.schema[self.open]]

    def evaluates(self, name: str) -> bool:
        return bool(self.open or self.own(name))


def named_members(writer: RuleWriter, conjunction: Conjunction) -> list[tuple[str, Any, bool]]:
    """Return name, schema and required flag of each property."""
    return Members(writer, conjunction).named_members()


def _bounds(
    writer: RuleWriter, plain: tuple[Schema, ...], members: dict[str, tuple[int, bool]], others: bool
) -> tuple[int, int | None]:
    """Return bounds on the number of properties that are not met anyway."""
    least, most = writer.count(plain, "minProperties", "maxProperties")
    if most is not None and least > most:
        return least, most
    required = sum(must for _, must in members.values())
    least = least if least > required else 0
    if most is not None and not others and most >= len(members):
        most = None
    if others and least > required + 1:  # a repeated key counts once
        writer.report_present(plain, "minProperties")
    if len(members) * max(least, most or 0) > MAX_CHAIN:
        writer.report_present(plain, "minProperties", "maxProperties")
        return 0, None
    return least, most


class _Chain:
    def __init__(
        self,
        writer: RuleWriter,
        members: dict[str, tuple[int, bool]],
        others: Body | None,
        least: int,
        most: int | None,
        fewest: int,
    ) -> None:
        self._writer, self._named, self._least, self._most = writer, list(members.items()), least, most
        self._fewest = fewest  # unnamed properties
        self._others = None if others is None else writer.rules.add(others)
        self._cap = max(1, least, 0 if most is None else most)

    def written(self) -> Body:
        reached = self._reached()
        tails = {count: self._end(count) for count in reached[-1]}
        for at in reversed(range(len(self._named))):
            tails = {count: self._tail(at, count, tails) for count in reached[at]}
        start = tails[0]
        return [['"{"', *start]] if start is not None else []

    def _reached(self) -> list[set[int]]:
        """Return, for each property, how many may have been written before it."""
        counts = [{0}]
        for _, (_, must) in self._named:
            after = {min(count + 1, self._cap) for count in counts[-1] if self._may_grow(count)}
            counts.append(after if must else after | counts[-1])
        return counts

    def _may_grow(self, count: int) -> bool:
        return self._most is None or count < self._most

    def _tail(self, at: int, count: int, after: dict[int, Tokens | None]) -> Tokens | None:
        key, (value, must) = self._named[at]
        self._writer.rules.spend(len(key) // STEP_BYTES)
        begin = f"{', ' if count else ''}{text.one_line(key)}: "
        after_pair = after.get(min(count + 1, self._cap)) if self._may_grow(count) else None
        pair: Tokens | None = (
            None if after_pair is None else [text.quoted(begin), value, *self._short(after_pair)]
        )
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
        if len(tokens) > INLINE_TOKENS or any(isinstance(token, Repeat) for token in tokens):
            tokens[:] = [self._writer.rules.add([list(tokens)])]
        return tokens

    def _end(self, count: int) -> Tokens | None:
        """Return other properties after `count`, and the end."""
        least = max(self._least - count, self._fewest)
        most = None if self._most is None else self._most - count
        if self._others is None or most == 0 or (most and least > most):
            return ['"}"'] if not least else None
        following: Tokens = ['", "', self._others]
        if count:
            return [Repeat(following, least, most), '"}"']
        first: Tokens = [
            self._others,
            Repeat(following, max(least - 1, 0), None if most is None else most - 1),
        ]
        return [*first, '"}"'] if least else [Repeat(first), '"}"']

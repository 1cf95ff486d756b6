"""Strings without some: a trie of the complement of a set.

They are keys of an object that are not named properties, because a repeated key would replace a named
property's value by one of another schema; and strings that a negated `enum` excludes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ovserve.llm.grammar import strings
from ovserve.llm.grammar.conditions import UNLIKE, WITHOUT
from ovserve.llm.grammar.conjunction import Schema
from ovserve.llm.grammar.rule_writer import RuleWriter
from ovserve.llm.grammar.rules import Repeat
from ovserve.llm.grammar.text import complement, in_string

_NARROWING = frozenset(("format", "pattern", "minLength", "maxLength", UNLIKE))
_ESCAPED = '"/\\'  # a slash may be escaped
_END = ""  # the mark of a name's end in the trie


def strings_without(writer: RuleWriter, plain: tuple[Schema, ...]) -> list[list[str | int | Repeat]]:
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
        alternatives: list[list[str | int | Repeat]] = [] if _END in node else [['"\\""']]
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


def _others(writer: RuleWriter, chars: list[str]) -> list[list[str | int | Repeat]]:
    """Return the rest of a string that begins with none of these; in short EBNF if they need no escape."""
    if all(" " <= char <= "~" and char not in _ESCAPED for char in chars):
        escaped = writer.rules.name_rule(f'"\\\\" ["\\\\bfnrt] {strings.end(writer)}')
        others = "".join(char if char.isalnum() else f"\\u{ord(char):04x}" for char in chars)
        return [[f'[^"\\\\\\u0000-\\u001f\\u007f{others}] {strings.end(writer)} | {escaped}']]
    other = in_string(complement([(ord(char), ord(char)) for char in chars]))
    return [] if other is None else [[other, strings.rest(writer)]]

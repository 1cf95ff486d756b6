"""Keys of an object that are not named properties: a trie of the complement of a set of names.

A repeated key would replace a named property's value by one of another schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ovserve.llm.grammar import strings
from ovserve.llm.grammar.text import complement, in_string

if TYPE_CHECKING:
    from ovserve.llm.grammar.rules import Repeat
    from ovserve.llm.grammar.writer import Writer

_END = ""  # the mark of a name's end in the trie


def other_keys(writer: Writer, names: Iterable[str]) -> int:
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
    while todo:
        rule, node = todo.pop()
        alternatives: list[list[str | int | Repeat]] = [] if _END in node else [['"\\""']]
        children = [(char, child) for char, child in node.items() if char]
        other = in_string(complement([(ord(char), ord(char)) for char, _ in children]))
        if other is not None:
            alternatives.append([other, strings.rest(writer)])
        for char, child in children:
            inner = in_string([(ord(char), ord(char))])
            if inner is not None:
                following = writer.rules.new()
                todo.append((following, child))
                alternatives.append([inner, following])
        writer.rules.fill(rule, alternatives)
    return writer.rules.add([['"\\""', start]])

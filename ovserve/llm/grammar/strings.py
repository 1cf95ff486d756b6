"""Strings of a schema: `format`, `pattern` and the lengths, together.

One of them alone is EBNF of its expression. Where that has no form, an automaton of all of them is written,
one rule per state. Where it would be too large the least important are reported and left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ovserve.llm.grammar import automata, formats, patterns, regular, text
from ovserve.llm.grammar.conditions import UNLIKE, WITHOUT
from ovserve.llm.grammar.conjunction import Schema
from ovserve.llm.grammar.regular import Tree
from ovserve.llm.grammar.repetition import repeated
from ovserve.llm.grammar.rules import Repeat

if TYPE_CHECKING:
    from ovserve.llm.grammar.writer import Writer

Body = list[list[str | int | Repeat]]

STEPS_PER_CHARACTER = 10  # per character of a pattern, because patterns are slow to read
LENGTHS = ("minLength", "maxLength")
_EXCLUSIONS = frozenset((WITHOUT, UNLIKE))
SMALL_AUTOMATON_STATES = (
    80  # states that are written although there is EBNF, whose masks of tokens would take 40 ms
)


class _Asked(NamedTuple):
    wholes: tuple[Tree, ...]  # of formats
    searches: tuple[Tree, ...]  # of patterns
    least: int
    most: int | None
    shorter: tuple[Tree, ...] = ()  # formats without the texts that are long in one part


def body(writer: Writer, plain: tuple[Schema, ...]) -> Body:
    least, most = writer.count(plain, *LENGTHS)
    searches = _patterns(writer, plain)
    meanings = _formats(writer, plain, shortened=bool(searches or least or most))
    shorter = meanings if most is None else _formats(writer, plain, most, shortened=True)
    asked = _Asked(meanings, searches, least, most, shorter)
    if most is not None and least > most:
        return []
    if any(node.keys() & _EXCLUSIONS for node in plain):
        found = _excluding(writer, plain, asked)
        if found is not None:
            return found
        writer.asked(plain, *_EXCLUSIONS)
    if not asked.wholes and not asked.searches:
        return _by_length(writer, least, most)
    made = writer.rules.made.get(asked)
    if made is None:
        made = writer.rules.made[asked] = _together(writer, asked)
    if made.left_out:
        writer.asked(plain, *made.left_out)
    return made.body


def _excluding(writer: Writer, plain: tuple[Schema, ...], asked: _Asked) -> Body | None:
    """Return the strings without texts, and without a match of patterns, that negations exclude."""
    found: dict[Tree, None] = {}
    for node in plain:
        if names := node.get(WITHOUT):
            texts = (
                regular.Sequence(tuple(regular.Chars(((ord(c), ord(c)),)) for c in name)) for name in names
            )
            found[unlike(regular.Sequence((regular.Alternatives(tuple(texts)), regular.Edge(False))))] = None
        for pattern in node.get(UNLIKE, ()):
            try:
                tree = patterns.read(pattern)
            except (patterns.Malformed, patterns.Unsupported):
                return None
            later = regular.Sequence((regular.FREE, regular.ANY, tree))
            found[unlike(regular.Alternatives((tree, later)))] = None
    return _automaton(writer, asked._replace(wholes=(*asked.wholes, *found)), automata.MAX_STATES)


def unlike(tree: Tree) -> Tree:
    return regular.Sequence((regular.Look(tree, ahead=False), regular.FREE))


class Made(NamedTuple):
    body: Body
    left_out: tuple[str, ...] = ()


def free(writer: Writer) -> int:
    """Any string."""
    return writer.rules.text(f'"\\"" {end(writer)}')


def rest(writer: Writer) -> int:
    return writer.rules.text(end(writer))


def end(writer: Writer) -> str:
    """Return the name of the rule for the rest of a string with its closing quote; right-recursive, see
    `text.py`."""
    escape = writer.rules.named(text.ESCAPE)
    return writer.rules.recursive("string", f'"\\"" | {text.PLAIN} string | "\\\\" {escape} string')


def _by_length(writer: Writer, least: int, most: int | None) -> Body:
    if most is None and not least:
        return [[free(writer)]]
    if not most and most is not None:
        return [['"\\"\\""']]
    named = writer.rules.named
    character = f'{text.PLAIN} | "\\\\" {named(text.ESCAPE)}'
    counted = writer.rules.text(repeated(character, least, most or least, named, is_choice=True))
    return [['"\\""', counted, rest(writer) if most is None else '"\\""']]


def _formats(
    writer: Writer, plain: tuple[Schema, ...], most: int | None = None, *, shortened: bool
) -> tuple[Tree, ...]:
    found: dict[Tree, None] = {}
    for node in plain:
        name = node.get("format")
        if name is None:
            continue
        tree = formats.tree(name, shortened=shortened, most=most) if isinstance(name, str) else None
        if tree is not None:
            found[tree] = None
        else:
            writer.rules.noted[f"format: {name}"] = None
    return tuple(found)


def _patterns(writer: Writer, plain: tuple[Schema, ...]) -> tuple[Tree, ...]:
    found: dict[Tree, None] = {}
    for node in plain:
        pattern = node.get("pattern")
        if pattern is None:
            continue
        if not isinstance(pattern, str):
            raise writer.document.fault(node, "pattern", "expected a string", pattern)
        writer.rules.spend(STEPS_PER_CHARACTER * len(pattern))
        try:
            found[regular.simplified(patterns.read(pattern))] = None
        except patterns.Malformed as error:
            raise writer.document.fault(
                node, "pattern", f"not a regular expression: {error}", pattern
            ) from None
        except patterns.Unsupported:
            writer.document.report(node, "pattern")
    return tuple(found)


def _without_implied(asked: _Asked) -> _Asked:
    """Return it without the lengths that a format has anyway."""
    for low, high in filter(None, map(regular.widths, asked.wholes)):
        if asked.least <= low:
            asked = asked._replace(least=0)
        if asked.most is not None and high is not None and high <= asked.most:
            asked = asked._replace(most=None)
    return asked


def _together(writer: Writer, asked: _Asked) -> Made:
    """Write as much as can be held, all of it if possible."""
    asked = _without_implied(asked)
    lengths = tuple(
        keyword for keyword, given in zip(LENGTHS, (asked.least, asked.most), strict=True) if given
    )
    tries: list[tuple[_Asked, tuple[str, ...]]] = [(asked, ())]
    if lengths:
        tries.append((asked._replace(wholes=asked.shorter), ()))
        tries.append((asked._replace(least=0, most=None), lengths))
    if asked.wholes and asked.searches:
        tries.append((_Asked((), asked.searches, 0, None), ("format", *lengths)))
        tries.append((_Asked(asked.wholes, (), 0, None), ("pattern", *lengths)))
    for one, left_out in tries:
        one = _without_implied(one)
        found = _direct(writer, one)
        if found is None or any(map(regular.repeats_choice, one.wholes)):
            small = _automaton(writer, one, automata.MAX_STATES if found is None else SMALL_AUTOMATON_STATES)
            found = found if small is None else small
        if found is None:
            found = _direct(writer, one, freely=True)
        if found is not None:
            return Made(found, left_out)
    return Made(_by_length(writer, asked.least, asked.most), ("format", "pattern"))


def _direct(writer: Writer, asked: _Asked, *, freely: bool = False) -> Body | None:
    """Return EBNF of the only expression; None where there are several, or it has no such form.

    `freely`: also a search, which begins and ends with any text, and bounds that parts of the text share."""
    if len(asked.wholes) + len(asked.searches) != 1:
        return None
    tree, whole = asked.wholes[0] if asked.wholes else None, True
    if tree is None:
        found = regular.anchored(asked.searches[0], regular.FREE)
        if found is None:
            return None
        tree, whole = found
    held = regular.bounded(tree, asked.least, asked.most) if whole or freely else None
    is_shared = held is None and freely and asked.most is not None
    if is_shared and asked.most is not None:
        held = regular.shared(tree, asked.most)
        held = regular.bounded(held, asked.least, asked.most) if held is not None else None
    if held is None or regular.is_costly(held, is_shared=is_shared):
        return None
    expression = regular.written(held, text.in_string, writer.rules.named)
    if expression is None:
        return []
    return [['"\\""', *([writer.rules.text(expression)] if expression else []), '"\\""']]


def _automaton(writer: Writer, asked: _Asked, most: int) -> Body | None:
    """Return rules of its states; None if they are more than `most`."""
    length: tuple[Tree, ...] = ()
    if asked.least or asked.most is not None:
        length = (regular.Repeat(regular.ANY, asked.least, asked.most),)
    try:
        found = automata.automaton((*asked.wholes, *length), asked.searches, writer.rules.spend)
    except automata.TooLarge:
        return None
    if found is None:
        return []
    if len(found) > most or not writer.rules.take_states(found.weight):
        return None
    if found.is_free(0):
        return [[free(writer)]]
    rules = [writer.rules.new() for _ in range(len(found))]
    for state, rule in enumerate(rules):
        if found.is_free(state):
            writer.rules.fill(rule, [[rest(writer)]])
            continue
        alternatives: Body = [['"\\""']] if found.accepting[state] else []
        for ranges, to in found.edges[state]:
            if (one := text.in_string(ranges)) is not None:
                alternatives.append([one, rules[to]])
        writer.rules.fill(rule, alternatives)
    return [['"\\""', rules[0]]]

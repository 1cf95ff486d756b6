"""Strings of a schema: `format`, `pattern` and the lengths, together.

One of them alone is EBNF of its expression. Where that has no form, an automaton of all of them is written,
one rule per state. Where it would be too large the least important are reported and left out.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

from ovserve.llm.grammar import automata, formats, patterns, regular, text
from ovserve.llm.grammar.conditions import UNLIKE, WITHOUT
from ovserve.llm.grammar.conjunction import Schema
from ovserve.llm.grammar.regular import Tree
from ovserve.llm.grammar.rule_writer import RuleWriter
from ovserve.llm.grammar.rules import Body
from ovserve.llm.grammar.text import repeated

LENGTHS = ("minLength", "maxLength")
_EXCLUSIONS = frozenset((WITHOUT, UNLIKE))
# States that are written although there is EBNF, whose masks of tokens would take 40 ms.
SMALL_AUTOMATON_STATES = 80


class _Asked(NamedTuple):
    wholes: tuple[Tree, ...]  # of formats
    searches: tuple[Tree, ...]  # of patterns
    least: int
    most: int | None
    shorter: tuple[Tree, ...] = ()  # formats without the texts that are long in one part
    is_bound: bool = False  # by a pattern, in its length


def body(writer: RuleWriter, plain: tuple[Schema, ...]) -> Body:
    least, most = writer.count(plain, *LENGTHS)
    searches, bounds = _patterns(writer, plain)
    least = max(least, *(low for low, _ in bounds))
    most = min((high for high in (most, *(high for _, high in bounds)) if high is not None), default=None)
    meanings = _formats(writer, plain, shortened=bool(searches or least or most))
    shorter = meanings if most is None else _formats(writer, plain, most, shortened=True)
    needs = _Asked(meanings, searches, least, most, shorter, any(map(any, bounds)))
    if most is not None and least > most:
        return []
    if any(node.keys() & _EXCLUSIONS for node in plain):
        excluding = _excluding(writer, plain, needs)
        if excluding is not None:
            return excluding
        writer.report_present(plain, *_EXCLUSIONS)
    if not needs.wholes and not needs.searches:
        return _by_length(writer, least, most)
    result = writer.rules.made.get(needs)
    if result is None:
        result = writer.rules.made[needs] = _together(writer, needs)
    if result.left_out:
        writer.report_present(plain, *result.left_out)
    return result.body


def _excluding(writer: RuleWriter, plain: tuple[Schema, ...], needs: _Asked) -> Body | None:
    """Return the strings without texts, and without a match of patterns, that negations exclude."""
    trees: dict[Tree, None] = {}
    for node in plain:
        if names := node.get(WITHOUT):
            texts = regular.Alternatives(tuple(map(regular.literal, names)))
            trees[unlike(regular.Sequence((texts, regular.Edge(False))))] = None
        for pattern in node.get(UNLIKE, ()):
            try:
                tree = patterns.read(pattern)
            except (patterns.Malformed, patterns.Unsupported):
                return None
            later = regular.Sequence((regular.FREE, regular.ANY, tree))
            trees[unlike(regular.Alternatives((tree, later)))] = None
    machine = _automaton(writer, needs._replace(wholes=(*needs.wholes, *trees)))
    return None if machine is None else _states(writer, machine)


def unlike(tree: Tree) -> Tree:
    return regular.Sequence((regular.Look(tree, matches=False), regular.FREE))


class Made(NamedTuple):
    body: Body
    left_out: tuple[str, ...] = ()


def free(writer: RuleWriter) -> int:
    return writer.rules.text(f'"\\"" {end(writer)}')


def rest(writer: RuleWriter) -> int:
    return writer.rules.text(end(writer))


def end(writer: RuleWriter) -> str:
    """Return the name of the rule for the rest of a string with its closing quote; right-recursive, see
    `text.py`."""
    escape = writer.rules.name_rule(text.ESCAPE)
    return writer.rules.recursive("string", f'"\\"" | {text.PLAIN} string | "\\\\" {escape} string')


def _by_length(writer: RuleWriter, least: int, most: int | None) -> Body:
    if most is None and not least:
        return [[free(writer)]]
    if not most and most is not None:
        return [['"\\"\\""']]
    name_rule = writer.rules.name_rule
    character = f'{text.PLAIN} | "\\\\" {name_rule(text.ESCAPE)}'
    counted = writer.rules.text(repeated(character, least, most or least, name_rule, is_choice=True))
    return [['"\\""', counted, rest(writer) if most is None else '"\\""']]


def _formats(
    writer: RuleWriter, plain: tuple[Schema, ...], most: int | None = None, *, shortened: bool
) -> tuple[Tree, ...]:
    trees: dict[Tree, None] = {}
    for node in plain:
        name = node.get("format")
        if name is None:
            continue
        tree = formats.tree(name, shortened=shortened, most=most) if isinstance(name, str) else None
        if tree is not None:
            trees[tree] = None
        else:
            writer.rules.noted[f"format: {name}"] = None
    return tuple(trees)


Bounds = tuple[int, int | None]  # on the length


def _patterns(writer: RuleWriter, plain: tuple[Schema, ...]) -> tuple[tuple[Tree, ...], list[Bounds]]:
    trees: dict[Tree, Bounds] = {}
    for node in plain:
        pattern = node.get("pattern")
        if pattern is None:
            continue
        if not isinstance(pattern, str):
            raise writer.document.fault(node, "pattern", "expected a string", pattern)
        writer.rules.spend(patterns.steps(pattern))
        try:
            tree, bounds = without_bounds(regular.simplified(patterns.read(pattern)))
            trees[tree] = bounds
        except patterns.Malformed as error:
            raise writer.document.fault(
                node, "pattern", f"not a regular expression: {error}", pattern
            ) from None
        except patterns.Unsupported:
            writer.document.report(node, "pattern")
    return tuple(trees), [(0, None), *trees.values()]


def without_bounds(tree: Tree) -> tuple[Tree, Bounds]:
    """Return an anchored expression without the look-aheads at its start that only bound its length, and the
    bounds."""
    if not _is_whole(tree):
        return tree, (0, None)
    parts = tree.parts
    at = next((i for i, part in enumerate(parts) if i and not isinstance(part, regular.Look)), 1)
    rest = [part for part in parts[1:at] if _bounds(part) is None] + [*parts[at:]]
    limits = [bounds for part in parts[1:at] if (bounds := _bounds(part)) is not None]
    letters = [one.ranges for part in rest for one in regular.nodes(part) if isinstance(one, regular.Chars)]
    if not limits or any(
        text.intersection(one, text.complement(chars)) for one in letters for chars, _ in limits
    ):
        return tree, (0, None)
    highs = [high for _, (_, high) in limits if high is not None]
    least = max(low for _, (low, _) in limits)
    return regular.Sequence((parts[0], *rest)), (least, min(highs, default=None))


def _is_whole(tree: Tree) -> TypeGuard[regular.Sequence]:
    """Return whether it is anchored at both ends."""
    ends = regular.Edge(True), regular.Edge(False)
    return isinstance(tree, regular.Sequence) and (*tree.parts[:1], *tree.parts[-1:]) == ends


def _bounds(look: Tree) -> tuple[tuple[tuple[int, int], ...], Bounds] | None:
    """Return the characters of a look-ahead that only counts them, and the bounds that it sets."""
    if not isinstance(look, regular.Look) or look.behind:
        return None
    run, *tail = look.inner.parts if isinstance(look.inner, regular.Sequence) else (look.inner,)
    ends = tail[-1:] == [regular.Edge(False)]
    tail = tail[:-1] if ends else tail
    # What may be missing there, such as a dot after a host, is left out.
    if (look.matches and ends) and not any((regular.widths(part) or (1, 1))[0] for part in tail):
        tail = []
    if tail or not isinstance(run, regular.Repeat) or not isinstance(run.inner, regular.Chars):
        return None
    if look.matches:
        return run.inner.ranges, (run.least, run.most if ends else None)
    counts_all = run.most is None or (not ends and run.most >= run.least)
    return (run.inner.ranges, (0, run.least - 1)) if counts_all and run.least else None


def _without_implied(needs: _Asked) -> _Asked:
    """Return it without the lengths that a format has anyway."""
    for low, high in filter(None, map(regular.widths, needs.wholes)):
        if needs.least <= low:
            needs = needs._replace(least=0)
        if needs.most is not None and high is not None and high <= needs.most:
            needs = needs._replace(most=None)
    return needs


def _together(writer: RuleWriter, needs: _Asked) -> Made:
    """Write as much as can be held, all of it if possible."""
    needs = _without_implied(needs)
    lengths = tuple(
        keyword for keyword, limit in zip(LENGTHS, (needs.least, needs.most), strict=True) if limit
    )
    lengths += ("pattern",) if needs.is_bound and lengths else ()
    tries: list[tuple[_Asked, tuple[str, ...]]] = [(needs, ())]
    if lengths:
        if needs.shorter != needs.wholes:
            tries.append((needs._replace(wholes=needs.shorter), ()))
        if not needs.wholes and len(needs.searches) == 1 and needs.most is not None:
            short = regular.shared(needs.searches[0], needs.most) if _is_whole(needs.searches[0]) else None
            tries += [(needs._replace(searches=(short,), most=None), ())] if short is not None else []
        tries.append((needs._replace(least=0, most=None), lengths))
    if needs.wholes and needs.searches:
        tries.append((_Asked((), needs.searches, 0, None), ("format", *lengths)))
        tries.append((_Asked(needs.wholes, (), 0, None), ("pattern", *lengths)))
    for one, left_out in tries:
        one = _without_implied(one)
        candidate, machine = _direct(writer, one), None
        if candidate is None or any(map(regular.repeats_choice, one.wholes)):
            machine = _automaton(writer, one)
        if machine is not None and writer.rules.holds(machine):
            small = candidate is None or len(machine) <= SMALL_AUTOMATON_STATES
            candidate = _states(writer, machine) if small else candidate
        if candidate is None:
            candidate = _direct(writer, one, freely=True)
        if candidate is None and machine is not None:
            candidate = _states(writer, machine)
        if candidate is not None:
            return Made(candidate, left_out)
    return Made(_by_length(writer, needs.least, needs.most), ("format", "pattern"))


def _direct(writer: RuleWriter, needs: _Asked, *, freely: bool = False) -> Body | None:
    """Return EBNF of the only expression; None where there are several, or it has no such form.

    `freely`: also a search, which begins and ends with any text, and bounds that parts of the text share."""
    if len(needs.wholes) + len(needs.searches) != 1:
        return None
    tree, whole = needs.wholes[0] if needs.wholes else None, True
    if tree is None:
        parts = regular.anchored(needs.searches[0], regular.FREE)
        if parts is None:
            return None
        tree, whole = parts
    held = regular.bounded(tree, needs.least, needs.most) if whole or freely else None
    is_shared = held is None and freely and needs.most is not None
    if is_shared and needs.most is not None:
        held = regular.shared(tree, needs.most)
        held = regular.bounded(held, needs.least, needs.most) if held is not None else None
    if held is None or regular.is_costly(held, is_shared=is_shared):
        return None
    expression = regular.to_ebnf(held, text.in_string, writer.rules.name_rule)
    if expression is None:
        return []
    return [['"\\""', *([writer.rules.text(expression)] if expression else []), '"\\""']]


def _automaton(writer: RuleWriter, needs: _Asked) -> automata.Automaton | None:
    """Return the automaton; None if it is too large."""
    length: tuple[Tree, ...] = ()
    if needs.least or needs.most is not None:
        length = (regular.Repeat(regular.ANY, needs.least, needs.most),)
    try:
        return automata.automaton((*needs.wholes, *length), needs.searches, writer.rules.spend)
    except automata.TooLarge:
        return None


def _states(writer: RuleWriter, machine: automata.Automaton) -> Body | None:
    root = writer.rules.states(machine, text.in_string, ['"\\""'], [[rest(writer)]])
    return None if root is None else [['"\\""', root]]

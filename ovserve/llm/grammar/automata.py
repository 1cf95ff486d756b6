"""Automata of regular expressions, for what EBNF has no form: assertions, searches, conjunctions.

States are expressions, and an edge is a derivative (Brzozowski, "Derivatives of regular expressions", 1964):
what may follow once a character was read. A look-ahead is a conjunction with all that follows it. Characters
that all parts of the expression treat alike are one letter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from ovserve.llm.grammar.regular import (
    Alternatives,
    Boundary,
    Chars,
    Edge,
    Look,
    Repeat,
    Tree,
    children,
    is_plain,
    nodes,
    positions,
    widths,
)
from ovserve.llm.grammar.regular import Sequence as Parts
from ovserve.llm.grammar.text import LAST_CHARACTER, Ranges, is_wide

MAX_NODES = 1500  # of a tree: derivatives take its parts one within the other
MAX_POSITIONS = 20_000  # of characters, with all repetitions written out
MAX_DERIVATIVES = 40_000  # of one automaton
MAX_STATES = 1000
MAX_MERGED = 200  # states among which equal ones are looked for, which takes the square of their number
DERIVATIVE_STEPS = 4  # steps
MEMBERS_PER_DERIVATIVE = 16  # alternatives that take as long as a derivative
WIDE_STATE_RATIO = 5  # states of few characters that compile as slowly as one of nearly all characters
MAX_UNROLLED_REPETITIONS = 8  # repetitions of a part with an assertion
_WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))


class TooLarge(Exception):
    """The automaton has too many states, or an assertion stands where it cannot be followed."""


class Automaton:
    """State 0 is the start; `edges[state]` are characters and the state that follows."""

    def __init__(self, edges: list[list[tuple[Ranges, int]]], accepting: list[bool]) -> None:
        self.edges, self.accepting = edges, accepting

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def weight(self) -> int:
        """The time to compile it, in states of few characters."""
        return sum(
            WIDE_STATE_RATIO if any(is_wide(ranges) for ranges, _ in edges) else 1 for edges in self.edges
        )

    def is_free(self, state: int) -> bool:
        """Return whether any text may follow."""
        return self.accepting[state] and self.edges[state] == [([(0, LAST_CHARACTER)], state)]


def automaton(
    wholes: Sequence[Tree], searches: Sequence[Tree], spend: Callable[[int], None]
) -> Automaton | None:
    """Return the least automaton of texts that match all `wholes` as a whole and hold a match of each search.

    None if there are no such texts. Raises TooLarge.
    """
    trees = [*wholes, *searches]
    if (
        sum(1 for tree in trees for _ in nodes(tree)) > MAX_NODES
        or sum(map(positions, trees)) > MAX_POSITIONS
    ):
        raise TooLarge
    letters = _Letters(trees)
    terms = _Terms(letters, spend)
    try:
        both = [terms.after(tree, terms.empty, _START) for tree in wholes]
        both += [_search(terms, tree) for tree in searches]
        return _least(*_explored(terms, terms.both(both)), letters)
    except RecursionError:
        raise TooLarge from None


_START = frozenset(["start"])


def _search(terms: _Terms, tree: Tree) -> int:
    options = [terms.after(tree, terms.free, _START)]
    around = any(isinstance(one, Boundary) for one in nodes(tree))
    kinds = (("word",), ("other",)) if around else (("word", "other"),)
    for kind in kinds:
        last = terms.any if len(kind) > 1 else terms.word if kind == ("word",) else terms.no_word
        options.append(
            terms.joined(terms.free, terms.joined(last, terms.after(tree, terms.free, frozenset(kind))))
        )
    return terms.either(options)


class _Letters:
    """Classes of characters that all parts treat alike; a set of them is a bit mask."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        sets = {one.ranges for tree in trees for one in nodes(tree) if isinstance(one, Chars)} | {_WORD}
        cuts = sorted(
            {0, LAST_CHARACTER + 1} | {edge for one in sets for low, high in one for edge in (low, high + 1)}
        )
        members: dict[int, int] = dict.fromkeys(cuts[:-1], 0)
        for bit, one in enumerate(sorted(sets)):
            begins = dict(one)
            end = -1
            for cut in cuts[:-1]:
                end = begins.get(cut, end) if cut in begins else end
                if cut <= end:
                    members[cut] |= 1 << bit
        self._letters: dict[int, list[tuple[int, int]]] = {}
        for low, following in pairwise(cuts):
            self._letters.setdefault(members[low], []).append((low, following - 1))
        self.ranges = list(self._letters.values())
        self.count = len(self.ranges)
        self.all = (1 << self.count) - 1
        signs = list(self._letters)
        self._masks = {
            one: sum(1 << i for i, sign in enumerate(signs) if sign >> bit & 1)
            for bit, one in enumerate(sorted(sets))
        }

    def mask(self, ranges: tuple[tuple[int, int], ...]) -> int:
        return self._masks[ranges]

    def of(self, mask: int) -> Ranges:
        ranges: Ranges = []
        for low, high in sorted(one for i, some in enumerate(self.ranges) if mask >> i & 1 for one in some):
            if ranges and ranges[-1][1] == low - 1:
                ranges[-1] = ranges[-1][0], high
            else:
                ranges.append((low, high))
        return ranges


class _Terms:
    """Expressions, each once, as numbers."""

    def __init__(self, letters: _Letters, spend: Callable[[int], None]) -> None:
        self._letters, self._spend, self._left = letters, spend, MAX_DERIVATIVES
        self._keys: list[tuple[Any, ...]] = []
        self.nullable: list[bool] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._derived: dict[tuple[int, int], int] = {}
        self.nothing = self._term(("chars", 0), nullable=False)
        self.empty = self._term(("empty",), nullable=True)
        self.any = self.chars(letters.all)
        self.free = self._term(("repeat", self.any, 0, None), nullable=True)
        self.word = self.chars(letters.mask(_WORD))
        self.no_word = self.chars(letters.all & ~letters.mask(_WORD))

    def _take(self, count: int) -> None:
        self._left -= count
        self._spend(DERIVATIVE_STEPS * count)
        if self._left < 0:
            raise TooLarge

    def _term(self, key: tuple[Any, ...], *, nullable: bool) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self.nullable.append(nullable)
        return number

    def chars(self, mask: int) -> int:
        return self._term(("chars", mask), nullable=False)

    def joined(self, one: int, other: int) -> int:
        if self.nothing in (one, other):
            return self.nothing
        if one == self.empty:
            return other
        if other == self.empty:
            return one
        key = self._keys[one]
        if key[0] == "joined":
            return self.joined(key[1], self.joined(key[2], other))
        return self._term(("joined", one, other), nullable=self.nullable[one] and self.nullable[other])

    def either(self, terms: Sequence[int]) -> int:
        members: set[int] = set()
        mask = 0
        for term in terms:
            key = self._keys[term]
            if key[0] == "chars":
                mask |= key[1]
            elif key[0] == "either":
                for inner in key[1]:
                    if self._keys[inner][0] == "chars":
                        mask |= self._keys[inner][1]
                    else:
                        members.add(inner)
            else:
                members.add(term)
        self._take(len(members) // MEMBERS_PER_DERIVATIVE)
        if self.free in members:
            return self.free
        if mask:
            members.add(self.chars(mask))
        if self.empty in members and any(self.nullable[one] for one in members if one != self.empty):
            members.discard(self.empty)
        if len(members) < 2:
            return next(iter(members), self.nothing)
        return self._term(("either", frozenset(members)), nullable=any(self.nullable[one] for one in members))

    def both(self, terms: Sequence[int]) -> int:
        members: set[int] = set()
        for term in terms:
            key = self._keys[term]
            members |= key[1] if key[0] == "both" else {term}
        self._take(len(members) // MEMBERS_PER_DERIVATIVE)
        members.discard(self.free)
        if self.nothing in members:
            return self.nothing
        if len(members) < 2:
            return next(iter(members), self.free)
        nullable = all(self.nullable[one] for one in members)
        if self.empty in members:
            return self.empty if nullable else self.nothing
        return self._term(("both", frozenset(members)), nullable=nullable)

    def complement(self, term: int) -> int:
        if term == self.free:
            return self.nothing
        if term == self.nothing:
            return self.free
        key = self._keys[term]
        return key[1] if key[0] == "not" else self._term(("not", term), nullable=not self.nullable[term])

    def repeated(self, term: int, least: int, most: int | None) -> int:
        if most == 0 or term == self.empty:
            return self.empty
        if term == self.nothing:
            return self.nothing if least else self.empty
        if (least, most) == (1, 1):
            return term
        if self.nullable[term]:
            least = 0
        return self._term(("repeat", term, least, most), nullable=not least)

    # ---- trees

    def after(self, tree: Tree, following: int, before: frozenset[str]) -> int:
        """Return the term of the tree with what follows it. `before`: kinds of the character before it."""
        if isinstance(tree, Chars):
            return self.joined(self.chars(self._letters.mask(tree.ranges)), following)
        if isinstance(tree, Parts):
            kinds = [before]
            for part in tree.parts:
                kinds.append(self._kinds_after(part, kinds[-1]))
            for part, kind in zip(reversed(tree.parts), reversed(kinds[:-1]), strict=True):
                following = self.after(part, following, kind)
            return following
        if isinstance(tree, Alternatives):
            return self.either([self.after(option, following, before) for option in tree.options])
        if isinstance(tree, Repeat):
            return self._after_repeat(tree, following, before)
        if isinstance(tree, Look):
            held = self.after(tree.inner, self.free, before)
            return self.both([held if tree.ahead else self.complement(held), following])
        if isinstance(tree, Edge):
            return self._after_edge(tree, following, before)
        return self._after_boundary(tree, following, before)

    def _after_repeat(self, tree: Repeat, following: int, before: frozenset[str]) -> int:
        if is_plain(tree.inner):
            inner = self.after(tree.inner, self.empty, before)
            return self.joined(self.repeated(inner, tree.least, tree.most), following)
        if tree.most is None or tree.most > MAX_UNROLLED_REPETITIONS:
            raise TooLarge
        must = (tree.inner,) * tree.least
        options = tuple(Parts((*must, *(tree.inner,) * more)) for more in range(tree.most - tree.least + 1))
        return self.after(Alternatives(options), following, before)

    def _after_edge(self, tree: Edge, following: int, before: frozenset[str]) -> int:
        if not tree.start:
            return self.empty if self.nullable[following] else self.nothing
        if "start" in before and before != _START:
            raise TooLarge
        return following if before == _START else self.nothing

    def _after_boundary(self, tree: Boundary, following: int, before: frozenset[str]) -> int:
        if "word" in before and len(before) > 1:
            raise TooLarge
        word = self.joined(self.word, self.free)
        begins = ("word" in before) != tree.between
        return self.both([word if begins else self.complement(word), following])

    def _kinds_after(self, tree: Tree, before: frozenset[str]) -> frozenset[str]:
        limits = widths(tree) or (0, 0)
        if limits[1] == 0:
            return before
        return self._kinds_of_last(tree) | (before if limits[0] == 0 else frozenset())

    def _kinds_of_last(self, tree: Tree) -> frozenset[str]:
        if isinstance(tree, Chars):
            mask, word = self._letters.mask(tree.ranges), self._letters.mask(_WORD)
            return frozenset(kind for kind, some in (("word", mask & word), ("other", mask & ~word)) if some)
        kinds: frozenset[str] = frozenset()
        for part in reversed(children(tree)) if not isinstance(tree, Look) else ():
            kinds |= self._kinds_of_last(part)
            if isinstance(tree, Parts) and (widths(part) or (0, 0))[0]:
                break
        return kinds

    # ---- derivatives

    def derived(self, term: int, letter: int) -> int:
        """Return what may follow the letter."""
        key = self._keys[term]
        kind = key[0]
        if kind == "chars":
            return self.empty if key[1] >> letter & 1 else self.nothing
        if kind == "empty" or term == self.free:
            return term if term == self.free else self.nothing
        after = self._derived.get((term, letter))
        if after is None:
            self._take(1)
            after = self._derived[term, letter] = self._derive(key, letter)
        return after

    def _derive(self, key: tuple[Any, ...], letter: int) -> int:
        kind = key[0]
        if kind == "joined":
            one, other = key[1], key[2]
            after = self.joined(self.derived(one, letter), other)
            return self.either([after, self.derived(other, letter)]) if self.nullable[one] else after
        if kind == "either":
            return self.either([self.derived(one, letter) for one in key[1]])
        if kind == "both":
            return self.both([self.derived(one, letter) for one in key[1]])
        if kind == "not":
            return self.complement(self.derived(key[1], letter))
        _, inner, least, most = key
        most_left = None if most is None else most - 1
        return self.joined(self.derived(inner, letter), self.repeated(inner, max(least - 1, 0), most_left))

    def step(self, term: int) -> dict[int, int]:
        """Return the terms that follow, with the letters of each."""
        transitions: dict[int, int] = {}
        for letter in range(self._letters.count):
            following = self.derived(term, letter)
            if following != self.nothing:
                transitions[following] = transitions.get(following, 0) | 1 << letter
        return transitions


def _explored(terms: _Terms, start: int) -> tuple[list[dict[int, int]], list[bool]]:
    """Return the states in the order in which they are found: masks by following state, and which accept."""
    numbers, todo = {start: 0}, [start]
    edges: list[dict[int, int]] = []
    for term in todo:
        transitions: dict[int, int] = {}
        for following, mask in terms.step(term).items():
            if following not in numbers:
                numbers[following] = len(todo)
                todo.append(following)
                if len(todo) > MAX_STATES:
                    raise TooLarge
            transitions[numbers[following]] = mask
        edges.append(transitions)
    return edges, [terms.nullable[term] for term in todo]


def _least(edges: list[dict[int, int]], accepting: list[bool], letters: _Letters) -> Automaton | None:
    """Drop states from which no text ends, and merge those that are equal (Moore)."""
    alive = _alive(edges, accepting)
    if not alive[0]:
        return None
    edges = [{to: mask for to, mask in transitions.items() if alive[to]} for transitions in edges]
    block = [int(ends) for ends in accepting]
    count = 0
    if len(edges) > MAX_MERGED:
        return _merged(edges, accepting, list(range(len(edges))), letters)
    while True:
        signs: dict[object, int] = {}
        following = []
        for state, transitions in enumerate(edges):
            by: dict[int, int] = {}
            for to, mask in transitions.items():
                by[block[to]] = by.get(block[to], 0) | mask
            following.append(signs.setdefault((block[state], frozenset(by.items())), len(signs)))
        block = following
        if len(signs) == count:
            break
        count = len(signs)
    return _merged(edges, accepting, block, letters)


def _alive(edges: list[dict[int, int]], accepting: list[bool]) -> list[bool]:
    into: list[list[int]] = [[] for _ in edges]
    for state, transitions in enumerate(edges):
        for to in transitions:
            into[to].append(state)
    alive = [False] * len(edges)
    todo = [state for state, ends in enumerate(accepting) if ends]
    while todo:
        state = todo.pop()
        if not alive[state]:
            alive[state] = True
            todo += into[state]
    return alive


def _merged(
    edges: list[dict[int, int]], accepting: list[bool], block: list[int], letters: _Letters
) -> Automaton:
    numbers, todo = {block[0]: 0}, [0]
    transitions: list[list[tuple[Ranges, int]]] = []
    for state in todo:
        masks: dict[int, int] = {}
        for to, mask in edges[state].items():
            if block[to] not in numbers:
                numbers[block[to]] = len(todo)
                todo.append(to)
            masks[numbers[block[to]]] = masks.get(numbers[block[to]], 0) | mask
        transitions.append([(letters.of(mask), to) for to, mask in masks.items()])
    return Automaton(transitions, [accepting[state] for state in todo])

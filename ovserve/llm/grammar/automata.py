"""Automata of regular expressions, for what EBNF has no form: assertions, searches, conjunctions.

States are expressions, and an edge is a derivative (Brzozowski, "Derivatives of regular expressions", 1964):
what may follow once a character was read. A look-ahead is a conjunction with all that follows it. A state
also has, for each look-behind, the derivative of the texts that end with a match of it: it holds where that
admits the end. Characters that all parts of the expression treat alike are one letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from ovserve.llm.grammar.regular import (
    ANY,
    Alternatives,
    Chars,
    Edge,
    Look,
    Repeat,
    Tree,
    is_plain,
    nodes,
    positions,
    widths,
)
from ovserve.llm.grammar.regular import Sequence as Parts
from ovserve.llm.grammar.text import LAST_CHARACTER, Ranges, complement

MAX_NODES = 1500  # of a tree: derivatives take its parts one within the other
MAX_POSITIONS = 20_000  # of characters, with all repetitions written out
MAX_DERIVATIVES = 40_000  # of one automaton
MAX_STATES = 4000
MAX_MERGED = 200  # states among which equal ones are looked for, which takes the square of their number
DERIVATIVE_STEPS = 4  # steps
MEMBERS_PER_DERIVATIVE = 16  # alternatives that take as long as a derivative
MAX_UNROLLED_REPETITIONS = 8  # repetitions of a part with an assertion
_NONE: frozenset[int] = frozenset()
_BEGINS = Look(ANY, matches=False, behind=True)  # no character precedes


class TooLarge(Exception):
    """The automaton has too many states, or an assertion stands where it cannot be followed."""


class Automaton:
    """State 0 is the start; `edges[state]` are characters and the state that follows."""

    def __init__(self, edges: list[list[tuple[Ranges, int]]], accepting: list[bool]) -> None:
        self.edges, self.accepting = edges, accepting

    def __len__(self) -> int:
        return len(self.edges)

    def is_free(self, state: int) -> bool:
        """Return whether any text may follow."""
        return self.accepting[state] and self.edges[state] == [([(0, LAST_CHARACTER)], state)]


def automaton(wholes: Sequence[Tree], searches: Sequence[Tree], spend: Callable[[int], None]) -> Automaton:
    """Return an automaton of texts that match all `wholes` as a whole and hold a match of each search.

    Raises TooLarge.
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
        both = [terms.after(tree, terms.empty, True) for tree in wholes]
        both += [_search(terms, tree) for tree in searches]
        return _least(*_explored(terms, terms.both(both)), letters)
    except RecursionError:
        raise TooLarge from None


def _search(terms: _Terms, tree: Tree) -> int:
    later = terms.joined(terms.any, terms.after(tree, terms.free, False))
    return terms.either([terms.after(tree, terms.free, True), terms.joined(terms.free, later)])


def _every(verdicts: Iterable[bool | None]) -> bool | None:
    some = [*verdicts]
    return False if False in some else None if None in some else True


Past = tuple[tuple[int, int], ...]  # look-behinds by number, and what would end a match of each


class _Letters:
    """Classes of characters that all parts treat alike; a set of them is a bit mask."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        sets = {one.ranges for tree in trees for one in nodes(tree) if isinstance(one, Chars)} | {ANY.ranges}
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
        some = (one for i, ranges in enumerate(self.ranges) if mask >> i & 1 for one in ranges)
        return complement(complement(some))


class _Terms:
    """Expressions, each once, as numbers."""

    def __init__(self, letters: _Letters, spend: Callable[[int], None]) -> None:
        self._letters, self._spend, self._left = letters, spend, MAX_DERIVATIVES
        self.num_letters = letters.count
        self._keys: list[tuple[Any, ...]] = []
        self._nullable: list[bool | None] = []  # None: that depends on what precedes
        self.behinds: list[frozenset[int]] = []  # the look-behinds in each term, by number
        self.ends: list[int] = []  # of each look-behind, the texts that end with a match
        self._numbers_of_ends: dict[Tree, int] = {}
        self._rounds: dict[tuple[Any, ...], int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._derived: dict[tuple[int, int, frozenset[int]], int] = {}
        self.nothing = self._term(("chars", 0), nullable=False)
        self.empty = self._term(("empty",), nullable=True)
        self.any = self.chars(letters.all)
        self.free = self._term(("repeat", self.any, 0, None), nullable=True)

    def _take(self, count: int) -> None:
        self._left -= count
        self._spend(DERIVATIVE_STEPS * count)
        if self._left < 0:
            raise TooLarge

    def _term(self, key: tuple[Any, ...], parts: Iterable[int] = (), *, nullable: bool | None) -> int:
        """Return the number of a term. `parts`: those whose look-behinds are its own."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self._nullable.append(nullable)
            self.behinds.append(_NONE.union(*(self.behinds[part] for part in parts)))
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
        nullable = _every((self._nullable[one], self._nullable[other]))
        return self._term(("joined", one, other), (one, other), nullable=nullable)

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
        if self.empty in members and any(self._nullable[one] for one in members if one != self.empty):
            members.discard(self.empty)
        if len(members) < 2:
            return next(iter(members), self.nothing)
        some = [self._nullable[one] for one in members]
        nullable = True if True in some else None if None in some else False
        return self._term(("either", frozenset(members)), members, nullable=nullable)

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
        nullable = _every(self._nullable[one] for one in members)
        if self.empty in members and nullable is not None:
            return self.empty if nullable else self.nothing
        return self._term(("both", frozenset(members)), members, nullable=nullable)

    def complement(self, term: int) -> int:
        if term == self.free:
            return self.nothing
        if term == self.nothing:
            return self.free
        key, nullable = self._keys[term], self._nullable[term]
        opposite = None if nullable is None else not nullable
        return key[1] if key[0] == "not" else self._term(("not", term), (term,), nullable=opposite)

    def repeated(self, term: int, least: int, most: int | None) -> int:
        if most == 0 or term == self.empty:
            return self.empty
        if term == self.nothing:
            return self.nothing if least else self.empty
        if (least, most) == (1, 1):
            return term
        if self._nullable[term]:
            least = 0
        return self._term(("repeat", term, least, most), nullable=not least)

    # ---- trees

    def after(self, tree: Tree, following: int, start: bool | None) -> int:
        """Return the term of the tree with what follows it. `start`: whether the text begins here; None: it
        may."""
        if isinstance(tree, Chars):
            return self.joined(self.chars(self._letters.mask(tree.ranges)), following)
        if isinstance(tree, Parts):
            starts = [start]
            for part in tree.parts:
                starts.append(self._start_after(part, starts[-1]))
            for part, at_start in zip(reversed(tree.parts), reversed(starts[:-1]), strict=True):
                following = self.after(part, following, at_start)
            return following
        if isinstance(tree, Alternatives):
            return self.either([self.after(option, following, start) for option in tree.options])
        if isinstance(tree, Repeat):
            return self._after_repeat(tree, following, start)
        if isinstance(tree, Look) and tree.behind:
            return self.joined(self._behind(tree), following)
        if isinstance(tree, Look):
            held = self.after(tree.inner, self.free, start)
            return self.both([held if tree.matches else self.complement(held), following])
        assert isinstance(tree, Edge), "there is no other tree"
        if not tree.start:
            return self.both([self.empty, following])
        if start is None:
            return self.joined(self._behind(_BEGINS), following)
        return following if start else self.nothing

    @staticmethod
    def _start_after(tree: Tree, start: bool | None) -> bool | None:
        least, most = widths(tree) or (1, 1)
        return start if most == 0 else False if least else start and None

    def _after_repeat(self, tree: Repeat, following: int, start: bool | None) -> int:
        if is_plain(tree.inner):
            inner = self.after(tree.inner, self.empty, start)
            return self.joined(self.repeated(inner, tree.least, tree.most), following)
        if tree.most == 0:
            return following
        if (widths(tree.inner) or (1, 1))[0]:
            self._take(sum(1 for _ in nodes(tree)) // MEMBERS_PER_DERIVATIVE)
            parts = self.after(tree.inner, self.free, None), following
            nullable = self._nullable[following] if tree.least == 0 else False
            return self._term(("loop", tree, following, start), parts, nullable=nullable)
        if tree.most is None or tree.most > MAX_UNROLLED_REPETITIONS:
            raise TooLarge
        must = (tree.inner,) * tree.least
        options = tuple(Parts((*must, *(tree.inner,) * more)) for more in range(tree.most - tree.least + 1))
        return self.after(Alternatives(options), following, start)

    def _once(self, key: tuple[Any, ...]) -> int:
        """Return the term of a loop with its first round written out."""
        if key not in self._rounds:
            _, tree, following, start = key
            self._take(sum(1 for _ in nodes(tree)) // MEMBERS_PER_DERIVATIVE)
            most = None if tree.most is None else tree.most - 1
            again = self.after(Repeat(tree.inner, max(tree.least - 1, 0), most), following, False)
            self._rounds[key] = self.after(tree.inner, again, start)
        return self._rounds[key]

    def _behind(self, tree: Look) -> int:
        number = self._numbers_of_ends.get(tree.inner)
        if number is None:
            ends = self.joined(self.free, self.after(tree.inner, self.empty, None))
            number = self._numbers_of_ends[tree.inner] = len(self.ends)
            self.ends.append(ends)
        held = self._term(("behind", number, tree.matches), (self.ends[number],), nullable=None)
        self.behinds[held] |= {number}
        return held

    # ---- derivatives

    def derived(self, term: int, letter: int, held: frozenset[int]) -> int:
        """Return what may follow the letter. `held`: the look-behinds that hold before it."""
        key = self._keys[term]
        kind = key[0]
        if kind == "chars":
            return self.empty if key[1] >> letter & 1 else self.nothing
        if kind in ("empty", "behind") or term == self.free:
            return term if term == self.free else self.nothing
        held &= self.behinds[term]
        after = self._derived.get((term, letter, held))
        if after is None:
            self._take(1)
            after = self._derived[term, letter, held] = self._derive(key, letter, held)
        return after

    def _derive(self, key: tuple[Any, ...], letter: int, held: frozenset[int]) -> int:
        kind = key[0]
        if kind == "joined":
            one, other = key[1], key[2]
            after = self.joined(self.derived(one, letter, held), other)
            return (
                self.either([after, self.derived(other, letter, held)]) if self.accepts(one, held) else after
            )
        if kind == "either":
            return self.either([self.derived(one, letter, held) for one in key[1]])
        if kind == "both":
            return self.both([self.derived(one, letter, held) for one in key[1]])
        if kind == "not":
            return self.complement(self.derived(key[1], letter, held))
        if kind == "loop":
            _, tree, following, _ = key
            after = self.derived(self._once(key), letter, held)
            return after if tree.least else self.either([after, self.derived(following, letter, held)])
        _, inner, least, most = key
        most_left = None if most is None else most - 1
        again = self.repeated(inner, max(least - 1, 0), most_left)
        return self.joined(self.derived(inner, letter, held), again)

    def accepts(self, term: int, held: frozenset[int]) -> bool:
        """Return whether the text may end here. `held`: the look-behinds that hold."""
        certain = self._nullable[term]
        if certain is not None:
            return certain
        self._take(1)
        kind, *parts = self._keys[term]
        if kind == "behind":
            return (parts[0] in held) is parts[1]
        if kind == "not":
            return not self.accepts(parts[0], held)
        if kind == "loop":
            return self.accepts(parts[1], held)
        if kind == "either":
            return any(self.accepts(one, held) for one in parts[0])
        return all(self.accepts(one, held) for one in (parts[0] if kind == "both" else parts))

    def held(self, past: Past) -> frozenset[int]:
        """Return the look-behinds that hold; one within another has the lower number."""
        holding = _NONE
        for number, ends in past:
            holding |= {number} if self.accepts(ends, holding) else _NONE
        return holding

    def past(self, term: int, past: Past) -> Past:
        """Return what is known of the look-behinds of the term."""
        behinds = self.behinds[term]
        return tuple(pair for pair in past if pair[0] in behinds)


def _explored(terms: _Terms, start: int) -> tuple[list[dict[int, int]], list[bool]]:
    """Return the states in the order in which they are found: masks by following state, and which accept."""
    first = start, terms.past(start, tuple(enumerate(terms.ends)))
    numbers, todo = {first: 0}, [first]
    edges: list[dict[int, int]] = []
    accepting: list[bool] = []
    for term, past in todo:
        held = terms.held(past)
        accepting.append(terms.accepts(term, held))
        transitions: dict[int, int] = {}
        for letter in range(terms.num_letters):
            following = terms.derived(term, letter, held)
            if following == terms.nothing:
                continue
            ends = tuple((number, terms.derived(one, letter, held)) for number, one in past)
            state = following, terms.past(following, ends)
            if state not in numbers:
                numbers[state] = len(todo)
                todo.append(state)
                if len(todo) > MAX_STATES:
                    raise TooLarge
            transitions[numbers[state]] = transitions.get(numbers[state], 0) | 1 << letter
        edges.append(transitions)
    return edges, accepting


def _least(edges: list[dict[int, int]], accepting: list[bool], letters: _Letters) -> Automaton:
    """Drop states from which no text ends, and merge those that are equal (Moore)."""
    alive = _alive(edges, accepting)
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

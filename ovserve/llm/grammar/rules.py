"""EBNF rules under construction: alternatives of tokens, pruned of what no text can match, then written.

The text is counted while rules are added, so an oversized grammar is rejected before it takes memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import accumulate
from typing import Any

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.automata import Automaton
from ovserve.llm.grammar.text import Ranges, is_wide

MAX_BYTES = 256 * 1024  # of grammar text; sixty tools of a coding agent are 70 KB
# The library makes a mask for the rule of each state as it compiles: of few characters in 2 ms with 49,152
# tokens and 5 ms with 151,936, else in 9 and 27 ms. States beyond these many share rules of their characters,
# which compile at once. But masks are then made as the text is written, in 20 to 60 ms, or 70 to 150 ms.
MAX_STATES = 1000
WIDE_STATES = 5  # states of few characters that take as long as one of nearly all
EDGE_BYTES = 14  # of such a state
STEP_BYTES = 3  # of grammar text that take as long to write as a step


class TooLarge(InvalidArgument):
    """The grammar has more text than is allowed."""


class Repeat:
    """Tokens that occur `least` to `most` times; `most` None: unlimited."""

    __slots__ = ("least", "most", "tokens")

    def __init__(self, tokens: Tokens, least: int = 0, most: int | None = 1) -> None:
        self.tokens, self.least, self.most = tokens, least, most

    @property
    def suffix(self) -> str:
        if (self.least, self.most) == (0, 1):
            return "?"
        if self.most is None and self.least < 2:
            return "+" if self.least else "*"
        return f"{{{self.least},{'' if self.most is None else self.most}}}"


Tokens = list[str | int | Repeat]  # text, numbers of rules, and repetitions
Body = list[Tokens]  # the alternatives of a rule
Character = Callable[[Ranges], str | None]  # its text; None: it cannot be written


class Rules:
    """Numbered rules. A number is assigned before its rule is written, which allows recursion."""

    def __init__(self, what: str = "the schema") -> None:
        self._what = what
        self._bodies: list[Body] = []
        self._texts: dict[str, int] = {}
        self._used_by_name: set[int] = set()
        self._recursive: dict[str, str] = {}
        self._bytes = 0
        self._budget = budget()
        self.properties = 0  # of the largest object, for the message
        self.made: dict[Any, Any] = {}  # by what was asked, for those who write the same thing again
        self.noted: dict[str, None] = {}  # names of formats without a meaning here
        self._states = MAX_STATES

    def new(self) -> int:
        self._bodies.append([])
        self._grow(8)
        return len(self._bodies) - 1

    def fill(self, rule: int, body: Body) -> int:
        self._bodies[rule] = body
        self._grow(sum(_size(alternative) + 1 for alternative in body))
        return rule

    def add(self, body: Body) -> int:
        return self.fill(self.new(), body)

    def text(self, text: str) -> int:
        """Add a rule of plain EBNF; the same text is the same rule."""
        rule = self._texts.get(text)
        if rule is None:
            rule = self._texts[text] = self.add([[text]])
        return rule

    def name_rule(self, text: str) -> str:
        """Add a rule of plain EBNF; return its name, for use in the text of another one."""
        rule = self.text(text)
        self._used_by_name.add(rule)
        return f"n{rule}"

    def recursive(self, name: str, text: str) -> str:
        """Add a rule of plain EBNF that refers to itself as `name`; return its name."""
        self._recursive.setdefault(name, text)
        return name

    def holds(self, machine: Automaton) -> bool:
        """Return whether there is room for a mask of each state."""
        return sum(map(_weight, machine.edges)) <= self._states

    def states(self, machine: Automaton, one: Character, end: Tokens, free: Body | None) -> int | None:
        """Add a rule per state and return the first one; None if there is no room.

        `one` writes a character, `end` follows the text, and `free` is any text with its end. Where there is
        not room for a mask of each state, the first ones take a quarter of it: most texts are short.
        """
        room = self._states if self.holds(machine) else self._states // 4
        ends = [0, *accumulate(map(_weight, machine.edges))]
        masked = bisect_right(ends, room) - 1
        if self._bytes + EDGE_BYTES * sum(map(len, machine.edges[masked:])) > MAX_BYTES * 3 // 4:
            return None
        self._states -= ends[masked]
        rules = [self.new() for _ in machine.edges]
        for state, rule in enumerate(rules):
            body: Body = [end] if machine.accepting[state] else []
            for ranges, to in machine.edges[state]:
                if (text := one(ranges)) is not None:
                    # The library puts a rule of characters in its place, but no rule of another rule.
                    text = text if state < masked else self.name_rule(self.name_rule(text))
                    body.append([text, rules[to]])
            self.fill(rule, free if free is not None and machine.is_free(state) else body)
        return rules[0]

    def spend(self, steps: int = 1) -> None:
        if not self._budget.spend(steps):
            raise InvalidArgument(
                f"{self._what}: takes more than {MAX_STEPS} steps to read; make it simpler", param=self._what
            )

    def _grow(self, size: int) -> None:
        self._bytes += size
        self.spend(size // STEP_BYTES + 1)
        if self._bytes > MAX_BYTES:
            raise TooLarge(
                f"{self._what}: makes more than {MAX_BYTES} bytes of grammar, the limit; make it simpler"
                f" (its largest object has {self.properties} properties)",
                param=self._what,
            )

    def write(self, root: int) -> str | None:
        """Return EBNF whose rule `root` is that rule; None if no text matches it."""
        alive = self._productive()
        if root not in alive:
            return None
        names = {root: "root"} | {rule: f"n{rule}" for rule in self._used_by_name}
        todo, lines = [root, *self._used_by_name], []
        while todo:
            rule = todo.pop()
            alternatives = []
            for alternative in self._bodies[rule]:
                pruned = list(_pruned(alternative, alive))
                if None in pruned:
                    continue
                for ref in _refs(pruned):
                    if ref not in names:
                        names[ref] = f"r{len(names)}"
                        todo.append(ref)
                alternatives.append(_alternative_text(pruned, names) or '""')
            lines.append(f"{names[rule]} ::= {' | '.join(alternatives)}\n")
        lines += [f"{name} ::= {text}\n" for name, text in self._recursive.items()]
        return "".join(lines)

    def missing(self, rule: int) -> Iterator[int]:
        """Yield a rule without texts and, one in the other, those because of which it has none."""
        alive, passed = self._productive(), set[int]()
        while rule not in alive and rule not in passed:
            yield rule
            passed.add(rule)
            last = self._bodies[rule][-1:]  # of a chain of properties, the one without the property
            rule = next((ref for one in last for ref in _refs(one, needed=True) if ref not in alive), rule)

    def _productive(self) -> set[int]:
        """Return the rules that derive a text, in linear time: each alternative is checked with its last
        missing rule."""
        waiting: dict[int, list[list[int]]] = {}  # by missing rule: [how many are missing, rule]
        alive: set[int] = set()
        todo: list[int] = []
        for rule, body in enumerate(self._bodies):
            for alternative in body:
                needed = set(_refs(alternative, needed=True))
                if not needed:
                    todo.append(rule)
                entry = [len(needed), rule]
                for ref in needed:
                    waiting.setdefault(ref, []).append(entry)
        while todo:
            rule = todo.pop()
            if rule in alive:
                continue
            alive.add(rule)
            for entry in waiting.pop(rule, ()):
                entry[0] -= 1
                if not entry[0]:
                    todo.append(entry[1])
        return alive


def _weight(edges: list[tuple[Ranges, int]]) -> int:
    return WIDE_STATES if any(is_wide(ranges) for ranges, _ in edges) else 1


def _size(tokens: Iterable[str | int | Repeat]) -> int:
    size = 0
    for token in tokens:
        if isinstance(token, Repeat):
            size += 5 + _size(token.tokens)
        else:
            size += 6 if isinstance(token, int) else len(token) + 1
    return size


def _refs(tokens: Iterable[str | int | Repeat | None], *, needed: bool = False) -> Iterator[int]:
    """Yield the numbers of the rules that the tokens refer to; with `needed` those of required parts only."""
    for token in tokens:
        if isinstance(token, int):
            yield token
        elif isinstance(token, Repeat) and (token.least or not needed):
            yield from _refs(token.tokens, needed=needed)


def _pruned(tokens: Iterable[str | int | Repeat], alive: set[int]) -> Iterator[str | int | Repeat | None]:
    """Yield the tokens without impossible optional parts; None for an impossible required part."""
    for token in tokens:
        if isinstance(token, int):
            yield token if token in alive else None
        elif isinstance(token, Repeat):
            dead = any(ref not in alive for ref in _refs(token.tokens, needed=True))
            if not dead:
                inner = [part for part in _pruned(token.tokens, alive) if part is not None]
                yield Repeat(inner, token.least, token.most)
            elif token.least:
                yield None
        else:
            yield token


def _alternative_text(tokens: Iterable[str | int | Repeat | None], names: dict[int, str]) -> str:
    parts = []
    for token in tokens:
        if isinstance(token, int):
            parts.append(names[token])
        elif isinstance(token, Repeat):
            parts.append(f"({_alternative_text(token.tokens, names)}){token.suffix}")
        elif token:
            parts.append(token)
    return " ".join(parts)


# The work that the schemas of one request may cause; the caller of the writer sets it.
#
# The event loop has little time for a schema, a body process has all of it. The work of a schema is known
# only by doing it: references multiply, so a small one may be the worst. The loop therefore begins each
# schema, and after some milliseconds gives up and hands it to a body process.


MAX_STEPS = 400_000  # for all schemas of a request; about 0.7 s
LOOP_STEPS = 20_000  # at once in the event loop; about 30 ms


class Costly(Exception):
    """The event loop has no time for this: call the same function in a body process."""


class Budget:
    """The remaining steps, and whether a body process may continue where they end. It is that of the calls
    inside while it is entered; `contextmanager` would cost 2 us more, three times in a request."""

    __slots__ = ("_elsewhere", "_left", "_token")

    def __init__(self, steps: int = MAX_STEPS, *, elsewhere: bool = False) -> None:
        self._left, self._elsewhere = steps, elsewhere

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    def spend(self, steps: int) -> bool:
        """Spend steps; return False when they are used up. Raises Costly if a body process may continue."""
        self._left -= steps
        if self._left < 0 and self._elsewhere:
            raise Costly
        return self._left >= 0


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def budget() -> Budget:
    """Return the budget of the running call; a new full one if none is set."""
    current = _current.get()
    return Budget() if current is None else current


def in_loop() -> Budget:
    """Raise Costly from inside as soon as the schemas take more time than the event loop has."""
    return Budget(LOOP_STEPS, elsewhere=True)

"""Regular expressions as trees: the lengths of their texts, bounds on these, and the tree as EBNF.

A tree without assertions is written as EBNF directly. `automata.py` holds the others, and conjunctions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from ovserve.llm.grammar.text import INLINE_REPETITIONS, LAST_CHARACTER, Ranges, repeated

MAX_COUNT = 100_000  # of a repetition
MAX_WIDTHS = 12  # of a part whose lengths are written one by one
MAX_ALTERNATIVES = 64  # that bounds of a length make
MAX_AT_ONCE = 16  # counts that one text may have reached
MAX_RANGES = 100_000  # of characters within a count, each time anew: 2 s to compile
LEAST_SHARE = 24  # characters that each open repetition keeps when they share a bound
LEAST_COUNT = 12  # the same where all repetitions had a bound
ROUNDS = (3, 12)  # of repetitions of other ones that share a bound


@dataclass(frozen=True, slots=True)
class Chars:
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    options: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    inner: Tree
    least: int
    most: int | None  # None: unlimited


@dataclass(frozen=True, slots=True)
class Edge:
    start: bool


@dataclass(frozen=True, slots=True)
class Look:
    """Look-ahead, or look-behind."""

    inner: Tree
    matches: bool  # False: what stands there must not match
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """The text of a group, which `patterns.py` puts in its place."""

    group: int


Tree = Chars | Sequence | Alternatives | Repeat | Edge | Look | Reference

EMPTY = Sequence(())
NOTHING = Chars(())
ANY = Chars(((0, LAST_CHARACTER),))
FREE = Repeat(ANY, 0, None)


def literal(text: str) -> Tree:
    return Sequence(tuple(Chars(((ord(char), ord(char)),)) for char in text))


def children(tree: Tree) -> tuple[Tree, ...]:
    if isinstance(tree, Sequence):
        return tree.parts
    if isinstance(tree, Alternatives):
        return tree.options
    return (tree.inner,) if isinstance(tree, Repeat | Look) else ()


def map_children(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """Return the tree with each of its children changed."""
    if isinstance(tree, Sequence):
        return Sequence(tuple(map(change, tree.parts)))
    if isinstance(tree, Alternatives):
        return Alternatives(tuple(map(change, tree.options)))
    return replace(tree, inner=change(tree.inner)) if isinstance(tree, Repeat | Look) else tree


def nodes(tree: Tree) -> Iterator[Tree]:
    todo = [tree]
    while todo:
        one = todo.pop()
        yield one
        todo += children(one)


def is_plain(tree: Tree) -> bool:
    """Return whether it has no assertion."""
    return not any(isinstance(one, Edge | Look | Reference) for one in nodes(tree))


def repeats_choice(tree: Tree) -> bool:
    """Return whether it repeats alternatives without a bound, which makes masks of tokens slow."""
    return any(
        isinstance(one, Repeat) and one.most is None and isinstance(one.inner, Alternatives)
        for one in nodes(tree)
    )


def texts(tree: Tree, most: int) -> list[str] | None:
    """Return the texts of a tree; None if they are more than `most`, one is longer, or it has assertions."""
    size = (widths(tree) or (0, None))[1]
    if size is None or size > most or not is_plain(tree):
        return None
    if isinstance(tree, Chars):
        codes = [range(low, high + 1) for low, high in tree.ranges]
        return [chr(code) for some in codes for code in some] if sum(map(len, codes)) <= most else None
    if isinstance(tree, Repeat):
        counts = range(tree.least, (tree.most or 0) + 1) if size else ()
        tree = Alternatives(tuple(Sequence((tree.inner,) * count) for count in counts) or (EMPTY,))
    results = [""] if isinstance(tree, Sequence) else []
    for part in children(tree):
        some = texts(part, most)
        if some is None or len(results) * len(some) > most:
            return None
        both = isinstance(tree, Sequence)
        results = [one + other for one in results for other in some] if both else [*results, *some]
    return list(dict.fromkeys(results))


def anchored(tree: Tree, around: Tree) -> tuple[Tree, bool] | None:
    """Return a plain tree, and whether all of it was anchored; None if there is none.

    Anchors are removed where they begin and end an alternative. Where they do not, `around` stands: FREE in a
    search, EMPTY where the whole must match.
    """
    options = tree.options if isinstance(tree, Alternatives) else (tree,)
    trees: list[Tree] = []
    whole = True
    for option in options:
        parts: list[Tree] = list(option.parts) if isinstance(option, Sequence) else [option]
        first = next((i for i, part in enumerate(parts) if part != Edge(True)), len(parts))
        last = next((i for i in range(len(parts), first, -1) if parts[i - 1] != Edge(False)), first)
        inner = parts[first] if last == first + 1 else Sequence(tuple(parts[first:last]))
        if isinstance(option, Alternatives) and not is_plain(option):  # a group around all
            nested = anchored(option, around)
            if nested is None:
                return None
            trees.append(nested[0])
            whole = whole and nested[1]
            continue
        if not is_plain(inner):
            return None
        begun, ended = first > 0, last < len(parts)
        whole = whole and begun and ended
        trees.append(Sequence((*(() if begun else (around,)), inner, *(() if ended else (around,)))))
    return (trees[0] if len(trees) == 1 else Alternatives(tuple(trees))), whole


# ---- lengths


def widths(tree: Tree) -> tuple[int, int | None] | None:
    """Return the least and the greatest length of its texts; None if it has no text."""
    if isinstance(tree, Chars):
        return (1, 1) if tree.ranges else None
    if isinstance(tree, Sequence):
        sizes = [widths(part) for part in tree.parts]
        if None in sizes:
            return None
        most = [one[1] for one in sizes if one]
        return sum(one[0] for one in sizes if one), None if None in most else sum(m for m in most if m)
    if isinstance(tree, Alternatives):
        some = [one for one in map(widths, tree.options) if one]
        if not some:
            return None
        most = [one[1] for one in some]
        return min(one[0] for one in some), None if None in most else max(m or 0 for m in most)
    if isinstance(tree, Repeat):
        inner = widths(tree.inner)
        if inner is None or tree.most == 0:
            return None if tree.least and tree.most != 0 else (0, 0)
        least, most_inner = inner
        if most_inner == 0:
            return 0, 0
        return least * tree.least, None if None in (most_inner, tree.most) else (most_inner or 0) * (
            tree.most or 0
        )
    return 0, 0


def bounded(tree: Tree, least: int, most: int | None) -> Tree | None:
    """Return a plain tree of its texts that have these lengths; None where that has no simple form."""
    sizes = widths(tree)
    if sizes is None or (most is not None and sizes[0] > most) or (sizes[1] is not None and sizes[1] < least):
        return NOTHING
    if sizes[0] >= least and (most is None or (sizes[1] is not None and sizes[1] <= most)):
        return tree
    if isinstance(tree, Alternatives):
        options = [bounded(option, least, most) for option in tree.options]
        return None if None in options else Alternatives(tuple(one for one in options if one))
    if isinstance(tree, Repeat):
        inner = widths(tree.inner)
        if inner is None or inner[0] != inner[1] or not inner[0]:
            return None
        width = inner[0]
        low = max(tree.least, -(-least // width))
        high = min(
            (one for one in (tree.most, None if most is None else most // width) if one is not None),
            default=None,
        )
        return NOTHING if high is not None and low > high else Repeat(tree.inner, low, high)
    return _bounded_parts(tree.parts, least, most) if isinstance(tree, Sequence) else None


def _bounded_parts(parts: tuple[Tree, ...], least: int, most: int | None) -> Tree | None:
    sizes = [widths(part) or (0, 0) for part in parts]
    open_ = [i for i, (low, high) in enumerate(sizes) if low != high]
    if len(open_) == 1:
        at = open_[0]
        rest = sum(low for i, (low, _) in enumerate(sizes) if i != at)
        inner = bounded(parts[at], max(least - rest, 0), None if most is None else most - rest)
        return None if inner is None else Sequence((*parts[:at], inner, *parts[at + 1 :]))
    for at in open_:  # one with few lengths: each of these with the others
        low, high = sizes[at]
        if high is None or high - low >= MAX_WIDTHS:
            continue
        options: list[Tree] = []
        for width in range(low, high + 1):
            one = bounded(parts[at], width, width)
            if one is None:
                break
            whole = _bounded_parts(
                (*parts[:at], *([] if one == EMPTY else [one]), *parts[at + 1 :]), least, most
            )
            if whole is None:
                return None
            options.append(whole)
        else:
            return Alternatives(tuple(options)) if len(options) <= MAX_ALTERNATIVES else None
    return None


def shared(tree: Tree, most: int) -> Tree | None:
    """Return a tree whose repetitions share a bound of the length; None if little is left for each.

    It leaves out texts of which one part is long although the whole is not. Of repetitions within a
    repetition, these are many short ones or few long ones.
    """
    rounds = [one for one in nodes(tree) if isinstance(one, Repeat) and _repeats(one.inner)]
    open_ = any(isinstance(one, Repeat) and one.most is None for one in nodes(tree) if one not in rounds)
    least = LEAST_SHARE if open_ or rounds else LEAST_COUNT
    options: list[Tree] = []
    for count in ROUNDS if rounds else (most,):
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            sizes = widths(_capped(tree, middle, count))
            if sizes is not None and sizes[1] is not None and sizes[1] <= most:
                low = middle
            else:
                high = middle
        if low < least and not options:
            return None
        options += [_capped(tree, low, count)] if low else []
    return options[0] if len(options) == 1 else Alternatives(tuple(options))


def _repeats(tree: Tree) -> bool:
    return any(isinstance(one, Repeat) and one.most != 1 for one in nodes(tree))


def _capped(tree: Tree, most: int, rounds: int) -> Tree:
    if isinstance(tree, Repeat):
        inner = _capped(tree.inner, most, rounds)
        high = rounds if _repeats(tree.inner) else most
        return Repeat(inner, tree.least, max(tree.least, min(high, tree.most or high)))
    return map_children(tree, partial(_capped, most=most, rounds=rounds))


# ---- cost


def simplified(tree: Tree) -> Tree:
    """Return the tree with repetitions of a repetition as one, where that is the same language."""
    if not isinstance(tree, Repeat):
        return map_children(tree, simplified)
    if tree.most == 0:
        return EMPTY
    inner = simplified(tree.inner)
    while isinstance(inner, Sequence) and len(inner.parts) == 1:
        inner = inner.parts[0]
    if is_plain(inner) and (widths(inner) or (1, 1))[0] == 0:  # of an empty part any number is one
        full = _filled(inner)
        return EMPTY if full is None else simplified(Repeat(full, 0, tree.most))
    if not isinstance(inner, Repeat):
        return Repeat(inner, tree.least, tree.most)
    least, most = inner.least, inner.most
    # k times gives all counts from k * least to k * most: those of k + 1 must begin where these end.
    joins = most is None or least <= 1 or (tree.least and least * (tree.least + 1) <= most * tree.least + 1)
    whole = None if most is None or tree.most is None else most * tree.most
    if not joins or (least > 1 and (not tree.least or most is None)) or (whole or 0) > MAX_COUNT:
        return Repeat(inner, tree.least, tree.most)
    return Repeat(inner.inner, least * tree.least, whole)


def _filled(tree: Tree) -> Tree | None:
    """Return a plain tree without its empty text; None if it has no other."""
    if isinstance(tree, Alternatives):
        options = [one for one in map(_filled, tree.options) if one is not None]
        return Alternatives(tuple(options)) if options else None
    if isinstance(tree, Repeat):
        inner = None if tree.most == 0 else _filled(tree.inner)
        may_be_empty = inner is not tree.inner
        return None if inner is None else Repeat(inner, 1 if may_be_empty else max(tree.least, 1), tree.most)
    if not isinstance(tree, Sequence) or (widths(tree) or (1, 1))[0]:
        return tree
    starts = [(_filled(part), tree.parts[i + 1 :]) for i, part in enumerate(tree.parts)]
    some = [Sequence((first, *rest)) for first, rest in starts if first is not None]
    return Alternatives(tuple(some)) if some else None


def is_costly(tree: Tree, *, is_shared: bool = False) -> bool:
    """Return whether EBNF of a plain tree would take long to compile or to follow.

    A text may be at many counts at once: where a repetition ends in another one of the same characters, or
    precedes it, or where a text of the repeated part is also several of them. Each repetition of a class
    of many ranges has all of them anew. `is_shared`: its counts are those of `shared`.
    """
    for one in nodes(tree):
        if isinstance(one, Sequence) and not is_shared and _counts_at_once(one.parts) > MAX_AT_ONCE:
            return True
        if not isinstance(one, Repeat):
            continue
        count = one.most or one.least
        inner = _inner_counts(one)
        ranges = sum(len(part.ranges) for part in nodes(one.inner) if isinstance(part, Chars))
        at_once = count * inner if inner > 1 else 1 if _is_delimited(one.inner) else one.most or 1
        if count > 1 and (at_once > MAX_AT_ONCE or ranges * min(count, INLINE_REPETITIONS) > MAX_RANGES):
            return True
    return False


def _counts_at_once(parts: tuple[Tree, ...]) -> int:
    """Return how many counts one text may have reached of the repetitions of the same characters."""
    most = product = 1
    for part, following in pairwise(parts):
        if isinstance(part, Repeat) and isinstance(following, Repeat) and _goes_on(part, following):
            product *= part.most or 1
            most = max(most, product)
        else:
            product = 1
    return most


def _goes_on(part: Repeat, following: Repeat) -> bool:
    """Return whether the second repetition may stand for some of the first one."""
    if part.least == part.most or not _overlap(_first(part), _first(following)):
        return False
    inner = part.inner.parts if isinstance(part.inner, Sequence) else (part.inner,)
    needed = [_letters(one) for one in inner if (widths(one) or (0, 0))[0]]
    return all(_overlap(one, _letters(following)) for one in needed)


def _is_delimited(tree: Tree) -> bool:
    """Return whether a text shows how often the tree was repeated: all its texts have one length, or a part
    whose characters are nowhere else in them."""
    low, high = widths(tree) or (1, 1)
    if low == high:
        return True
    parts = [part for part in tree.parts if part != EMPTY] if isinstance(tree, Sequence) else []
    for i, part in enumerate(parts):
        others = [*parts[:i], *parts[i + 1 :]]
        least = (widths(part) or (0, 0))[0]
        ends = isinstance(part, Chars) or (least and low > least)  # a run of them, between others
        if ends and not _overlap(_letters(part), set().union(*map(_letters, others))):
            return True
    return False


def _letters(tree: Tree) -> set[tuple[int, int]]:
    return {one for part in nodes(tree) if isinstance(part, Chars) for one in part.ranges}


def positions(tree: Tree) -> int:
    """Return how many characters it has with all repetitions written out."""
    if isinstance(tree, Chars):
        return 1
    inner = sum(map(positions, children(tree)))
    return inner * max(tree.most or tree.least, 1) if isinstance(tree, Repeat) else inner


def _inner_counts(tree: Repeat) -> int:
    """Return how many counts one text may have reached of the repetitions in which its inner tree ends."""
    starts = _first(tree.inner)
    return max(
        (
            max(last.most or INLINE_REPETITIONS, 1) * _inner_counts(last)
            for last in _last_repeats(tree.inner)
            if _overlap(starts, _first(last.inner))
        ),
        default=1,
    )


def _last_repeats(tree: Tree) -> Iterator[Repeat]:
    """Yield the repetitions in which it may end, and which may go on there."""
    todo = [tree]
    while todo:
        one = todo.pop()
        if isinstance(one, Alternatives):
            todo += one.options
        elif isinstance(one, Sequence):
            for part in reversed(one.parts):
                todo.append(part)
                if (widths(part) or (1, 1))[0]:
                    break
        elif isinstance(one, Repeat):
            if one.least != one.most:
                yield one
            todo.append(one.inner)


def _first(tree: Tree) -> set[tuple[int, int]]:
    """Return the ranges of its first characters."""
    ranges: set[tuple[int, int]] = set()
    todo = [tree]
    while todo:
        one = todo.pop()
        if isinstance(one, Chars):
            ranges.update(one.ranges)
        elif isinstance(one, Sequence):
            for part in one.parts:
                todo.append(part)
                if (widths(part) or (1, 1))[0]:
                    break
        else:
            todo += children(one)
    return ranges


def _overlap(some: set[tuple[int, int]], others: set[tuple[int, int]]) -> bool:
    return any(low <= end and start <= high for low, high in some for start, end in others)


# ---- EBNF


def to_ebnf(tree: Tree, one: Callable[[Ranges], str | None], name_rule: Callable[[str], str]) -> str | None:
    """Return EBNF of a plain tree; None if it has no text, "" for the empty text.

    `one` writes a character, `name_rule` gives a rule of that text a name.
    """
    if isinstance(tree, Chars):
        return one(list(tree.ranges))
    if isinstance(tree, Sequence):
        parts = [_element(part, one, name_rule) for part in tree.parts]
        return None if None in parts else " ".join(part for part in parts if part)
    if isinstance(tree, Alternatives):
        options = dict.fromkeys(to_ebnf(option, one, name_rule) for option in tree.options)
        some = [option or '""' for option in options if option is not None]
        return None if not some else "" if some == ['""'] else " | ".join(some)
    assert isinstance(tree, Repeat), "the others are assertions"
    return _repeat(tree, one, name_rule)


def _element(tree: Tree, one: Callable[[Ranges], str | None], name_rule: Callable[[str], str]) -> str | None:
    """Return it in parentheses where it is more than one element."""
    text = to_ebnf(tree, one, name_rule)
    return f"({text})" if text and isinstance(tree, Sequence | Alternatives) and " " in text else text


def _repeat(tree: Repeat, one: Callable[[Ranges], str | None], name_rule: Callable[[str], str]) -> str | None:
    inner = tree.inner
    text = _element(inner, one, name_rule)
    if text is None or not text or tree.most == 0:
        return None if text is None and tree.least and tree.most != 0 else ""
    is_choice = isinstance(inner, Chars) and text.startswith("(")
    unit = name_rule(text) if is_choice else text
    if text[-1] in "*+?}":
        unit = text = f"({text})"
    if tree.most is not None:
        return repeated(unit, tree.least, tree.most, name_rule, is_choice=is_choice)
    if tree.least < 2:
        return text + "*+"[tree.least]
    return f"{repeated(unit, tree.least, tree.least, name_rule, is_choice=is_choice)} {text}*"

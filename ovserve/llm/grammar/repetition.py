"""Bounded repetition as EBNF that the library compiles in constant time.

Written directly, `x{0,1000}` of one character makes a thousand states, each with a mask of all tokens: 14
s of CPU time to compile, and 0.6 s for a token. Here a count is a number in base BLOCK: a block repeats the
one below it, so a bound of any size needs few rules, and rules of one character share theirs. Measured with a
vocabulary of 49,152: 0.5 s and 8 ms, for 1,000 and for 1,000,000.

The library expands braces around a choice anew for each token, which takes 40 ms. A character that may be
escaped is therefore counted by a chain of rules.
"""

from __future__ import annotations

from collections.abc import Callable

BLOCK_REPETITIONS = 32
INLINE_REPETITIONS = 64  # repetitions that are written as they stand: such a token takes 2 ms
Named = Callable[[str], str]
Count = Callable[[str, int, int, Named], str]


def repeated(unit: str, least: int, most: int, name_rule: Named, *, is_choice: bool = False) -> str:
    """Return EBNF of `unit`, `least` to `most` times; `name_rule` names a rule of a given text.

    The unit is one element, or with `is_choice` alternatives that are a character each."""
    counted = _chained if is_choice else _braced
    if most <= INLINE_REPETITIONS:
        return counted(unit, least, most, name_rule)
    name = unit if is_choice else name_rule(unit)
    parts = _exactly(name, least, name_rule, counted), _at_most(name, most - least, name_rule, counted)
    return " ".join(part for part in parts if part)


def _exactly(unit: str, count: int, name_rule: Named, counted: Count) -> str:
    parts = []
    while count:
        count, rest = divmod(count, BLOCK_REPETITIONS)
        if rest:
            parts.append(counted(unit, rest, rest, name_rule))
        unit = name_rule(counted(unit, BLOCK_REPETITIONS, BLOCK_REPETITIONS, name_rule)) if count else unit
        counted = _braced
    return " ".join(reversed(parts))


def _at_most(unit: str, count: int, name_rule: Named, counted: Count) -> str:
    """Return whole blocks first. After fewer than the maximal number, anything shorter than a block may
    follow."""
    if count < BLOCK_REPETITIONS:
        return counted(unit, 0, count, name_rule) if count else ""
    units = [unit]  # of each size, and what is shorter than its block
    shorter = [counted(unit, 0, BLOCK_REPETITIONS - 1, name_rule)]
    while BLOCK_REPETITIONS ** len(units) <= count:
        block = (counted if len(units) == 1 else _braced)(
            units[-1], BLOCK_REPETITIONS, BLOCK_REPETITIONS, name_rule
        )
        units.append(name_rule(block))
        shorter.append(f"{units[-1]}{_counts(0, BLOCK_REPETITIONS - 1)} {name_rule(shorter[-1])}")
    text = counted(unit, 0, count % BLOCK_REPETITIONS, name_rule) if count % BLOCK_REPETITIONS else ""
    for size, block in enumerate(units[1:], 1):
        digit = count // BLOCK_REPETITIONS**size % BLOCK_REPETITIONS
        if not digit:
            continue
        fewer = f"{block}{_counts(0, digit - 1)} " if digit > 1 else ""
        whole = f"{block}{_counts(digit, digit)} {text}".rstrip()
        text = f"({fewer}{name_rule(shorter[size - 1])} | {whole})"
    return text


def _braced(unit: str, least: int, most: int, _: Named) -> str:
    return unit + _counts(least, most)


def _chained(unit: str, least: int, most: int, name_rule: Named) -> str:
    if most == 1:
        return f"({unit}){_counts(least, most)}"
    options = unit.split(" | ")
    text = ""
    for i in reversed(range(most)):
        following = " | ".join(f"{option} {text}".rstrip() for option in options)
        text = name_rule(following if i < least else f'"" | {following}')
    return text


def _counts(least: int, most: int) -> str:
    if least == most:
        return "" if most == 1 else f"{{{most}}}"
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"

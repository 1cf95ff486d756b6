"""Bounded repetition as EBNF that the library compiles in constant time.

Written directly, `x{0,1000}` of one character makes a thousand states, each with a mask of all tokens: 14
s of CPU time to compile, and 0.6 s for a token. Here a count is a number in base BLOCK: a block repeats the
one below it, so a bound of any size needs few rules, and rules of one character share theirs. Measured with a
vocabulary of 49,152: 0.4 s and 17 ms, for 1,000 and for 1,000,000.
"""

from __future__ import annotations

from collections.abc import Callable

BLOCK = 32
INLINE = 64  # repetitions that are written as they stand: such a token takes 2 ms


def repeated(unit: str, least: int, most: int, named: Callable[[str], str]) -> str:
    """Return EBNF of `unit` (one element), `least` to `most` times; `named` names a rule of a given text."""
    if most <= INLINE:
        return unit + _counts(least, most)
    name = named(unit)
    return " ".join(
        part for part in (_exactly(name, least, named), _at_most(name, most - least, named)) if part
    )


def _exactly(unit: str, count: int, named: Callable[[str], str]) -> str:
    parts = []
    while count:
        count, rest = divmod(count, BLOCK)
        if rest:
            parts.append(unit + _counts(rest, rest))
        unit = named(f"{unit}{{{BLOCK}}}") if count else unit
    return " ".join(reversed(parts))


def _at_most(unit: str, count: int, named: Callable[[str], str]) -> str:
    """Return whole blocks first. After fewer than the maximal number, anything shorter than a block may
    follow."""
    if count < BLOCK:
        return unit + _counts(0, count) if count else ""
    units, shorter = [unit], [unit + _counts(0, BLOCK - 1)]  # of each size; what is shorter than its block
    while BLOCK ** len(units) <= count:
        units.append(named(f"{units[-1]}{{{BLOCK}}}"))
        shorter.append(f"{units[-1]}{_counts(0, BLOCK - 1)} {named(shorter[-1])}")
    text = ""
    for size, block in enumerate(units):
        digit = count // BLOCK**size % BLOCK
        if not size:
            text = block + _counts(0, digit) if digit else ""
        elif digit:
            fewer = f"{block}{_counts(0, digit - 1)} " if digit > 1 else ""
            whole = f"{block}{_counts(digit, digit)} {text}".rstrip()
            text = f"({fewer}{named(shorter[size - 1])} | {whole})"
    return text


def _counts(least: int, most: int) -> str:
    if least == most:
        return "" if most == 1 else f"{{{most}}}"
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"

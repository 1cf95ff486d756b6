"""Numbers within bounds, and multiples, as EBNF; exact in decimal digits.

A decimal is read as an integer scaled by a power of ten, and a digit automaton follows both bounds and the
remainder. Clients compare in binary floating point, so an exclusive bound becomes the next double inwards:
rounding is monotonic, hence no text is rounded onto the bound. Exponents are not written within bounds.
"""

from __future__ import annotations

import math
import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

from ovserve.llm.grammar.rules import Rules

MAX_DIGITS = 40  # before or after the point, for a number with bounds
MIN_PLACES = 6  # also for numbers with distant bounds
SIGNIFICANT_DIGITS = 15  # decimal digits that survive a double
MAX_STATES = 2000  # of the automaton for multiples
_GREATEST = Decimal(sys.float_info.max)
_WIDE = Context(prec=2000)

NUMBER = '"-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9] [0-9]?)?'
MAX_WHOLE = 10**9 - 1  # of a number that no reader rounds to an integer, with PLACES
PLACES = '"." [0-9]{0,5} [1-9]'
INTEGER = '"0" | "-"? [1-9] [0-9]*'

STATE_STEPS = 8  # steps that a state of the automaton takes


class Inexpressible(Exception):
    """No text of at most MAX_DIGITS digits lies within the bounds, or there are too many multiples."""


class Range:
    """The intersection of bounds, and a common multiple."""

    def __init__(self) -> None:
        self.low: Decimal | None = None
        self.high: Decimal | None = None
        self.multiple: Decimal | None = None
        self._magnitude = Decimal(0)
        self._places = 0

    @property
    def free(self) -> bool:
        return self.low is None and self.high is None and self.multiple is None

    def at_least(self, bound: float, *, exclusive: bool = False) -> None:
        inner = self._inward(bound, math.inf) if exclusive else self._exact(bound)
        self.low = inner if self.low is None else max(self.low, inner)

    def at_most(self, bound: float, *, exclusive: bool = False) -> None:
        inner = self._inward(bound, -math.inf) if exclusive else self._exact(bound)
        self.high = inner if self.high is None else min(self.high, inner)

    def multiple_of(self, multiple: float) -> None:
        step = _decimal(multiple)
        if self.multiple is not None:
            scale = Decimal(1).scaleb(max(_places(step), _places(self.multiple)), _WIDE)
            step = Decimal(math.lcm(int(step * scale), int(self.multiple * scale))) / scale
        self.multiple = step

    def _exact(self, bound: float) -> Decimal:
        exact = _decimal(bound)
        self._magnitude = max(self._magnitude, abs(exact))
        self._places = max(self._places, _places(exact))
        return exact

    def _inward(self, bound: float, towards: float) -> Decimal:
        exact = _decimal(bound)
        self._magnitude = max(self._magnitude, abs(exact))
        inner = Decimal(math.nextafter(float(exact), towards))
        if not inner.is_finite():
            raise Inexpressible
        return inner

    def places(self, integer: bool) -> int:
        """Return the maximal number of digits after the point."""
        if integer:
            return 0
        if self.multiple is not None:
            return _places(self.multiple)
        exponent = self._magnitude.adjusted() if self._magnitude else 0
        return min(max(SIGNIFICANT_DIGITS - 1 - exponent, self._places, MIN_PLACES), MAX_DIGITS)


def expression(range_: Range, *, integer: bool, home: Rules) -> str | None:
    """Return EBNF of the numbers in the range; None if there are none. Raises Inexpressible."""
    if range_.free:
        return INTEGER if integer else NUMBER
    places = range_.places(integer)
    low, high = _scaled(range_.low, places, ROUND_CEILING), _scaled(range_.high, places, ROUND_FLOOR)
    modulus = _modulus(range_, places)
    if places > MAX_DIGITS or modulus is None:
        raise Inexpressible
    low, high = _within_digits(range_, low, high, places)
    if low is not None and high is not None and low > high:
        if not integer and range_.low is not None and range_.high is not None and range_.low <= range_.high:
            raise Inexpressible
        return None
    options: list[str] = []
    if high is None or high >= 0:
        options += _magnitudes(max(low or 0, 0), high, places, modulus, home)
    if low is None or low < 0:
        least, most = max(1, -high if high is not None else 1), None if low is None else -low
        negative = _magnitudes(least, most, places, modulus, home)
        options += [f'"-" ({" | ".join(negative)})'] if negative else []
    return " | ".join(options) or None


def fraction(range_: Range, home: Rules) -> str | None:
    """Return EBNF of numbers in the range that are not integers, between whole ones in it; None if there are
    none. Raises Inexpressible."""
    if range_.multiple is not None:
        raise Inexpressible
    low = -MAX_WHOLE if range_.low is None else max(math.ceil(range_.low), -MAX_WHOLE)
    high = MAX_WHOLE if range_.high is None else min(math.floor(range_.high), MAX_WHOLE)
    options: list[str] = []
    for sign, least, most in (("", max(low, 0), high - 1), ('"-" ', max(-high, 0), -low - 1)):
        if least <= most:
            options.append(f"{sign}({' | '.join(_magnitudes(least, most, 0, 1, home))}) {PLACES}")
    return " | ".join(options) or None


def _modulus(range_: Range, places: int) -> int | None:
    if range_.multiple is None:
        return 1
    scaled = range_.multiple.scaleb(places, _WIDE)
    if scaled != scaled.to_integral_value():  # an integer that is a multiple of a fraction
        scaled = Decimal(range_.multiple.as_integer_ratio()[0])
    return int(scaled) if 0 < scaled <= MAX_STATES else None


def _scaled(bound: Decimal | None, places: int, rounding: str) -> int | None:
    if bound is None:
        return None
    return int(bound.scaleb(places, _WIDE).to_integral_value(rounding))


def _within_digits(
    range_: Range, low: int | None, high: int | None, places: int
) -> tuple[int | None, int | None]:
    """Move distant bounds inwards; a range that lies entirely outside is inexpressible."""
    # A remainder is correct for clients that read doubles only while these are exact.
    limit = 10 ** (MAX_DIGITS + places if range_.multiple is None else SIGNIFICANT_DIGITS) - 1
    if (low is not None and low > limit) or (high is not None and high < -limit):
        raise Inexpressible
    return (None if low is None else max(low, -limit)), (None if high is None else min(high, limit))


def _magnitudes(low: int, high: int | None, places: int, modulus: int, home: Rules) -> list[str]:
    """Return alternatives for the unsigned texts of low to high, both scaled by `places`."""
    shortest = max(len(str(low)) - places, 1)
    if high is None and modulus > 1:  # an unbounded range would need rules that refer to each other
        digits = max(shortest + 1, min(SIGNIFICANT_DIGITS - places, MAX_STATES // (2 * modulus)))
        high = 10 ** min(places + digits, SIGNIFICANT_DIGITS) - 1
    if high is not None and low > high:
        return []
    longest = max(len(str(high)) - places, 1) if high is not None else shortest + 1
    options = []
    cache: dict[tuple[int, int], str | None] = {}
    for length in range(shortest, longest + 1):
        tight_low, tight_high = length == shortest, length == longest and high is not None
        if modulus == 1 and not tight_low and not tight_high:
            continue  # below, all at once
        width = length + places
        most = str(high).zfill(width) if tight_high else "9" * width
        automaton = _Digits(str(low).zfill(width), most, length, modulus, home, cache)
        if (text := automaton.start(tight_low, tight_high)) is not None:
            options.append(text)
    if modulus == 1 and high is None:
        options.append(f"[1-9] [0-9]{{{shortest},}}{_fraction(places)}")
    elif modulus == 1 and longest - shortest > 1:
        options.append(f"[1-9] [0-9]{{{shortest},{longest - 2}}}{_fraction(places)}")
    return options


def _fraction(places: int) -> str:
    return f' ("." [0-9]{{1,{places}}})?' if places else ""


class _Digits:
    """An automaton for numbers with `length` digits before the point, between two texts of the same
    length."""

    def __init__(
        self,
        low: str,
        high: str,
        length: int,
        modulus: int,
        home: Rules,
        cache: dict[tuple[int, int], str | None],
    ) -> None:
        self._low, self._high, self._length, self._places = low, high, length, len(low) - length
        self._modulus, self._home = modulus, home
        # A reader takes a long number with a fraction as a double, which may be on the other side of a bound.
        self._fraction = _fraction(self._places) if length <= SIGNIFICANT_DIGITS else ""
        self._known = cache  # continuation by (digits left, remainder), once no bound matters

    def start(self, tight_low: bool, tight_high: bool) -> str | None:
        return self._digit(0, tight_low, tight_high, 0)

    def _from(self, at: int, tight_low: bool, tight_high: bool, rest: int) -> str | None:
        """Return what may follow `at` digits; "" for nothing, None if no number continues so."""
        if tight_low or tight_high:
            self._home.spend(1)
            return self._state(at, tight_low, tight_high, rest)
        if self._modulus == 1:
            return self._anything(at)
        key = len(self._low) - at, rest
        if key not in self._known:
            if len(self._known) > MAX_STATES:
                raise Inexpressible
            self._home.spend(STATE_STEPS)
            self._known[key] = None
            text = self._state(at, False, False, rest)
            self._known[key] = self._home.name_rule(text) if text is not None and len(text) > 12 else text
        return self._known[key]

    def _anything(self, at: int) -> str:
        digits_left = len(self._low) - at
        if at > self._length:
            return f"[0-9]{{0,{digits_left}}}" if digits_left else ""
        return (f"[0-9]{{{self._length - at}}}" if at < self._length else "") + self._fraction

    def _state(self, at: int, tight_low: bool, tight_high: bool, rest: int) -> str | None:
        if at < self._length:
            return self._digit(at, tight_low, tight_high, rest)
        digits_left = len(self._low) - at
        above = not tight_low or not self._low[at:].strip("0")
        complete = above and rest * 10**digits_left % self._modulus == 0
        more = self._digit(at, tight_low, tight_high, rest) if digits_left and self._fraction else None
        if more is None:
            return "" if complete else None
        more = f'"." {more}' if at == self._length else more
        return f"({more})?" if complete else more

    def _digit(self, at: int, tight_low: bool, tight_high: bool, rest: int) -> str | None:
        """Return one digit and its continuation, in parentheses if there is a choice."""
        first = int(self._low[at]) if tight_low else 0
        last = int(self._high[at]) if tight_high else 9
        if at == 0 and self._length > 1:
            first = max(first, 1)
        by_rest: dict[str, str] = {}
        for digit in range(first, last + 1):
            follows = self._from(
                at + 1,
                tight_low and digit == int(self._low[at]),
                tight_high and digit == int(self._high[at]),
                (rest * 10 + digit) % self._modulus,
            )
            if follows is not None:
                by_rest[follows] = by_rest.get(follows, "") + str(digit)
        options = [f"[{digits}] {follows}".strip() for follows, digits in by_rest.items()]
        return None if not options else options[0] if len(options) == 1 else f"({' | '.join(options)})"


def _decimal(value: float) -> Decimal:
    # What lies beyond the doubles is beyond MAX_DIGITS as well, so that the greatest double bounds as much.
    return max(-_GREATEST, min(Decimal(repr(value)), _GREATEST))


def _places(value: Decimal) -> int:
    exponent = value.normalize(_WIDE).as_tuple().exponent
    return max(-exponent, 0) if isinstance(exponent, int) else 0

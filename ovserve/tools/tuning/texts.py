"""The first difference between the greedy answers of two engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SHOWN = 24  # characters of each answer after the first difference


@dataclass(frozen=True)
class Difference:
    """The difference of answers: `answers` of `compared` do. The rest describes the first one that differs:
    the number of equal characters, and how each continues.
    """

    answers: int
    compared: int
    position: int
    was: str
    now: str

    def __str__(self) -> str:
        return (
            f"{self.answers} of {self.compared} answers differ, first at character {self.position}: "
            f"{self.was!r} became {self.now!r}"
        )


def difference(was: Sequence[str], now: Sequence[str]) -> Difference | None:
    """Compare the answers; None if all are the same."""
    parted = [(_common(a, b), a, b) for a, b in zip(was, now, strict=True) if a != b]
    if not parted:
        return None
    at, a, b = min(parted)
    return Difference(len(parted), len(was), at, a[at : at + _SHOWN], b[at : at + _SHOWN])


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

"""Where the greedy answers of two engines part; used by `search.py` and `report.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SHOWN = 24  # characters of each answer behind the first difference


@dataclass(frozen=True)
class Difference:
    """`answers` of `compared` differ; the rest is about the one that differs first: how many characters are
    the same, and how each goes on."""

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
    """None: all answers are the same."""
    parted = [(_common(a, b), a, b) for a, b in zip(was, now, strict=True) if a != b]
    if not parted:
        return None
    at, a, b = min(parted)
    return Difference(len(parted), len(was), at, a[at : at + _SHOWN], b[at : at + _SHOWN])


def _common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

"""Count the tokens drafted for a request, and the accepted ones.

The library reports how many tokens a step gave, not how many it tried. Kept ones are all but the last of a
step, which the model itself chose. What a draft model tried follows from the settings. What prompt
lookup tried is found by repeating its search on packed ids, where finding is a C call of microseconds.
tests/engine/test_assisted.py compares both with the tokens of the real engine.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable
from typing import Protocol

from ovserve.llm.decoding import Mode
from ovserve.llm.request import Sampling

_WIDTH = array("i").itemsize


class DraftCounter(Protocol):
    def read(self, ids: list[int], kept: int) -> tuple[int, int]:
        """Count a step whose first `kept` ids belong to the answer; return drafted and accepted tokens."""


class SpeculativeStats:
    """Counts for a draft model: every step drafts the configured number, less when few are left to generate.

    With a confidence threshold the library does not report the number; nothing is counted as drafted then.
    """

    def __init__(self, sampling: Sampling, max_tokens: int) -> None:
        self.tokens = sampling.num_assistant_tokens or 0
        self._left = max_tokens or sys.maxsize
        self._begun = False

    def read(self, ids: list[int], kept: int) -> tuple[int, int]:
        """Count a step whose first `kept` ids belong to the answer; return drafted and accepted tokens."""
        drafted = accepted = 0
        if self._begun:  # the first token comes from the prompt alone
            drafted = self._proposed(max(0, min(self.tokens, self._left - 1)))
            accepted = max(0, kept - 1)
        self._begun = True
        self._left -= len(ids)
        return drafted, accepted

    def interrupted(self) -> None:
        """The next token comes from a prompt again, to which the answer so far belongs."""
        self._begun = False

    def _proposed(self, room: int) -> int:
        return room


class LookupDrafts(SpeculativeStats):
    """Counts for prompt lookup, which proposes what followed the last tokens where they first occur.

    It searches prompt and answer, for the longest run first.
    """

    def __init__(self, sampling: Sampling, max_tokens: int, prompt: Iterable[int]) -> None:
        super().__init__(sampling, max_tokens)
        self._ids = bytearray(array("i", prompt).tobytes())
        self._max_ngram = sampling.max_ngram_size

    def read(self, ids: list[int], kept: int) -> tuple[int, int]:
        counted = super().read(ids, kept)
        self._ids += array("i", ids).tobytes()
        return counted

    def _proposed(self, room: int) -> int:
        length = len(self._ids) // _WIDTH
        longest = self._max_ngram if self._max_ngram < length else length // 2
        for size in range(longest, 0, -1):
            end = self._first(size) + size
            if end < length:
                return min(length - end, room)
        return 0

    def _first(self, size: int) -> int:
        """Return the first position of the last `size` ids; at the latest their own."""
        tail = bytes(self._ids[-size * _WIDTH :])
        at = self._ids.find(tail)
        while at % _WIDTH:  # a match across two ids
            at = self._ids.find(tail, at + 1)
        return at // _WIDTH


def drafts(
    mode: Mode, sampling: Sampling, max_tokens: int, prompt: Callable[[], list[int]]
) -> SpeculativeStats | None:
    """Return the count of a new request; None where nothing is drafted. `prompt`: its ids."""
    if mode == "plain":
        return None
    if mode != "prompt_lookup":
        return SpeculativeStats(sampling, max_tokens)
    return LookupDrafts(sampling, max_tokens, prompt())

"""How many tokens were drafted for a request, and how many of them kept.

The library tells how many tokens a step gave, not how many it tried. Kept ones are all but the last of a
step, which the model itself chose. What was tried by a draft model follows from the settings; what prompt
lookup tried is found by the same search once more, on packed ids, where finding is a C call of microseconds.
tests/engine/test_assisted.py holds both against the tokens the real engine gives.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable

from ovserve.llm.decoding import Mode
from ovserve.llm.request import Sampling

_WIDTH = array("i").itemsize


class SpeculativeStats:
    """Of a draft model: every step drafts as many tokens as asked, less when few are left to generate.

    With a confidence threshold the library does not tell; nothing is counted as drafted then.
    """

    def __init__(self, sampling: Sampling, max_tokens: int) -> None:
        self.tokens = sampling.num_assistant_tokens
        self._left = max_tokens or sys.maxsize
        self._begun = False

    def read(self, ids: list[int], kept: int) -> tuple[int, int]:
        """A step gave these ids, and the first `kept` of them belong to the answer: drafted, accepted."""
        drafted = accepted = 0
        if self._begun:  # the first token comes of the prompt alone
            drafted = self._proposed(max(0, min(self.tokens, self._left - 1)))
            accepted = max(0, kept - 1)
        self._begun = True
        self._left -= len(ids)
        return drafted, accepted

    def _proposed(self, room: int) -> int:
        return room


class LookupDrafts(SpeculativeStats):
    """Of prompt lookup: what followed the first place in prompt and answer where the last tokens occur, the
    longest run of them first."""

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
        """The first place of the last `size` ids; at the latest their own."""
        tail = bytes(self._ids[-size * _WIDTH :])
        at = self._ids.find(tail)
        while at % _WIDTH:  # bytes of two neighbours
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

"""DRY ("don't repeat yourself"): a penalty for tokens that would go on with a repetition, by its length.

For each place of the window, `matches` has how many tokens before it, with itself, are also the last ones of
the text. With a new token these numbers move one place on, or become 0. So a token costs one pass over the
window, however long the repetitions are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from ovserve.kinds.text.worker.paged.masks import Logits
from ovserve.llm.request import Dry

MAX_PENALTY = 1e4  # as good as a ban, and more than what a grammar forbids
# Tokens at the end of a prompt in which repetitions are looked for at first: more would cost up to the square
# of its length. A repetition of so many tokens has MAX_PENALTY with any base above 1.02.
MAX_PROMPT_MATCH = 512


class DryPenalty:
    """The repetitions of one request's text."""

    def __init__(self, dry: Dry, prompt: Iterable[int], bytes_of: Callable[[int], bytes]) -> None:
        """`bytes_of`: the text of a token."""
        self._dry, self._bytes_of = dry, bytes_of
        self._breakers = tuple(text.encode() for text in dry.sequence_breakers)
        self._longest = max(map(len, self._breakers), default=0)
        self._breaking: dict[int, bool] = {}  # tokens that have a breaker
        self._tail = b""  # the end of the text, as long as a breaker at most
        self._unbroken = 0  # tokens after the last breaker: a match is no longer than these
        ids = np.fromiter(prompt, np.int64)
        if dry.penalty_last_n >= 0:
            ids = ids[max(len(ids) - dry.penalty_last_n, 0) :]
        for token in ids[-MAX_PROMPT_MATCH:].tolist():
            self._note_breaker(token)
        self._size = len(ids)
        self._ids = np.zeros(2 * len(ids) + 64, np.int64)
        self._ids[: len(ids)] = ids
        self._matches = np.zeros_like(self._ids)
        for end in range(len(ids) - self._unbroken, len(ids)):
            self._match(end)

    def append(self, token: int) -> None:
        if self._size == len(self._ids):
            self._ids = np.append(self._ids, np.zeros_like(self._ids))
            self._matches = np.append(self._matches, np.zeros_like(self._matches))
        self._ids[self._size] = token
        self._match(self._size)
        self._size += 1
        self._note_breaker(token)

    def change(self, row: Logits) -> None:
        dry, start, last = self._dry, self._start(self._size), self._size - 1
        if last - start < dry.allowed_length:
            return
        lengths = np.minimum(self._matches[start:last], np.arange(1, last - start + 1))
        np.minimum(lengths, self._unbroken, out=lengths)
        places = np.flatnonzero(lengths >= dry.allowed_length)
        # A loop over the places took 3 ms for a prompt of 8,000 equal tokens, for each of 64 choices.
        tokens, token_of_place = np.unique(self._ids[places + start + 1], return_inverse=True)
        longest = np.zeros(len(tokens), np.int64)
        np.maximum.at(longest, token_of_place, lengths[places])
        for token, length in zip(tokens.tolist(), longest.tolist(), strict=True):
            if not self._breaks(token):
                row[token] -= self._penalty(length - dry.allowed_length)

    def _start(self, end: int) -> int:
        last_n = self._dry.penalty_last_n
        return 0 if last_n < 0 else max(end - last_n, 0)

    def _match(self, end: int) -> None:
        """Move on to the text whose last token is at `end`."""
        start = self._start(end + 1)
        same = self._ids[start:end] == self._ids[end]
        before = self._matches[max(start - 1, 0) : end - 1] if end else self._matches[:0]
        moved = same.astype(np.int64)
        moved[len(moved) - len(before) :] += before
        self._matches[start:end] = np.where(same, moved, 0)

    def _penalty(self, excess: int) -> float:
        base, multiplier = self._dry.base, self._dry.multiplier
        if base > 1 and excess * math.log(base) > math.log(MAX_PENALTY / multiplier):
            return MAX_PENALTY
        return min(multiplier * base**excess, MAX_PENALTY)

    def _note_breaker(self, token: int) -> None:
        self._unbroken += 1
        if not self._breakers:
            return
        text = self._tail + self._bytes_of(token)
        if any(breaker in text for breaker in self._breakers):
            self._unbroken, text = 0, b""
        self._tail = text[len(text) - min(len(text), self._longest - 1) :]

    def _breaks(self, token: int) -> bool:
        if token not in self._breaking:
            text = self._bytes_of(token)
            self._breaking[token] = any(breaker in text for breaker in self._breakers)
        return self._breaking[token]

"""Detects that an answer only repeats itself, so that it ends before the context does.

Small models fall into loops, such as "Hello!" until the context is full. An answer is *repetitive* when its
last WINDOW_TOKENS tokens repeat one pattern of up to MAX_PATTERN tokens exactly. The longest such stretch in
5,000 files of code, data and manuals, 8.2 million tokens, has 125. vLLM has the same rule with numbers per
request: `repetition_detection` of https://docs.vllm.ai/en/latest/api/vllm/sampling_params/, read 2026-11-26.
"""

from __future__ import annotations

from collections.abc import Sequence

WINDOW_TOKENS = 256
MAX_PATTERN = 64
CHECK_INTERVAL = 32  # tokens from one check to the next, which takes a few microseconds


class RepetitionDetector:
    """Checks after every CHECK_INTERVAL tokens from the first on. So the end of an answer does not depend on
    how many come at a time."""

    __slots__ = ("_next", "_tail")

    def __init__(self) -> None:
        self._tail: list[int] = []
        self._next = WINDOW_TOKENS  # length of the tail at the next check

    def find(self, ids: Sequence[int]) -> int | None:
        """Return how many of the next ids there are until the answer is repetitive; None: it is not."""
        tail = self._tail
        before = len(tail)
        tail += ids
        while self._next <= len(tail):
            if is_repetitive(tail, self._next):
                return self._next - before
            self._next += CHECK_INTERVAL
        if len(tail) > 4 * WINDOW_TOKENS:
            excess = self._next - WINDOW_TOKENS
            del tail[:excess]
            self._next -= excess
        return None


def is_repetitive(ids: Sequence[int], end: int) -> bool:
    """Return whether the WINDOW_TOKENS ids before `end` repeat one pattern."""
    last, start = ids[end - 1], end - WINDOW_TOKENS
    return any(
        ids[end - 1 - size] == last
        and ids[end - CHECK_INTERVAL : end] == ids[end - CHECK_INTERVAL - size : end - size]
        and ids[start + size : end] == ids[start : end - size]
        for size in range(1, MAX_PATTERN + 1)
    )

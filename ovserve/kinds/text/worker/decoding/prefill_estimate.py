"""PrefillEstimate: how much of a prompt is still to be computed, where the library does not report it."""

from __future__ import annotations

import time
from collections.abc import Callable

EWMA_WEIGHT = (
    0.5  # weight of what is known when the next prompt ends: prompts of other lengths fade after a few
)
MAX_PREFILL_SHARE = 0.97  # part of a prompt that counts as computed before its first token has come


class PrefillEstimate:
    """An estimate for an engine that computes one prompt at a time, in one call.

    The speed is that of the prompts before, of which long ones weigh more; the first prompt has no estimate.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = 0.0  # of prompts that ended
        self._seconds = 0.0  # and how long they took
        self._prompt = 0  # tokens of the one that is being computed, or 0
        self._began = 0.0

    def begin(self, prompt_tokens: int) -> None:
        self._prompt, self._began = prompt_tokens, self._clock()

    def end(self) -> None:
        """Record that the first token has come; no effect after that."""
        if self._prompt:
            self._tokens = self._tokens * EWMA_WEIGHT + self._prompt
            self._seconds = self._seconds * EWMA_WEIGHT + self._clock() - self._began
            self._prompt = 0

    def remaining_tokens(self) -> int | None:
        """Return the tokens still to be computed, at least 1; None if nothing is known of them."""
        if not self._prompt or not self._seconds:
            return None
        prefilled = (self._clock() - self._began) * self._tokens / self._seconds
        return max(1, round(self._prompt - min(prefilled, MAX_PREFILL_SHARE * self._prompt)))

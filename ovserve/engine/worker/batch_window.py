"""BatchWindow: how long the engine waits for more requests before its next step.

A step takes all requests that are there when it begins, and one that comes a moment later waits for its end:
17 ms if the others decode, 100 ms if they read prompts. Two moments are worth a short wait:

- The engine was idle. The first request of a burst would have a step of its own and the rest would be one
  step late. So the engine waits while requests come close together, until they have a step's worth of prompt
  tokens; later ones would not have been in that step anyway. The server marks the last request that it has
  at hand. After that one the wait is shorter, but not zero: the server has not seen what a client has just
  sent, and a wrong guess costs a whole step.
- A request finished. Clients that work in a loop (agents, batches, load generators) send the next one a few
  milliseconds after the end of the previous one. Whether these clients do is learnt. Each wait in vain
  doubles the number of occasions that are skipped before the next try. A successful wait resets it, and so
  does idleness, because one load does not predict the next one. So a load without such clients pays
  FOLLOW_UP_SECONDS once in MAX_SKIPPED occasions, and a few times at its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BURST_PAUSE = 0.003  # seconds of silence that end a burst
LAST_PAUSE = 0.001  # the same, after a request that is the last in hand
BURST_SECONDS = 0.02  # at most
FOLLOW_UP_SECONDS = 0.006
MAX_SKIPPED = 64


class BatchWindow:
    """One wait between two steps: `begin`, then `admitted` for each request and `pause` until it is 0."""

    def __init__(self, step_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`step_tokens`: most tokens of one step (max_num_batched_tokens)."""
        self._step_tokens = step_tokens
        self._clock = clock
        self._idle = self._last = False
        self._until = 0.0
        self._wanted = 0  # follow-ups worth waiting for
        self._requests = self._tokens = 0  # admitted since `begin`
        self._skip = self._to_skip = 0

    def begin(self, *, idle: bool, finished: int) -> None:
        """`idle`: the engine has slept until now. `finished`: requests that ended in the step before."""
        self._requests = self._tokens = 0
        self._idle = idle
        self._wanted = 0
        if idle:
            self._skip = self._to_skip = 0
            self._until = self._clock() + BURST_SECONDS
        elif finished:
            if self._to_skip:
                self._to_skip -= 1
                return
            self._wanted = finished
            self._until = self._clock() + FOLLOW_UP_SECONDS

    def admitted(self, prompt_tokens: int, *, last: bool = False) -> None:
        """`last`: the server has no other request in hand."""
        self._last = last
        self._requests += 1
        self._tokens += prompt_tokens

    def pause(self, *, received: bool, full: bool = False) -> float:
        """Seconds to wait for the next message; 0 to step now. `received`: one came since the last call;
        `full`: requests wait already for which the step has no room."""
        if full or self._tokens >= self._step_tokens:
            return self._end()
        remaining = self._until - self._clock()
        if remaining > 0 and self._idle and self._requests and received:
            return min(LAST_PAUSE if self._last else BURST_PAUSE, remaining)
        if remaining > 0 and self._requests < self._wanted:
            return remaining
        return self._end()

    def _end(self) -> float:
        if self._wanted:
            self._skip = 0 if self._requests else min(2 * self._skip + 1, MAX_SKIPPED)
            self._to_skip = self._skip
        return 0.0

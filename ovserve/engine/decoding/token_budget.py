"""The free part of the engine's next step, and so whether a prompt goes to the library now or after it.

A step computes one token for each running sequence and fills up with prompts, `max_num_batched_tokens` in
all; the library cuts a prompt that is too long for the rest. The part makes this step longer for all
its requests. It does not speed up the first token of its own prompt, which comes with the next step anyway.
So a prompt is held back while other prompts are in the step and the rest is too little for it. That means too
little for the whole prompt, and less than LEAST_PART of a step, so no step runs emptier than that while
a prompt waits.

The library looks a prompt up in its prefix cache when it receives it, and a prompt whose twin is being
computed finds nothing there. One that was held back finds it.

A short prompt (of one step at most) does not wait behind a long one: the long one steps aside for it, where
the engine can have it go on later with what it has read (`genai/quirks/overtaking.py`). OVERTAKING of the
tokens of each step may go ahead so, saved up for SAVED_STEPS, and no more: a long prompt keeps half of every
step in the long run, however many short ones come.

The estimate: what is found in the cache counts as prompt until it is known, and a beam search as one sequence
per beam. A wrong estimate admits a prompt one step earlier or later, nothing worse: with no prompt in the
step the next one is always admitted.
"""

from __future__ import annotations

LEAST_PART = 0.25  # of max_num_batched_tokens
OVERTAKING = 0.5  # of max_num_batched_tokens, in each step
SAVED_STEPS = 4


class TokenBudget:
    def __init__(self, tokens: int) -> None:
        """`tokens`: max_num_batched_tokens."""
        self._tokens = tokens
        self._least = tokens * LEAST_PART
        self._unread: dict[int, int] = {}  # prompt tokens to compute, the first come first
        self._sequences: dict[int, int] = {}  # sequences of all admitted requests
        self._fixed: set[int] = set()  # unread requests that cannot step aside
        self._running = 0  # sequences of requests whose prompt is read
        self._most_ahead = SAVED_STEPS * OVERTAKING * tokens
        self._ahead = self._most_ahead  # tokens that may overtake before the next step

    @property
    def unread(self) -> tuple[tuple[int, int], ...]:
        """Requests whose prompt is not read yet, with the tokens left to compute."""
        return tuple(self._unread.items())

    def can_schedule(self, prompt_tokens: int) -> bool:
        """Return whether a prompt of that length should go to the library before the next step."""
        if not self._unread:
            return True
        left = self._tokens - self._running - sum(self._unread.values())
        return prompt_tokens <= left or left >= self._least

    def overtakes(self, prompt_tokens: int) -> bool:
        """Return whether a prompt of that length may go before those that are being read."""
        return prompt_tokens <= min(self._tokens, self._ahead) and bool(self.in_the_way())

    def in_the_way(self) -> list[int]:
        """Return the requests that step aside for a short prompt, in their order: from the first long one
        on."""
        ids = list(self._unread)
        first = next((at for at, id_ in enumerate(ids) if self._unread[id_] > self._tokens), len(ids))
        return [] if self._fixed.intersection(ids[first:]) else ids[first:]

    def overtaken(self, id_: int, prompt_tokens: int, sequences: int) -> None:
        """Record that a short prompt was admitted before those in its way."""
        self._ahead -= prompt_tokens
        behind = [(id_behind, self._unread.pop(id_behind)) for id_behind in self.in_the_way()]
        self.admitted(id_, prompt_tokens, sequences)
        self._unread.update(behind)

    def admitted(self, id_: int, prompt_tokens: int, sequences: int, *, resumes: bool = True) -> None:
        """Record an admission. `prompt_tokens`: those still to compute. `resumes`: it can step aside."""
        self._unread[id_] = prompt_tokens
        self._sequences[id_] = sequences
        if not resumes:
            self._fixed.add(id_)

    def stepped(self) -> None:
        """Record that a step is over: prompts are read in the order in which they came."""
        self._ahead = min(self._ahead + OVERTAKING * self._tokens, self._most_ahead)
        left = self._tokens - self._running
        for id_, tokens in list(self._unread.items()):
            if tokens > left:
                self._unread[id_] -= max(left, 0)
                return
            left -= tokens
            self._read(id_)

    def begun(self, id_: int) -> None:
        """Record the first token of a request: its prompt is read, whatever was estimated."""
        self._read(id_)

    def ended(self, id_: int) -> None:
        """Remove a request; any number of times."""
        self._read(id_)
        self._running -= self._sequences.pop(id_, 0)

    def _read(self, id_: int) -> None:
        self._fixed.discard(id_)
        if self._unread.pop(id_, None) is not None:
            self._running += self._sequences[id_]

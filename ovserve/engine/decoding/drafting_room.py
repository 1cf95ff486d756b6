"""The requests that can draft side by side: each has to be in every step, whole.

The library loses track of a request with drafts that is left out of a step (`genai/quirks/left_out.py`). So
the room is reserved here, of the two things that a step can lack:

- Tokens: a request takes its last token and its drafts in each step, and all of them `batch` at most.
- Blocks of a bounded cache. A request counts with what it takes in the next two steps, because one that is
  cancelled to make room holds its blocks for a step. As answers grow, those that came last give their place
  to the others, and go on later. Then they count to their ends, so that none gives it twice.

A request alone always fits: its answer and drafts are bounded by `fitted`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ovserve.llm.decoding import DEFAULT_ASSISTANT_TOKENS
from ovserve.llm.request import Sampling


@dataclass
class Demand:
    """The room that a request takes."""

    prompt: int  # tokens
    answer: int  # tokens at most; 0: not bounded
    drafts: int  # tokens at most, in a step; 0: not bounded
    stays: bool  # it cannot go on once it has given its place
    begun: bool = False  # its prompt is read
    generated: int = 0
    leaving: bool = False  # cancelled: its blocks are free after the next step


class DraftingRoom:
    def __init__(
        self, *, block: int, blocks: int, batch: int, pads: bool, in_rounds: bool = False, whole: bool = False
    ) -> None:
        """`block`: tokens per block; `blocks`: blocks in the cache, 0 if that is not bounded; `batch`:
        max_num_batched_tokens; `pads`: drafts have their full number to the end of an answer; `in_rounds`: no
        prompt is added while others are answered; `whole`: prompts have to be read in one step, or alone."""
        self._block, self._blocks, self._batch = block, blocks, batch
        self._pads, self._in_rounds, self._whole = pads, in_rounds, whole
        self._held: dict[int, Demand] = {}
        self._stepped = False  # those that are held have been in a step

    def fitted(self, sampling: Sampling, prompt: int, answer: int) -> tuple[Sampling, int]:
        """Return the request with no more drafts, and the most tokens of its answer, than fit alone.

        Drafts make way for an answer whose length was asked for; an open end makes way for drafts."""
        drafts = sampling.num_assistant_tokens or 0
        if not drafts:  # with a confidence threshold there is no number
            return sampling, answer
        drafts = min(drafts, max(self._batch - 1, 1))
        if self._blocks and self._pads:
            # The last token is not in the cache; the drafts before it are.
            room = self._blocks * self._block - prompt + 1
            if sampling.max_tokens is None or sampling.max_tokens > answer:
                answer = max(min(answer, room - drafts), 1)
            drafts = max(min(drafts, room - answer), 1)
        return msgspec.structs.replace(sampling, num_assistant_tokens=drafts), answer

    def fits(self, demand: Demand) -> bool:
        """Return whether a request may be added before the next step. A single one always may."""
        if not self._held:
            return True
        running = [one for one in self._held.values() if not one.leaving]
        if self._in_rounds and (
            self._stepped or demand.prompt + sum(one.prompt for one in running) > self._batch
        ):
            return False
        tokens = sum(map(self._tokens, (*running, demand)))
        if self._whole:
            read = sum(self._tokens(one) if one.begun else one.prompt for one in running)
            tokens = max(tokens, read + demand.prompt)
        return tokens <= self._batch and self._within(self._need(demand))

    def may_fit(self, prompt: int) -> bool:
        """Return whether a request of which only the prompt is known, in tokens, should be added."""
        return self.fits(Demand(prompt, 0, DEFAULT_ASSISTANT_TOKENS, stays=False))

    def added(self, id_: int, demand: Demand) -> None:
        self._held[id_] = demand

    def gained(self, id_: int, tokens: int) -> None:
        if (one := self._held.get(id_)) is not None:
            one.begun = True
            one.generated += tokens

    def cancelled(self, id_: int) -> None:
        if (one := self._held.get(id_)) is not None:
            one.leaving = True

    def ended(self, id_: int) -> None:
        """Release what the library has released; any number of times."""
        self._held.pop(id_, None)

    def stepped(self, *, empty: bool = False) -> None:
        """`empty`: the library has no request any more."""
        for id_ in [id_ for id_, one in self._held.items() if one.leaving or empty]:
            del self._held[id_]
        self._stepped = bool(self._held)

    def crowded(self) -> list[int]:
        """Return the requests to cancel before the next step, so that the one after it has room for the
        others."""
        found: list[int] = []
        if not self._blocks:
            return found
        left = self._blocks - sum(self._need(one) for one in self._held.values() if not one.leaving)
        for id_ in reversed(self._held):
            if left >= 0:
                break
            one = self._held[id_]
            if one.begun and not self._stays(one) and not one.leaving:
                found.append(id_)
                left += self._need(one)
        return found

    def _within(self, blocks: int) -> bool:
        return not self._blocks or sum(map(self._need, self._held.values())) + blocks <= self._blocks

    def _stays(self, one: Demand) -> bool:
        return one.stays or self._in_rounds  # where it may have got too long to be read in a step

    def _tokens(self, one: Demand) -> int:
        """Tokens in a step."""
        return 1 + (one.drafts or self._batch)

    def _need(self, one: Demand) -> int:
        """Blocks in the next two steps; of one that stays, ever."""
        most = one.prompt + one.answer + (one.drafts - 1 if self._pads else 0)
        tokens = one.prompt + one.generated + 2 * self._tokens(one)
        if one.answer:
            tokens = most if self._stays(one) else min(tokens, most)
        return -(-tokens // self._block)

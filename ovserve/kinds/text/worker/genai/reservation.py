"""Admit a request only if its worst case fits, so that the library never has to take anything back.

- What the library does where it lacks room:
  - A step in which it can schedule no token drops all requests (status IGNORED, no finish reason). That
    happens with a full cache while a cancelled request still holds its blocks, which it does for a step.
  - It takes blocks back from the latest request and reads its tokens again. With cache eviction the scores no
    longer fit the tokens, and the step raises, which ends the engine. With a prefix cache a prompt that loses
    its blocks half read leaves one that was not computed to its end (`quirks/partial_prefill.py`).
  - Drafts: with prompt lookup it appends drafts to requests that were not in a step, too. Earlier drafts are
    then part of the answer, unchecked, or the step raises. With a draft model, a prompt that the two models
    do not cut at the same places begins its answer with a token twice.
- The way around: blocks for prompt and longest answer are reserved when a request is added. One that drafts
  has room for a token and its drafts in each step. A request alone always fits: it may use the whole cache.
- Left: a draft model with a smaller cache of its own.
- Seen: tests/engine/test_reservation.py, tests/engine/test_cache_eviction.py. Source:
  `generate_candidates_for_prompt_lookup`,
  https://github.com/openvinotoolkit/openvino.genai/blob/master/src/cpp/src/prompt_lookup/continuous_batching_for_prompt_lookup.cpp
  (read 2026-11-24). Versions: OpenVINO GenAI 2026.4.1.
- It can go when the library keeps requests for which a step has no room.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ovserve.engine.protocol.specs import TextSpec, block_tokens
from ovserve.llm.request import Sampling


@dataclass
class Demand:
    """The most that a request takes."""

    prompt: int  # tokens
    blocks: int
    step_tokens: int  # in a step of its answer; 0 without drafts, when it may be left out of a step
    prefilled: bool = False
    cancelled: bool = False  # its blocks are free after the next step


class CacheReservation:
    def __init__(self, spec: TextSpec, cache_tokens: int | None) -> None:
        """`cache_tokens`: for which a bounded cache has room; None: it grows, or its size is unknown."""
        self._block = block_tokens(spec.device)
        self._blocks = (cache_tokens or 0) // self._block
        self._batch = spec.max_num_batched_tokens
        self._drafts = spec.decoding != "plain"
        self._lookup = spec.decoding == "prompt_lookup"
        # Without split-fuse a prompt has a step of its own, in which those that draft would be left out.
        self._in_rounds = self._lookup and not spec.dynamic_split_fuse
        self._eviction = spec.cache_eviction
        self._held: dict[int, Demand] = {}
        self._stepped = False  # those that are held have been in a step

    @property
    def unbounded(self) -> bool:
        return not self._blocks and not self._drafts

    def fitted(self, sampling: Sampling, prompt: int, answer: int) -> tuple[Sampling, int]:
        """Return the request with no more drafts, and the most tokens of its answer, than fit alone.

        Drafts make way for an answer whose length was asked for; an open end makes way for drafts."""
        drafts = sampling.num_assistant_tokens or 0
        if not self._drafts or not drafts:  # with a confidence threshold there is no number
            return sampling, answer
        drafts = min(drafts, max(self._batch - 1, 1))
        if self._blocks and self._lookup:  # which pads drafts to their full number at the end of an answer
            # The last token is not in the cache; the drafts before it are.
            room = self._blocks * self._block - prompt + 1
            if sampling.max_tokens is None or sampling.max_tokens > answer:
                answer = max(min(answer, room - drafts), 1)
            drafts = max(min(drafts, room - answer), 1)
        return msgspec.structs.replace(sampling, num_assistant_tokens=drafts), answer

    def demand(self, sampling: Sampling, prompt: int, answer: int) -> Demand:
        """`sampling` and `answer`, tokens at most or 0 if that is unknown, are those of `fitted`."""
        # The library compares a threshold with log-probabilities, and stops after one draft without them.
        drafts = sampling.num_assistant_tokens or (answer or self._batch if sampling.logprobs else 1)
        tokens = prompt + answer + (drafts - 1 if self._lookup else 0)
        blocks = self._kept_blocks(prompt) if self._eviction is not None else -(-tokens // self._block)
        if not answer and self._eviction is None:
            blocks = self._blocks
        # Beams that part copy the block that they share.
        blocks = (blocks + 1) * sampling.beams if sampling.beams > 1 else blocks
        return Demand(prompt, blocks, 1 + drafts if self._drafts else 0)

    def _kept_blocks(self, prompt: int) -> int:
        """Return the most blocks of a request whose tokens are evicted."""
        eviction, blocks = self._eviction, -(-prompt // self._block)
        assert eviction is not None
        # Eviction starts when the cache exceeds max_cache_size by a whole block; KVCrush keeps some of the
        # evicted blocks.
        retained = eviction.max_cache_size // self._block + eviction.crush_budget + 2
        # Without a window the prompt is evicted while it is read; with one, when it has been read.
        if eviction.snapkv_window_size == 0:
            blocks = min(blocks, retained - -self._batch // self._block)
        return max(blocks, retained)

    def fits(self, demand: Demand) -> bool:
        """Return whether a request may be added before the next step. A single one always may."""
        if not self._held:
            return True
        if self._blocks and sum(one.blocks for one in self._held.values()) + demand.blocks > self._blocks:
            return False
        return not self._drafts or self._fits_step(demand)

    def _fits_step(self, demand: Demand) -> bool:
        running = [one for one in self._held.values() if not one.cancelled]
        if self._in_rounds and (
            self._stepped or demand.prompt + sum(one.prompt for one in running) > self._batch
        ):
            return False
        tokens = demand.step_tokens + sum(one.step_tokens for one in running)
        if not self._lookup:  # two models: a prompt has to be read in one step, or alone
            before = sum(one.step_tokens if one.prefilled else one.prompt for one in running)
            tokens = max(tokens, before + demand.prompt)
        return tokens <= self._batch

    def admitted(self, id_: int, demand: Demand) -> None:
        self._held[id_] = demand

    def prefilled(self, id_: int) -> None:
        self._held[id_].prefilled = True

    def cancelled(self, id_: int) -> None:
        if (demand := self._held.get(id_)) is not None:
            demand.cancelled = True

    def ended(self, id_: int) -> None:
        """Release what the library has released."""
        self._held.pop(id_, None)

    def stepped(self) -> None:
        self._held = {id_: one for id_, one in self._held.items() if not one.cancelled}
        self._stepped = bool(self._held)

    def clear(self) -> None:
        """The library holds no request."""
        self._held.clear()
        self._stepped = False

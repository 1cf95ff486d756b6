"""Have every request with drafts in every step, because the library spoils one that is left out.

- What the library does: with prompt lookup it appends drafts to all requests after each step, also to one
  that was not in it: for lack of room in a bounded cache or in `max_num_batched_tokens`, or because without
  split-fuse a prompt had the step. Its earlier drafts are then part of the answer, unchecked; or the step
  raises, for more tokens than asked for; or what it has is freed without a word to the handle. With a draft
  model, a prompt that its two models do not cut at the same places begins its answer with a token twice.
- The way around: a request is kept here until all can be in each step (`decoding/drafting_room.py`). Before
  the cache gets full, the latest is cancelled and goes on later, with the tokens that it has (`dropped.py`).
  A prompt of several steps is computed whole, because the prefix caches of two models can have different
  parts of it: 5 of 400 conversations of six turns were wrong so (tiny models, 32 tokens per step).
- Left: a bounded cache with images, whose size is not known; a draft model with a smaller cache of its own;
  such a prompt with a repetition penalty, for which the library looks its ids up (`uncached.py`).
- Seen: tests/engine/test_left_out.py. Source: `generate_candidates_for_prompt_lookup`,
  https://github.com/openvinotoolkit/openvino.genai/blob/master/src/cpp/src/prompt_lookup/continuous_batching_for_prompt_lookup.cpp
  (read 2026-11-24). Versions: OpenVINO GenAI 2026.4.1.
- It can go when drafts are made for the requests of a step only, and both models read the same prompts.
"""

from __future__ import annotations

import openvino
import openvino_genai as ov_genai

from ovserve.engine.backends.genai.quirks.uncached import Uncached
from ovserve.engine.decoding.drafting_room import DraftingRoom
from ovserve.engine.protocol.specs import TextSpec, block_tokens
from ovserve.llm.request import Sampling


class Outside:
    """The handle of a request that the library does not have."""

    def can_read(self) -> bool:
        return False

    def read(self) -> dict[int, ov_genai.GenerationOutput]:
        return {}

    def get_status(self) -> ov_genai.GenerationStatus:
        return ov_genai.GenerationStatus.CANCEL

    def cancel(self) -> None:
        pass


OUTSIDE = Outside()


def drafting_room(spec: TextSpec, room: int | None) -> DraftingRoom | None:
    """Return the room of an engine that drafts. `room`: tokens that a bounded cache holds, if known."""
    if spec.decoding == "plain":
        return None
    block, lookup = block_tokens(spec.device), spec.prompt_lookup
    return DraftingRoom(
        block=block,
        blocks=(room or 0) // block,
        batch=spec.max_num_batched_tokens,
        pads=lookup,
        in_rounds=lookup and not spec.dynamic_split_fuse,
        whole=not lookup,
    )


class CutAlike:
    """Has the two models of a draft cut a prompt at the same places."""

    def __init__(self, spec: TextSpec, uncached: Uncached | None) -> None:
        self._batch = spec.max_num_batched_tokens
        self._uncached = uncached if spec.decoding == "draft" else None  # EAGLE3 aligns the two itself

    def named(self, ids: openvino.Tensor, sampling: Sampling) -> openvino.Tensor:
        """Return the prompt, under a name that no cache has if it takes several steps."""
        if self._uncached is None or ids.shape[1] <= self._batch or sampling.repetition_penalty != 1.0:
            return ids
        return self._uncached.renamed(ids)

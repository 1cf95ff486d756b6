"""Keep prompts from finding blocks of the prefix cache that were never computed to their end.

- What the library does: it names a block of the cache, when it allocates it, by all tokens that the block is
  to hold. A prompt that is read in several steps can leave between two of them: cancelled, or out of room.
  Its last block stays in the cache under that name, with whatever the memory held in the rest. The next
  prompt with the same beginning takes it as computed, and the answer is wrong: 24 of 24 prompts that were
  cancelled and sent again (SmolLM2, 100 tokens per step).
- The way around: the model of the cache knows these blocks. A prompt that would find one gets another name
  from that block on, as in `uncached.py`, and the same one for all, so that they share what they compute.
- The library looks the ids up for a repetition penalty and would raise. So once a request has had one, no
  prompt leaves within a block: cancelled ones are read to its end, and none steps aside. Where there is no
  model of the cache (drafts, images, eviction), cancelled ones are read to their first token.
- Left: without that model, a prompt that loses its blocks in a bounded cache that is full.
- Seen: tests/engine/test_unwritten.py. Versions: OpenVINO GenAI 2026.4.1.
- It can go when the library names a block by what has been computed.
"""

from __future__ import annotations

import openvino
import openvino_genai as ov_genai

from ovserve.engine.backends.genai.quirks.uncached import UPPER
from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.decoding.sequence import Sequence
from ovserve.engine.prefix_cache.model import PrefixCacheModel
from ovserve.errors import Unavailable
from ovserve.llm.request import Sampling

_RUNNING = ov_genai.GenerationStatus.RUNNING
FIRST = 1 << 30  # added to a token id in units of UPPER; `uncached.py` counts up from 1


class Unwritten:
    def __init__(self, *, caches: bool, bounded: bool, renames: bool) -> None:
        """`renames`: the engine computes renamed prompts to the same result, which was tried at load."""
        self._caches, self._bounded = caches, bounded
        self._proven = renames
        self.renames = renames  # until a request has a repetition penalty

    def named(
        self, prefix: PrefixCacheModel | None, ids: openvino.Tensor, sampling: Sampling
    ) -> openvino.Tensor:
        """Return the prompt under a name that finds no such block."""
        penalized = sampling.repetition_penalty != 1.0 and sampling.max_tokens != 0
        if penalized:
            self.renames = False
        if prefix is None:
            return ids
        found, step = ids, FIRST
        # A block that a running prompt fills is whole before another one is read, unless that is preempted.
        while (at := prefix.unwritten(found.data.tobytes(), left=not self._bounded)) is not None:
            if penalized or not self._proven:
                raise Unavailable(
                    "the prefix cache has a part of this prompt that was never computed to its end, and "
                    + ("this engine" if not penalized else "a request with a repetition_penalty")
                    + " cannot leave it out"
                )
            if found is ids:
                found = ids_tensor(ids.data[0])
            found.data[0, at] += step * UPPER
            step = 1
        return found

    def waits(self, prefix: PrefixCacheModel | None, ids: openvino.Tensor) -> bool:
        """Return whether a prompt should wait for another one that is computing a block for both."""
        if prefix is None or not self._bounded or not prefix.reading:
            return False
        given = ids.data.tobytes()
        return prefix.unwritten(given, left=False) is not None and prefix.unwritten(given, left=True) is None

    def may_leave(self, prefix: PrefixCacheModel | None, sequence: Sequence) -> bool:
        """Return whether a request can be cancelled before the next step."""
        if not self._caches:
            return True
        if prefix is None:
            handle = sequence.handle
            return sequence.generated > 0 or handle.can_read() or handle.get_status() != _RUNNING
        return self.renames or not prefix.partly_written(sequence.library_id)

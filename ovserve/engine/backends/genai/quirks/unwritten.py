"""Keep prompts from finding blocks of the prefix cache that were never computed to their end.

- What the library does: it names a block of the cache, when it allocates it, by all tokens that the block is
  to hold. A prompt that is read in several steps can leave between two of them: cancelled, or out of room.
  Its last block stays in the cache under that name, with whatever the memory held in the rest. The next
  prompt with the same beginning takes it as computed, and the answer is wrong: 24 of 24 prompts that were
  cancelled and sent again (SmolLM2, 100 tokens per step).
- The way around: the model of the cache knows these blocks. A prompt that would find one gets another name
  from that block on, as in `uncached.py`, and all get the same, so that they share what they compute.
- The library looks the ids up for a repetition penalty and would raise. So once a request has had one, no
  prompt leaves within a block: cancelled ones are read to its end, and none steps aside.
- Where there is no model of the cache (drafts, images, eviction), a cancelled one is read to its first token.
  That is at most one at a time: the library reads prompts in their order, so only the first can be half read.
- Left: with images, a prompt that loses its blocks in a bounded cache that is full. With drafts none does
  (`left_out.py`).
- Seen: tests/engine/test_unwritten.py. Versions: OpenVINO GenAI 2026.4.1.
- It can go when the library names a block by what has been computed.
"""

from __future__ import annotations

from collections.abc import Iterable

import openvino
import openvino_genai as ov_genai

from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.decoding.sequence import Sequence
from ovserve.engine.prefix_cache.model import PrefixCacheModel
from ovserve.errors import Unavailable
from ovserve.llm.request import Sampling

_RUNNING = ov_genai.GenerationStatus.RUNNING
FIRST = 1 << 30  # for the upper half of a token id; `uncached.py` counts up from 1


class Unwritten:
    def __init__(self, *, caches: bool, bounded: bool, proven: bool) -> None:
        """`proven`: the engine computes renamed prompts to the same result, which was tried at load."""
        self._caches, self._bounded, self._proven = caches, bounded, proven
        self._penalized = False  # a request has had a repetition penalty
        self._upper = FIRST

    @property
    def renames(self) -> bool:
        """Return whether a half read prompt can leave at any time."""
        return self._proven and not self._penalized

    def named(
        self, prefix: PrefixCacheModel | None, ids: openvino.Tensor, sampling: Sampling
    ) -> openvino.Tensor:
        """Return the prompt under a name that finds no such block."""
        penalized = sampling.repetition_penalty != 1.0 and sampling.max_tokens != 0
        self._penalized |= penalized
        if prefix is None:
            return ids
        prompt = prefix.lookup(ids.data.tobytes())
        # A block that a running prompt fills is whole before another one is read, unless that is preempted.
        left = not self._bounded
        start = prefix.unwritten(prompt, left=left)
        if start is None:
            return ids
        if penalized or not self._proven:
            raise Unavailable(
                "the prefix cache has a part of this prompt that was never computed to its end, and "
                + ("a request with a repetition_penalty" if penalized else "this engine")
                + " cannot leave it out"
            )
        while start is not None:
            prompt.rename(start, self._upper)
            again = prefix.unwritten(prompt, start, left=left)
            if again == start:  # under that name too; nothing has the next one yet
                self._upper += 1
            start = again
        return ids_tensor(prompt.ids)

    def waits(self, prefix: PrefixCacheModel | None, ids: openvino.Tensor) -> bool:
        """Return whether a prompt should wait for another one that is computing a block for both."""
        if prefix is None or not self._bounded or not prefix.filling:
            return False
        prompt = prefix.lookup(ids.data.tobytes())
        found = prefix.unwritten(prompt, left=False)
        return found is not None and prefix.unwritten(prompt, left=True) is None

    def may_leave(
        self, prefix: PrefixCacheModel | None, sequence: Sequence, admitted: Iterable[Sequence]
    ) -> bool:
        """Return whether a request can be cancelled before the next step. `admitted`: all, in their order."""
        if not self._caches:
            return True
        if prefix is None:
            return sequence is not next(filter(_unread, admitted), None)
        return self.renames or not prefix.partly_written(sequence.library_id)


def _unread(sequence: Sequence) -> bool:
    """Return whether a request has no token yet."""
    handle = sequence.handle
    return not sequence.generated and not handle.can_read() and handle.get_status() == _RUNNING

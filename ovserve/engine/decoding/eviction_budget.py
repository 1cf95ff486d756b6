"""Limit the requests that share a bounded KV cache with eviction.

When the cache is full the library takes blocks back from the latest request and reads its tokens
again later. With cache eviction it cannot (OpenVINO GenAI 2026.4.1): the scores of that request no longer
fit its tokens, and the step raises, which ends the engine. So a request waits here until the cache has room
for the most blocks that it and all others in the library can ever hold.
"""

from __future__ import annotations

from ovserve.engine.protocol.specs import CacheEviction


class EvictionRoom:
    def __init__(self, eviction: CacheEviction, *, block: int, blocks: int, batch: int) -> None:
        """`block`: tokens per block; `blocks`: blocks in the cache; `batch`: max_num_batched_tokens."""
        self._block, self._blocks = block, blocks
        # Eviction starts when the cache exceeds max_cache_size by a whole block; KVCrush keeps some of the
        # evicted blocks.
        self._kept = eviction.max_cache_size // block + eviction.crush_budget + 2
        # Without a window the prompt is evicted while it is read; with one, when it has been read.
        self._reads_whole = eviction.snapkv_window_size > 0
        self._batch = -(-batch // block)
        self._held: dict[int, int] = {}  # blocks, by request
        self._leaving: set[int] = set()  # cancelled: their blocks are free after the next step

    def can_schedule(self, prompt_tokens: int) -> bool:
        """Return whether a request may go to the library before the next step. A single one always may."""
        held = sum(self._held.values())
        return not held or held + self._most(prompt_tokens) <= self._blocks

    def admitted(self, id_: int, prompt_tokens: int, sequences: int) -> None:
        self._held[id_] = self._most(prompt_tokens) * sequences

    def ended(self, id_: int) -> None:
        """Release the request's blocks; any number of times."""
        self._held.pop(id_, None)
        self._leaving.discard(id_)

    def cancelled(self, id_: int) -> None:
        if id_ in self._held:
            self._leaving.add(id_)

    def stepped(self) -> None:
        for id_ in self._leaving:
            del self._held[id_]
        self._leaving.clear()

    def _most(self, prompt_tokens: int) -> int:
        prompt = -(-prompt_tokens // self._block)
        if not self._reads_whole:
            prompt = min(prompt, self._kept + self._batch)
        return max(prompt, self._kept)

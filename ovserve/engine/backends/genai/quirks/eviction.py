"""Admit no more requests than a cache that evicts tokens can hold at its fullest.

- What the library does: when the cache is full it takes blocks back from the request that came last and reads
  its tokens again later. With cache eviction the scores of that request no longer fit its tokens, and the
  step raises, which ends the engine.
- Seen: tests/engine/test_cache_eviction.py.
- Versions: OpenVINO GenAI 2026.4.1.
- It can go when preemption and cache eviction work together.
"""

from __future__ import annotations

from ovserve.engine.decoding.eviction_budget import EvictionRoom
from ovserve.engine.protocol.specs import TextSpec, block_tokens


def eviction_room(spec: TextSpec, room: int | None) -> EvictionRoom | None:
    """Return the budget of a cache that evicts; None for one that does not. `room`: tokens that it holds."""
    if spec.cache_eviction is None or room is None:
        return None
    block = block_tokens(spec.device)
    return EvictionRoom(
        spec.cache_eviction, block=block, blocks=room // block, batch=spec.max_num_batched_tokens
    )

"""The limits of one graph: how many requests may wait, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ovserve.access import Rights


@dataclass(frozen=True)
class Limits:
    """The limits of one graph; timeouts in seconds."""

    max_queue: int = 256
    max_queue_tokens: int = 262_144
    queue_timeout: float = 60.0
    request_timeout: float = 3600.0
    stall_timeout: float | None = None  # 0: never; None: the engine's policy
    # Limits that only the server sets:
    max_tokenize_bytes: int = 1 << 20
    max_detokenize_tokens: int = 262_144

    def with_own(self, own: Mapping[str, float]) -> Limits:
        """Return these limits with those that a graph sets itself, by the names of these fields."""
        return replace(self, **own)  # type: ignore[arg-type]  # the names are those of this class

    def of(self, rights: Rights) -> Limits:
        """Return these limits with the timeouts of a key, where they are shorter."""
        if rights.queue_timeout is None and rights.request_timeout is None:
            return self
        return replace(
            self,
            queue_timeout=min(self.queue_timeout, rights.queue_timeout or self.queue_timeout),
            request_timeout=min(self.request_timeout, rights.request_timeout or self.request_timeout),
        )

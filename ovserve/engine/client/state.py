"""The state and counters of an engine client, and how it restarts its engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StateName = Literal["starting", "ready", "restarting", "failed", "stopped"]


@dataclass(frozen=True)
class EngineState:
    name: StateName
    reason: str = ""  # why it is not ready


@dataclass(frozen=True)
class EngineStats:
    """A snapshot; all but `running` count from the client's start, over all its processes."""

    running: int
    requests: int  # sent to an engine: running + finished + failed + aborted
    finished: int
    failed: int
    aborted: int
    prompt_tokens: int
    generated_tokens: int
    restarts: int
    drafted_tokens: int = 0  # proposed by a draft model or prompt lookup
    accepted_tokens: int = 0  # how many of them the model accepted; part of generated_tokens
    stalls: int = 0  # processes that were replaced because they made no progress
    repeated: int = 0  # requests that were sent to another engine because theirs ended


@dataclass(frozen=True)
class RestartPolicy:
    """When to restart an engine. Times in seconds.

    The pause doubles with every short-lived engine, and resets after one that lasted. An engine with work is
    replaced when it makes no progress for `stall_timeout`; 0: never. One that holds more than `memory_limit`
    bytes gets no new requests, and is replaced when it has no work; 0: see health/memory_limit.py.
    """

    first_pause: float = 0.25
    longest_pause: float = 30.0
    lasted: float = 60.0
    max_load_failures: int = 5
    max_short_lives: int = 5  # in a row; after that it is "failed" while it pauses
    stall_timeout: float = 120.0
    memory_limit: int = 0

    def pause(self, failures: int) -> float:
        return min(self.longest_pause, self.first_pause * 2.0 ** min(failures, 30))

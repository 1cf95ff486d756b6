"""The state and counters of an engine client, and how it restarts its engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ovserve.errors import Unavailable

StateName = Literal["starting", "ready", "restarting", "unloaded", "waking", "failed", "stopped"]


class Listeners(set[Callable[[], None]]):
    def notify(self) -> None:
        for listener in tuple(self):  # which may leave
            listener()


@dataclass(frozen=True)
class EngineState:
    name: StateName
    reason: str = ""  # why it is not ready


class CurrentState:
    """The state of a client, and the wait for one in which it takes requests."""

    def __init__(self) -> None:
        self.state = EngineState("starting")
        self._changed = asyncio.Event()  # set and replaced at every change

    def become(self, state: EngineState) -> None:
        """Change the state; "stopped" is the last one."""
        if self.state.name != "stopped":
            self.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a state in which this holds."""
        while not holds():
            await self._changed.wait()

    async def until_ready(
        self, ready: Callable[[], bool], seconds: float, *, again: float, why: str = "is restarting"
    ) -> None:
        """Raises Unavailable after `seconds`, because it `why`, and at once when it has failed or stopped: to
        come back after `again`."""
        try:
            async with asyncio.timeout(seconds):
                while not ready():
                    if self.state.name in ("failed", "stopped"):
                        # The reason may hold paths; it is for the operator, in the log and the status.
                        raise Unavailable(f"the engine has {self.state.name}", retry_after=again)
                    await self._changed.wait()
        except TimeoutError:
            raise Unavailable(f"the engine {why}", retry_after=seconds) from None


@dataclass
class EngineStats:
    """Counts; all but `running` are from the client's start, over all its processes."""

    running: int = 0
    requests: int = 0  # sent to an engine: running + finished + failed + aborted
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0  # proposed by a draft model or prompt lookup
    accepted_tokens: int = 0  # how many of them the model accepted; part of generated_tokens
    restarts: int = 0
    stalls: int = 0  # processes that were replaced because they made no progress
    repeated: int = 0  # requests that were sent to another engine because theirs ended


@dataclass(frozen=True)
class RestartPolicy:
    """The rules for restarting an engine. Times in seconds.

    The pause doubles with every short-lived engine, and resets after one that lasted. An engine with work is
    replaced when it makes no progress for `stall_timeout`; 0: never. One that holds more than `memory_limit`
    bytes gets no new requests, and is replaced when it has no work; 0: see memory_limit.py.
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

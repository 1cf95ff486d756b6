"""The state and counters of an engine client, what its engine holds, and how it restarts it."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from ovserve.access import has_begun
from ovserve.engine.protocol.messages import ToEngine
from ovserve.errors import EngineDead, OvserveError, Unavailable

# Dormancy: how an engine lives without a process while no one needs it, and gets one again.
#
# `serving/residency.py` decides when. The client, its facts and what nodes made of them stay, so nothing is
# checked or computed again, and lookups do not wake it. A request waits where it would wait for a restart.
# An engine that is `held` takes no new requests, only the rest of those that it has begun, because another
# one is to get its memory.


RESTING = ("unloaded", "waking")  # states of an engine without a process that is nonetheless served


class Dormancy:
    def __init__(self) -> None:
        self.managed = False  # something decides when it is loaded
        self.asleep = False
        self.held = False
        self.waiting = 0  # requests
        self.urgent = False  # one of them holds another engine, so it cannot wait for its turn
        self.last_used = -math.inf  # time of the last request
        self.since = time.monotonic()  # when it was last loaded
        self.bytes = 0  # of memory that it held when it was loaded
        self.seconds = 1.0  # that its last load took
        self.estimate: Callable[[], float] = lambda: 0.0  # seconds until it is loaded
        self.on_request: Callable[[], None] = lambda: None
        self._awake = asyncio.Event()
        self._awake.set()

    def begin(self) -> None:
        """Record that its process is about to end."""
        self.asleep, self.held = True, False
        self._awake.clear()

    def end(self) -> None:
        """Let it start a process."""
        self.asleep = False
        self._awake.set()

    def loaded(self) -> None:
        """Record that its process is ready."""
        self.asleep = False  # it was being loaded when it was to be unloaded
        self._awake.set()
        self.since = time.monotonic()

    async def until_awake(self) -> None:
        await self._awake.wait()

    def refuses(self) -> bool:
        """Return whether a request has to wait although there is a process."""
        return self.held and not has_begun()

    def expect_retry(self, seconds: float) -> None:
        """Count a request as waiting for so long, because its client is to come back."""
        waiting = self.request()
        waiting.__enter__()
        asyncio.get_running_loop().call_later(seconds, waiting.__exit__, None, None, None)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Enter around the wait of a request."""
        self.waiting += 1
        self.urgent = self.urgent or has_begun()
        self.on_request()
        try:
            yield
        finally:
            self.waiting -= 1
            if not self.waiting:
                self.urgent = False


StateName = Literal["starting", "ready", "restarting", "unloaded", "waking", "failed", "stopped"]


class Listeners(set[Callable[[], None]]):
    def notify(self) -> None:
        for listener in tuple(self):  # which may leave
            listener()


class EngineState(msgspec.Struct, frozen=True):
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


REMEMBERED_ENDS = 8  # for the report on a stalled engine


class Held(Protocol):
    """Something that an engine works on."""

    repeated: bool  # its first engine has ended

    @property
    def begun(self) -> bool:
        """Return whether a part of it has been read, so that no other engine can begin it again."""


H = TypeVar("H", bound=Held)


class InFlight(ABC, Generic[H]):
    """Requests that an engine holds, and those kept for the next one because nothing of them has been read.

    One is sent once more and not forever, because it may be the one that ends engines.
    """

    noun: ClassVar[str]

    def __init__(
        self, send: Callable[[ToEngine], None], on_room: Listeners, *, repeatable: bool = True
    ) -> None:
        """`send` goes to the current engine, if there is one; `on_room` is notified when room may have
        become free."""
        self._send, self._on_room, self._repeatable = send, on_room, repeatable
        self._waiting: list[H] = []  # for the next engine
        self._ended: deque[str] = deque(maxlen=REMEMBERED_ENDS)
        self._last_id = 0
        self.stats = EngineStats()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _held(self) -> list[H]: ...

    @abstractmethod
    def end(self, one: H, error: OvserveError) -> None:
        """End it with this error."""

    @abstractmethod
    def _lines(self, now: float) -> list[str]:
        """Return a line for each, the oldest first."""

    def _begin_again(self, one: H) -> None:
        """Forget what its engine had sent of it."""

    def _lost(self) -> list[H]:
        """Return what was held by the engine that has ended, without what earlier ones have left."""
        kept = set(self._waiting)
        return [one for one in self._held() if one not in kept]

    def lost(self, reason: str) -> None:
        """Handle the end of the engine: end what it holds, or keep it for the next one."""
        for one in self._lost():
            once = one.repeated or not self._repeatable  # so that no one repeats it
            if once or one.begun:
                self.end(one, EngineDead(reason, retry_after=1.0, repeated=once))
                continue
            one.repeated = True
            self.stats.repeated += 1
            self._begin_again(one)
            self._waiting.append(one)
        self._on_room.notify()

    def _take_waiting(self) -> list[H]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def end_waiting(self, error: OvserveError) -> None:
        for one in self._take_waiting():
            self.end(one, error)
        self._on_room.notify()

    def end_all(self, error: OvserveError) -> None:
        self._waiting = []
        for one in self._held():
            self.end(one, error)
        self._on_room.notify()

    def patience(self, default: float) -> float:
        """Return the seconds that all of them allow a step to take; 0: no limit."""
        return default

    def prefill_tokens(self) -> int:
        """Return the prompt tokens of requests without a generated token."""
        return 0

    def report(self) -> list[str]:
        """Return a line for each that it holds, and for the last ones that ended."""
        lines = [f"holds {self.noun} {line}" for line in self._lines(time.monotonic())]
        return lines + [f"before: {self.noun} {ended}" for ended in self._ended]


class RestartPolicy(msgspec.Struct, frozen=True):
    """The rules for restarting an engine. Times in seconds.

    The pause doubles with every short-lived engine, and resets after one that lasted. An engine with work is
    replaced when it makes no progress for `stall_timeout`; 0: never. One that holds more than `memory_limit`
    bytes gets no new requests, and is replaced when it has no work; 0: see settings.py.
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

"""AdmissionController: admission control between the nodes of a graph and their engine.

Nodes use it through `text.py` and `calls.py`. It gives these guarantees:

- An engine with room gets a request at once. Otherwise it waits here, at most `max_queue` requests and, of
  text, `max_queue_tokens` prompt tokens; one more is rejected with `Retry-After`.
- A request that has waited here for `queue_timeout` is rejected. One that is not complete after
  `request_timeout` ends. The timers run in the event loop, so they also hold for an engine that hangs.

Requests wait here and not in the engine. There they are served in the order they came, whoever sent them,
cannot be counted or rejected, and are lost with the process.

Lines of batches are admitted where no live request waits or runs. The paged engine pauses those that it has
when one comes. Other engines get one at a time until no live request has come for CALM_SECONDS.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from ovserve.access import current_request
from ovserve.engine.admission.fair_queue import FairQueue, Limits, Waiter
from ovserve.engine.client.client import EngineClient
from ovserve.errors import Overloaded, RateLimited
from ovserve.telemetry.metrics import RequestMetrics

CALM_SECONDS = 5.0  # without a live request, until an engine that cannot pause lines gets several
BATCH_TIMEOUT_SECONDS = 30 * 24 * 3600.0  # a line of a batch ends with its batch
MIN_RETRY_AFTER_SECONDS, MAX_RETRY_AFTER_SECONDS = 0.1, 600.0
DEFAULT_RETRY_AFTER_SECONDS = 1.0

S = TypeVar("S")


class Room(Protocol):
    """The room of one kind of engine, and its speed."""

    counts_tokens: bool  # the size of a request is its prompt tokens, which are bounded in the queue
    pauses_batches: bool  # the engine itself pauses lines of batches for live requests

    @property
    def slots(self) -> int:
        """Return how many choices, or calls, the engine runs at a time."""

    def fits(self, waiter: Waiter) -> bool: ...

    def admissible(self, queue: FairQueue, now: float) -> Iterator[Waiter]:
        """Yield waiting requests that have room; each leaves the queue before the next one is asked for."""

    def reserve(self, waiter: Waiter) -> None:
        """Count a request that is about to be sent."""

    def release(self, waiter: Waiter) -> None:
        """The first token of a reserved request came, or none will."""

    def charge(self, waiter: Waiter) -> float:
        """Return what a request adds to its caller's share."""

    def sample(self, now: float, *, busy: bool) -> None:
        """Sample the speed; `busy`: requests wait, so the engine works at its full speed."""

    def seconds(self, queue: FairQueue, now: float) -> float | None:
        """Return the seconds that the queue takes; None when nothing is known."""


class Expiring(Protocol):
    def expire(self) -> None: ...


class Deadlines:
    """The deadlines of requests, with one timer for all: a timer for each took 4 us, and few are ever due."""

    def __init__(self) -> None:
        self._due: dict[Expiring, float] = {}  # seconds, time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0  # of the timer, which may be earlier than any deadline

    def set(self, request: Expiring, due: float) -> None:
        """Let the request expire at `due` instead of its earlier deadline."""
        self._due[request] = due
        if self._timer is None or due < self._at:
            self._start(due)

    def remove(self, request: Expiring) -> None:
        self._due.pop(request, None)

    def _start(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = due
        delay = max(0.0, due - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer, now = None, time.monotonic()
        for request in [request for request, due in self._due.items() if due <= now]:
            del self._due[request]
            request.expire()
        if self._due:
            self._start(min(self._due.values()))


class AdmissionController:
    """The queue of one engine: requests wait here, in a fair order and within bounds."""

    def __init__(
        self, engine: EngineClient[Any, Any], meter: RequestMetrics, limits: Limits, room: Room
    ) -> None:
        self.limits = limits
        self.deadlines = Deadlines()
        self._engine = engine
        self._meter = meter
        self._room = room
        self._queue = FairQueue(limits.queue_timeout)
        self._batch: deque[Waiter] = deque()
        self._last_live = -math.inf

    async def admit(
        self,
        waiter: Waiter,
        limits: Limits,
        due: float,
        send: Callable[[], Awaitable[S]],
        send_now: Callable[[], S | None] | None = None,
    ) -> S:
        """Send a request at its turn, and return what `send` returns. The caller calls `finish` at its end.

        `due` is the end of its time by `time.monotonic()`. `send_now` is tried first where there is room; it
        returns None when the engine is not ready, or else saves a timer. Raises Overloaded and RateLimited
        for a request that is rejected, else what `send` raises.
        """
        now, call = waiter.arrived, current_request()
        if call.batch:
            return await self._admit_in_batch(waiter, send)
        self._last_live = now
        patience = due - now
        if not waiter.begun:
            call.queued = now - call.started
            if allowance := self._engine.load_allowance:
                self._engine.refuse_impatient(call.seconds_left)
            patience = min(limits.queue_timeout + allowance, patience)
            if shortage := self._engine.short_of_memory:
                raise self.refusal("memory", shortage)
        self._room.sample(now, busy=bool(self._queue))
        at_once = not self._queue and self._room.fits(waiter)
        if at_once and send_now is not None and patience > 0 and (stream := send_now()) is not None:
            return stream
        try:
            async with asyncio.timeout(patience):
                if at_once:
                    self._reserve(waiter)
                else:
                    await self._wait(waiter, call.caller.rights.max_queue)
                return await self._send(waiter, send)
        except TimeoutError:
            raise self.overdue(patience) from None

    def begun(self, waiter: Waiter) -> None:
        """Record that the first token of a request came."""
        if waiter.awaits_first_token:
            waiter.awaits_first_token = False
            self._room.release(waiter)
            if self._queue:
                self._advance()

    def finish(self, waiter: Waiter) -> None:
        """Record that a request has left the engine, any number of times."""
        self.begun(waiter)
        if waiter.batch:
            waiter.batch = False
            self._engine.batch_lines -= waiter.choices
            self._advance()

    async def _admit_in_batch(self, waiter: Waiter, send: Callable[[], Awaitable[S]]) -> S:
        """Send a line of a batch when live requests leave room. It waits for that outside of their queue, as
        long as it takes."""
        if shortage := self._engine.short_of_memory:
            raise self.refusal("memory", shortage)
        self._batch.append(waiter)
        try:
            await self._turn_of(waiter)
            stream = await send()
        except BaseException:
            if waiter.admitted:
                self._engine.reserved -= waiter.choices
            elif waiter in self._batch:
                self._batch.remove(waiter)
            self.finish(waiter)
            self._advance()
            raise
        self._engine.reserved -= waiter.choices  # now the engine counts it
        return stream

    async def _send(self, waiter: Waiter, send: Callable[[], Awaitable[S]]) -> S:
        try:
            stream = await send()
        except BaseException:
            self._release(waiter)
            self._advance()
            raise
        self._engine.reserved -= waiter.choices  # now the engine counts it
        return stream

    def _reserve(self, waiter: Waiter) -> None:
        self._engine.reserved += waiter.choices
        waiter.awaits_first_token = True
        self._room.reserve(waiter)

    def _release(self, waiter: Waiter) -> None:
        self._engine.reserved -= waiter.choices
        waiter.awaits_first_token = False
        self._room.release(waiter)

    # ---- waiting for room

    async def _wait(self, waiter: Waiter, most: int | None) -> None:
        """Wait for a turn. `most`: the limit of waiting requests of one caller."""
        if not waiter.begun:
            self._make_room(waiter, most)
        self._queue.add(waiter)
        try:
            await self._turn_of(waiter)
        except asyncio.CancelledError:
            if waiter.admitted:
                self._release(waiter)  # it got its turn just as it left
            self._queue.remove(waiter)
            self._advance()
            raise

    async def _turn_of(self, waiter: Waiter) -> None:
        waiter.turn = asyncio.get_running_loop().create_future()
        self._engine.on_room.add(self._advance)
        self._advance()  # it may be short, and the requests before it long
        await waiter.turn

    def _make_room(self, waiter: Waiter, most: int | None) -> None:
        """Raise for a newcomer if the queue is full and no waiting request can be evicted."""
        queue, limits = self._queue, self.limits
        if most is not None and queue.waiting_of(waiter.caller) >= most:
            raise RateLimited(
                f"this key may have {most} requests waiting for a model", retry_after=self._retry_after()
            )
        while len(queue) >= limits.max_queue:
            if not self._evict_for(waiter, by_tokens=False):
                raise self.refusal("queue_full", f"{len(queue)} requests are waiting")
        while self._room.counts_tokens and queue and queue.tokens + waiter.tokens > limits.max_queue_tokens:
            if not self._evict_for(waiter, by_tokens=True):
                raise self.refusal(
                    "queue_tokens", f"requests with about {queue.tokens} prompt tokens are waiting"
                )

    def _evict_for(self, newcomer: Waiter, *, by_tokens: bool) -> bool:
        """Evict a waiting request in favour of the newcomer; return whether one was evicted."""
        loser = self._queue.eviction_candidate(newcomer, by_tokens=by_tokens)
        if loser is None:
            return False
        self._queue.remove(loser)
        if not loser.turn.done():
            why = "the queue is full, and most of its requests are this caller's"
            loser.turn.set_exception(self.refusal("queue_share", why))
        return True

    def _advance(self) -> None:
        """Admit the waiting requests that have room; called whenever there may be more room."""
        now = time.monotonic()
        self._room.sample(now, busy=bool(self._queue))
        for waiter in self._room.admissible(self._queue, now):
            if waiter.turn.cancelled():  # its task has not resumed yet
                self._queue.remove(waiter)
                continue
            self._queue.take(waiter, self._room.charge(waiter))
            self._reserve(waiter)
            waiter.turn.set_result(None)
        while self._batch and self._has_batch_room(self._batch[0], now):
            waiter = self._batch.popleft()
            if not waiter.turn.cancelled():
                waiter.admitted = waiter.batch = True
                self._engine.reserved += waiter.choices
                self._engine.batch_lines += waiter.choices
                waiter.turn.set_result(None)
        if not self._queue and not self._batch:
            self._engine.on_room.discard(self._advance)
        self._meter.queued = len(self._queue)
        if self._room.counts_tokens:
            self._meter.queued_tokens = self._queue.tokens

    def _has_batch_room(self, waiter: Waiter, now: float) -> bool:
        """Return whether no live request waits or runs, and the engine takes one more line of a batch."""
        lines = self._engine.batch_lines
        if self._queue or self._engine.in_flight > lines:
            self._last_live = now
            return False
        several = self._room.pauses_batches or now - self._last_live > CALM_SECONDS
        return not lines or (several and lines + waiter.choices <= self._room.slots)

    # ---- rejections

    def overdue(self, seconds: float) -> Overloaded:
        return self.refusal("queue_timeout", f"the request was not admitted within {seconds:g} s")

    def refusal(self, cause: str, why: str) -> Overloaded:
        return Overloaded(f"the server is overloaded: {why}", cause=cause, retry_after=self._retry_after())

    def _retry_after(self) -> float:
        seconds = self._room.seconds(self._queue, time.monotonic())
        if seconds is None:
            seconds = DEFAULT_RETRY_AFTER_SECONDS
        # After `queue_timeout` every request that waits now is admitted or rejected, so a later time is never
        # needed.
        longest = min(MAX_RETRY_AFTER_SECONDS, self.limits.queue_timeout)
        return min(max(seconds, MIN_RETRY_AFTER_SECONDS), longest)

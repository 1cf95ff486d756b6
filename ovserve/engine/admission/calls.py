"""CallAdmission: admission control between the nodes of a graph and an engine of calls.

The guarantees are those of text generation (`controller.py`): a bounded queue that is fair among callers, a
deadline for admission and one for completion, and a rejection with `Retry-After`. A call counts as one,
and the engine gets twice the calls that it runs concurrently, so that it never waits for the next one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ovserve.access import current_request
from ovserve.engine.admission.controller import (
    BATCH_TIMEOUT_SECONDS,
    CALM_SECONDS,
    DEFAULT_RETRY_AFTER_SECONDS,
    MAX_RETRY_AFTER_SECONDS,
    MIN_RETRY_AFTER_SECONDS,
)
from ovserve.engine.admission.fair_queue import FairQueue, Waiter
from ovserve.engine.admission.limits import Limits
from ovserve.engine.client.call_client import CallClient, CallStream
from ovserve.engine.client.running_call import CallItem
from ovserve.errors import DeadlineExceeded, Overloaded, OvserveError, RateLimited
from ovserve.telemetry.requests import RequestMetrics


class Expiring(Protocol):
    def expire(self) -> None: ...


class CallDeadlines:
    """The deadlines of calls, with one timer for all: a timer for each took 4 us, and few are ever due."""

    def __init__(self) -> None:
        self._due: dict[Expiring, float] = {}  # seconds, time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0  # of the timer, which may be earlier than any call's

    def add(self, call: Expiring, due: float) -> None:
        self._due[call] = due
        if self._timer is None or due < self._at:
            self._start(due)

    def remove(self, call: Expiring) -> None:
        self._due.pop(call, None)

    def _start(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = due
        left = max(0.0, due - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        self._timer, now = None, time.monotonic()
        for call in [call for call, due in self._due.items() if due <= now]:
            del self._due[call]
            call.expire()
        if self._due:
            self._start(min(self._due.values()))


AHEAD = 2  # calls in the engine per call that it runs
EWMA_WEIGHT = 0.1  # weight of the last call in the mean duration


class CallAdmission:
    """A `kinds.resource.Caller`."""

    def __init__(self, engine: CallClient, meter: RequestMetrics, limits: Limits) -> None:
        self._engine = engine
        self._meter = meter
        self._limits = limits
        self._queue = FairQueue(limits.queue_timeout)
        self._seconds: float | None = None  # mean duration of a call
        self._sessions = 0
        self._batch: deque[asyncio.Future[None]] = deque()  # calls of lines of batches
        self._last_live = -math.inf
        self.deadlines = CallDeadlines()

    async def call(
        self,
        method: str,
        arguments: Any,
        blobs: Sequence[bytes | bytearray | memoryview] = (),
        *,
        window: int = 0,
    ) -> AdmittedCall:
        """Admit and send a call; with a `window` it is that many items ahead at most.

        Raises Overloaded when it is rejected here, else as the engine does.
        """
        return await self.admit(method, arguments, blobs, window=window)

    def session(self) -> CallSession:
        """Begin a request of several calls. Raises Overloaded when as many are open as may wait."""
        most = self._limits.max_queue + self._engine.facts.max_calls
        if self._sessions >= most:
            raise self._refusal("queue_full", f"{self._sessions} requests are open")
        self._sessions += 1
        return CallSession(self, self._meter)

    def session_ended(self) -> None:
        self._sessions -= 1

    async def admit(
        self,
        method: str,
        arguments: Any,
        blobs: Sequence[bytes | bytearray | memoryview] = (),
        *,
        window: int = 0,
        cost: int = 1,
        part: CallSession | None = None,
    ) -> AdmittedCall:
        """Admit and send a call like `call`. `cost` is its weight in the queue.

        A `part` of a session that has been admitted before is neither rejected nor evicted for its length.
        """
        now, call = time.monotonic(), current_request()
        if call.batch:
            return await self._admit_in_batch(method, arguments, blobs, window, part)
        self._last_live = now
        caller = call.caller
        kept = part is not None and part.admitted
        if not kept:
            call.queued = now - call.started
        limits = self._limits.of(caller.rights)
        if (allowance := self._engine.load_allowance) and not kept:
            self._engine.refuse_impatient(call.left)
        if (shortage := self._engine.short_of_memory) and not kept:
            raise self._refusal("memory", shortage)
        begun = now if part is None else part.begun
        left = begun + limits.request_timeout - now
        patience = left if kept else min(limits.queue_timeout + allowance, left)
        at_once = None
        if not self._queue and self._room() and patience > 0:
            at_once = self._engine.call_now(method, arguments, blobs, window=window)
        if at_once is not None:  # as for almost all calls, which need no timer
            stream = at_once
        else:
            waiter = Waiter(caller.name, cost, 1, now, "", caller.rights.weight, kept)
            try:
                async with asyncio.timeout(patience):
                    stream = await self._in_turn(waiter, method, arguments, blobs, window)
            except TimeoutError:
                raise self._refusal(
                    "queue_timeout", f"the request was not admitted within {patience:g} s"
                ) from None
        if not kept:
            call.admitted = time.monotonic() - call.started
        self._meter.queue_time.observe(time.monotonic() - now)
        ends = AdmissionEnd(begun, limits.request_timeout, part is None)
        return AdmittedCall(self, stream, self._meter, ends)

    async def _admit_in_batch(
        self,
        method: str,
        arguments: Any,
        blobs: Sequence[bytes | bytearray | memoryview],
        window: int,
        part: CallSession | None,
    ) -> AdmittedCall:
        """Send a call of a batch's line when live calls leave room, however long that takes."""
        turn = asyncio.get_running_loop().create_future()
        self._batch.append(turn)
        self._engine.on_room.add(self._advance)
        self._advance()
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._batch:
                self._batch.remove(turn)
            elif not turn.cancelled():
                self._engine.reserved -= 1
            self._advance()
            raise
        try:
            stream = await self._engine.call(method, arguments, blobs, window=window)
        finally:
            self._engine.reserved -= 1
        call = current_request()
        call.admitted = time.monotonic() - call.started
        ends = AdmissionEnd(time.monotonic(), BATCH_TIMEOUT_SECONDS, part is None)
        return AdmittedCall(self, stream, self._meter.of_batches, ends)

    async def _in_turn(
        self,
        waiter: Waiter,
        method: str,
        arguments: Any,
        blobs: Sequence[bytes | bytearray | memoryview],
        window: int,
    ) -> CallStream:
        """Send a call when it is its turn."""
        if self._queue or not self._room():
            await self._wait(waiter, current_request().caller.rights.max_queue)
        else:
            self._engine.reserved += 1
        try:
            return await self._engine.call(method, arguments, blobs, window=window)
        finally:
            self._engine.reserved -= 1  # now the engine counts it

    def _room(self) -> bool:
        return self._engine.in_flight < AHEAD * self._engine.facts.max_calls

    async def _wait(self, waiter: Waiter, most: int | None) -> None:
        """Wait for a turn. `most`: the limit of waiting calls of one caller."""
        queue = self._queue
        if not waiter.kept:
            self._make_place(waiter, most)
        queue.add(waiter)
        self._engine.on_room.add(self._advance)
        self._meter.queued = len(queue)
        try:
            await waiter.admission
        except asyncio.CancelledError:
            if waiter.admitted:
                self._engine.reserved -= 1  # it got its turn just as it left
            queue.remove(waiter)
            self._advance()
            raise

    def _make_place(self, waiter: Waiter, most: int | None) -> None:
        queue = self._queue
        if most is not None and queue.waiting_of(waiter.caller) >= most:
            raise RateLimited(
                f"this key may have {most} requests waiting for a model", retry_after=self._retry_after()
            )
        while len(queue) >= self._limits.max_queue:
            loser = queue.eviction_candidate(waiter, by_tokens=False)
            if loser is None:
                raise self._refusal("queue_full", f"{len(queue)} requests are waiting")
            queue.remove(loser)
            if not loser.admission.done():
                why = "the queue is full, and most of its requests are this caller's"
                loser.admission.set_exception(self._refusal("queue_share", why))

    def _advance(self) -> None:
        """Admit the waiting calls that have room; called whenever there may be more room."""
        while self._queue and self._room():
            waiter = self._queue.next(time.monotonic())
            if waiter is None:
                break
            if waiter.admission.cancelled():  # its task has not been resumed yet
                self._queue.remove(waiter)
                continue
            self._queue.take(waiter, waiter.tokens)
            self._engine.reserved += 1
            waiter.admission.set_result(None)
        while self._batch and not self._queue and self._has_batch_room():
            turn = self._batch.popleft()
            if not turn.cancelled():
                self._engine.reserved += 1
                turn.set_result(None)
        if not self._queue and not self._batch:
            self._engine.on_room.discard(self._advance)
        self._meter.queued = len(self._queue)

    def _has_batch_room(self) -> bool:
        """Return whether the engine takes one more call of a batch: one at a time, next to live calls."""
        calm = time.monotonic() - self._last_live > CALM_SECONDS
        return self._engine.in_flight < (self._engine.facts.max_calls if calm else 1)

    def ended(self, seconds: float) -> None:
        """Record the duration of a complete call."""
        before = self._seconds
        self._seconds = seconds if before is None else before + EWMA_WEIGHT * (seconds - before)

    def _refusal(self, cause: str, why: str) -> Overloaded:
        return Overloaded(f"the server is overloaded: {why}", cause=cause, retry_after=self._retry_after())

    def _retry_after(self) -> float:
        if self._seconds is None:
            return DEFAULT_RETRY_AFTER_SECONDS
        wait = len(self._queue) * self._seconds / max(1, self._engine.facts.max_calls)
        return min(max(wait, MIN_RETRY_AFTER_SECONDS), MAX_RETRY_AFTER_SECONDS)


class AdmissionEnd(NamedTuple):
    """The deadline of a call: `timeout` seconds after `begun`. `whole`: the call is a request by itself."""

    begun: float  # seconds, time.monotonic()
    timeout: float
    whole: bool


class AdmittedCall:
    """A `CallStream` with a deadline. One that is a whole request counts as one in the metrics."""

    def __init__(
        self, admission: CallAdmission, inner: CallStream, meter: RequestMetrics, ends: AdmissionEnd
    ) -> None:
        self._admission, self._inner, self._meter, self._ends = admission, inner, meter, ends
        self._sent = time.monotonic()
        self._open = True
        meter.in_engine += 1
        admission.deadlines.add(self, ends.begun + ends.timeout)

    async def next(self) -> CallItem | None:
        """Return the next item, None at the end."""
        try:
            item = await self._inner.next()
        except OvserveError:
            self._close()
            raise
        if item is None and self._close():
            now = time.monotonic()
            if self._ends.whole:
                self._meter.latency.observe(now - self._ends.begun)
                self._meter.finished["stop"] += 1
            self._admission.ended(now - (self._ends.begun if self._ends.whole else self._sent))
        return item

    def fail(self, error: OvserveError) -> None:
        self._inner.fail(error)

    def cancel(self) -> None:
        self._close()
        self._inner.cancel()

    def _close(self) -> bool:
        """Close; return whether it was open."""
        was, self._open = self._open, False
        if was:
            self._admission.deadlines.remove(self)
            self._meter.in_engine -= 1
        return was

    def expire(self) -> None:
        """End it at its deadline."""
        self._inner.fail(DeadlineExceeded(f"the answer was not complete within {self._ends.timeout:g} s"))


class CallSession:
    """One request made of several calls, which take turns with the calls of others. `close` it.

    The first call is admitted like any other. Later ones wait for their turn, but are not rejected: the
    request has begun to answer. All of them share one deadline.
    """

    def __init__(self, admission: CallAdmission, meter: RequestMetrics) -> None:
        self._admission, self._meter = admission, meter
        self.begun = time.monotonic()
        self.admitted = False
        self._open = True

    async def call(
        self,
        method: str,
        arguments: Any,
        blobs: Sequence[bytes | bytearray | memoryview] = (),
        *,
        cost: int = 1,
    ) -> AdmittedCall:
        """Raises as `CallAdmission.call`, and DeadlineExceeded at the end of the request's time."""
        try:
            stream = await self._admission.admit(method, arguments, blobs, cost=cost, part=self)
        except Overloaded as error:
            if self.admitted and error.cause == "queue_timeout":
                raise DeadlineExceeded("the answer was not complete in time") from error
            raise
        self.admitted = True
        return stream

    def close(self, *, finished: bool = False) -> None:
        """End the request, any number of times. `finished`: it is answered, and counts as such."""
        if not self._open:
            return
        self._open = False
        self._admission.session_ended()
        if finished:
            self._meter.latency.observe(time.monotonic() - self.begun)
            self._meter.finished["stop"] += 1

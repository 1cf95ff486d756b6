"""CallAdmission: admission control between the nodes of a graph and an engine of calls.

The guarantees are those of text generation (`controller.py`): a bounded queue that is fair among callers, a
deadline for admission and one for completion, and a rejection with `Retry-After`. A call counts as one,
and the engine gets twice the calls that it runs concurrently, so that it never waits for the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from ovserve.access import current_request
from ovserve.admission.controller import LEAST_WAIT, LONGEST_WAIT, UNKNOWN_WAIT
from ovserve.admission.fair_queue import FairQueue, Waiter
from ovserve.admission.limits import Limits
from ovserve.engine.client.call_client import CallClient, CallItem, CallStream
from ovserve.errors import DeadlineExceeded, Overloaded, OvserveError, RateLimited
from ovserve.telemetry.requests import RequestMetrics

AHEAD = 2  # calls in the engine per call that it runs
LEARNING = 0.1  # weight of the last call in the mean duration


class CallAdmission:
    """A `calculators.resource.Caller`."""

    def __init__(self, engine: CallClient, meter: RequestMetrics, limits: Limits) -> None:
        self._engine = engine
        self._meter = meter
        self._limits = limits
        self._queue = FairQueue(limits.queue_timeout)
        self._seconds: float | None = None  # mean duration of a call

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
        now, call = time.monotonic(), current_request()
        caller = call.caller
        call.queued = now - call.started
        limits = self._limits.of(caller.rights)
        waiter = Waiter(caller.name, 1, 1, now, "", caller.rights.weight)
        if shortage := self._engine.short_of_memory:
            raise self._refusal("memory", shortage)
        patience = min(limits.queue_timeout, limits.request_timeout)
        try:
            async with asyncio.timeout(patience):
                if self._queue or not self._room():
                    await self._wait(waiter, caller.rights.max_queue)
                else:
                    self._engine.reserved += 1
                try:
                    stream = await self._engine.call(method, arguments, blobs, window=window)
                finally:
                    self._engine.reserved -= 1  # now the engine counts it
        except TimeoutError:
            raise self._refusal(
                "queue_timeout", f"the request was not admitted within {patience:g} s"
            ) from None
        call.admitted = time.monotonic() - call.started
        return AdmittedCall(self, stream, self._meter, now, limits.request_timeout)

    def _room(self) -> bool:
        return self._engine.in_flight < AHEAD * self._engine.facts.max_calls

    async def _wait(self, waiter: Waiter, most: int | None) -> None:
        """Wait for a turn. `most`: the limit of waiting calls of one caller."""
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
            if not loser.turn.done():
                why = "the queue is full, and most of its requests are this caller's"
                loser.turn.set_exception(self._refusal("queue_share", why))
        queue.add(waiter)
        self._engine.on_room.add(self._advance)
        self._meter.queued = len(queue)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.admitted:
                self._engine.reserved -= 1  # it got its turn just as it left
            queue.remove(waiter)
            self._advance()
            raise

    def _advance(self) -> None:
        """Admit the waiting calls that have room; called whenever there may be more room."""
        while self._queue and self._room():
            waiter = self._queue.next(time.monotonic())
            if waiter is None:
                break
            if waiter.turn.cancelled():  # its task has not been resumed yet
                self._queue.remove(waiter)
                continue
            self._queue.take(waiter, 1)
            self._engine.reserved += 1
            waiter.turn.set_result(None)
        if not self._queue:
            self._engine.on_room.discard(self._advance)
        self._meter.queued = len(self._queue)

    def ended(self, seconds: float) -> None:
        """Record the duration of a complete call."""
        before = self._seconds
        self._seconds = seconds if before is None else before + LEARNING * (seconds - before)

    def _refusal(self, cause: str, why: str) -> Overloaded:
        return Overloaded(f"the server is overloaded: {why}", cause=cause, retry_after=self._retry_after())

    def _retry_after(self) -> float:
        if self._seconds is None:
            return UNKNOWN_WAIT
        wait = len(self._queue) * self._seconds / max(1, self._engine.facts.max_calls)
        return min(max(wait, LEAST_WAIT), LONGEST_WAIT)


class AdmittedCall:
    """A `CallStream` with a deadline, which counts as one request in the metrics."""

    def __init__(
        self,
        admission: CallAdmission,
        inner: CallStream,
        meter: RequestMetrics,
        arrived: float,
        request_timeout: float,
    ) -> None:
        self._admission, self._inner, self._meter = admission, inner, meter
        self._arrived = arrived
        self._timeout = request_timeout
        self._open = True
        meter.in_engine += 1
        meter.queue_time.observe(time.monotonic() - arrived)
        left = arrived + request_timeout - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._expire)

    async def next(self) -> CallItem | None:
        """Return the next item, None at the end."""
        try:
            item = await self._inner.next()
        except OvserveError:
            self._close()
            raise
        if item is None and self._close():
            seconds = time.monotonic() - self._arrived
            self._meter.latency.observe(seconds)
            self._meter.finished["stop"] += 1
            self._admission.ended(seconds)
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
            self._timer.cancel()
            self._meter.in_engine -= 1
        return was

    def _expire(self) -> None:
        self._inner.fail(DeadlineExceeded(f"the answer was not complete within {self._timeout:g} s"))

"""CallAdmission: the admission of calls to an engine of any kind but text (`controller.py`).

A call counts as one, and the engine gets twice the calls that it runs concurrently, so that it never waits
for the next one. `Retry-After` is estimated from the mean duration of calls.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any

from ovserve.access import current_request
from ovserve.engine.admission.controller import BATCH_TIMEOUT_SECONDS, AdmissionController
from ovserve.engine.admission.fair_queue import FairQueue, Limits, Waiter
from ovserve.engine.client.calls import CallClient, CallItem, CallStream
from ovserve.errors import DeadlineExceeded, Internal, Overloaded, OvserveError
from ovserve.telemetry.metrics import RequestMetrics

CALLS_PER_SLOT = 2  # calls in the engine per call that it runs
EWMA_WEIGHT = 0.1  # weight of the last call in the mean duration


class CallRoom:
    """The `Room` of an engine of calls."""

    counts_tokens = pauses_batches = False

    def __init__(self, engine: CallClient) -> None:
        self._engine = engine
        self._mean: float | None = None  # seconds of a call

    @property
    def slots(self) -> int:
        return self._engine.facts.max_calls

    def fits(self, waiter: Waiter) -> bool:
        return self._engine.in_flight - self._engine.batch_lines < CALLS_PER_SLOT * self.slots

    def admissible(self, queue: FairQueue, now: float) -> Iterator[Waiter]:
        while (waiter := queue.next(now)) is not None and self.fits(waiter):
            yield waiter

    def reserve(self, waiter: Waiter) -> None:
        """Only the slot counts, which the controller has counted."""

    def release(self, waiter: Waiter) -> None:
        """Likewise."""

    def charge(self, waiter: Waiter) -> float:
        return waiter.tokens

    def sample(self, now: float, *, busy: bool) -> None:
        """The speed is learnt from calls that end."""

    def seconds(self, queue: FairQueue, now: float) -> float | None:
        return None if self._mean is None else len(queue) * self._mean / max(1, self.slots)

    def record_duration(self, seconds: float) -> None:
        mean = self._mean
        self._mean = seconds if mean is None else mean + EWMA_WEIGHT * (seconds - mean)


class CallAdmission:
    """Sends the calls of nodes, each when its turn has come."""

    def __init__(self, engine: CallClient, meter: RequestMetrics, limits: Limits) -> None:
        self._engine = engine
        self._meter = meter
        self._sessions = 0
        self.room = CallRoom(engine)
        self.controller = AdmissionController(engine, meter, limits, self.room)

    async def call(
        self,
        method: str,
        arguments: Any,
        blobs: Sequence[bytes | bytearray | memoryview] = (),
        *,
        window: int = 0,
        cost: int = 1,
        part: CallSession | None = None,
    ) -> AdmittedCall:
        """Admit and send a call; with a `window` it is that many items ahead at most.

        `cost` is its weight in the queue. A `part` of a session that has been admitted before is neither
        rejected nor evicted for its length. Raises Overloaded when it is rejected here, else as the engine
        does.
        """
        now, call = time.monotonic(), current_request()
        caller, meter = call.caller, self._meter
        limits = self.controller.limits.of(caller.rights)
        since, timeout = now if part is None else part.begun, limits.request_timeout
        holds_slot = part is not None and part.admitted
        waiter = Waiter(caller.name, cost, 1, now, "", caller.rights.weight, holds_slot)

        def send() -> Awaitable[CallStream]:
            return self._engine.call(method, arguments, blobs, window=window)

        def send_now() -> CallStream | None:  # enough for almost all calls
            return self._engine.call_now(method, arguments, blobs, window=window)

        stream = await self.controller.admit(waiter, limits, since + timeout, send, send_now)
        sent_at = time.monotonic()
        if not holds_slot:
            call.admitted = sent_at - call.started
        if call.batch:
            since, timeout, meter = sent_at, BATCH_TIMEOUT_SECONDS, meter.of_batches
        else:
            meter.queue_time.observe(sent_at - now)
        return AdmittedCall(self, stream, meter, waiter, (since, timeout), whole=part is None)

    async def one(
        self, method: str, arguments: Any, blobs: Sequence[bytes | bytearray | memoryview] = ()
    ) -> CallItem:
        """Call and return the one item. The call is cancelled when the caller is. Raises as `call`, and
        Internal without an item."""
        stream = await self.call(method, arguments, blobs)
        try:
            item = await stream.next()
            if item is None:
                raise Internal(f"the engine answered {method} with nothing")
            await stream.next()  # the end, so that the call counts as finished
        finally:
            stream.cancel()  # no effect on one that has ended
        return item

    def session(self) -> CallSession:
        """Begin a request of several calls. Raises Overloaded when as many are open as may wait."""
        if self._sessions >= self.controller.limits.max_queue + self.room.slots:
            raise self.controller.refusal("queue_full", f"{self._sessions} requests are open")
        self._sessions += 1
        return CallSession(self, self._meter)

    def session_ended(self) -> None:
        self._sessions -= 1


class AdmittedCall:
    """A `CallStream` that ends with an error when it is overdue. One that is a whole request counts as one in
    the metrics."""

    def __init__(
        self,
        admission: CallAdmission,
        inner: CallStream,
        meter: RequestMetrics,
        waiter: Waiter,
        time_of_it: tuple[float, float],
        *,
        whole: bool,
    ) -> None:
        """`time_of_it`: when its request began, by `time.monotonic()`, and the seconds that it may take."""
        self._controller, self._room = admission.controller, admission.room
        self._inner, self._meter, self._waiter = inner, meter, waiter
        self._whole = whole
        self._begun, self._timeout = time_of_it
        self._sent = time.monotonic()
        self._open = True
        meter.in_engine += 1
        self._controller.deadlines.set(self, self._begun + self._timeout)

    async def next(self) -> CallItem | None:
        """Return the next item, None at the end."""
        try:
            item = await self._inner.next()
        except OvserveError:
            self._close()
            raise
        if item is None and self._close():
            now = time.monotonic()
            if self._whole:
                self._meter.latency.observe(now - self._begun)
                self._meter.finished["stop"] += 1
            self._room.record_duration(now - (self._begun if self._whole else self._sent))
        return item

    def fail(self, error: OvserveError) -> None:
        self._inner.fail(error)

    def cancel(self) -> None:
        self._close()
        self._inner.cancel()

    def expire(self) -> None:
        """End it at its deadline."""
        self._inner.fail(DeadlineExceeded(f"the answer was not complete within {self._timeout:g} s"))

    def _close(self) -> bool:
        """Close; return whether it was open."""
        was, self._open = self._open, False
        if was:
            self._controller.deadlines.remove(self)
            self._controller.finish(self._waiter)
            self._meter.in_engine -= 1
        return was


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
            stream = await self._admission.call(method, arguments, blobs, cost=cost, part=self)
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

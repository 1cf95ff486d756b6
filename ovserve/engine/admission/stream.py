"""A stream of deltas with a deadline: it ends with an error when its request is overdue."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from ovserve.access import current_request
from ovserve.engine.admission.fair_queue import Waiter
from ovserve.engine.admission.limits import Limits
from ovserve.engine.client.delta_stream import DeltaStream
from ovserve.errors import DeadlineExceeded, Overloaded
from ovserve.llm.request import Delta, GenerateRequest


class Admission(Protocol):
    """The part of its `AdmissionController` that a stream needs."""

    @property
    def last_message(self) -> float: ...
    @property
    def reading(self) -> bool: ...
    def admitted(self, request: GenerateRequest, tokens: int) -> None: ...
    def begun(self, waiter: Waiter) -> None: ...
    def ended(self, waiter: Waiter) -> None: ...
    def overdue(self, seconds: float) -> Overloaded: ...


class GatedStream:
    """One generation under way, with a deadline."""

    __slots__ = (
        "_admitted",
        "_begun",
        "_call",
        "_gate",
        "_inner",
        "_limits",
        "_request",
        "_sent",
        "_timer",
        "_waiter",
    )

    def __init__(
        self,
        admission: Admission,
        inner: DeltaStream,
        request: GenerateRequest,
        waiter: Waiter,
        limits: Limits,
    ) -> None:
        self._gate, self._inner, self._request, self._waiter = admission, inner, request, waiter
        self._limits = limits
        self._admitted = self._begun = False
        self._call = current_request()
        self._sent = time.monotonic()
        self._timer = self._until_refused()
        inner.when_admitted(self._admit)
        inner.when_reading(self._call.reading)

    async def next(self) -> Delta:
        delta = await self._inner.next()
        if not self._begun:
            if delta.prompt_tokens:
                self._call.cached_tokens = delta.cached_tokens
            if delta.tokens or delta.last:
                self._begun = True
                self._gate.begun(self._waiter)
        if delta.drafted or delta.accepted:
            self._call.drafted_tokens += delta.drafted
            self._call.accepted_tokens += delta.accepted
        return delta

    def abort_if_running(self) -> None:
        self._timer.cancel()
        self._inner.abort_if_running()
        self._inner.forget_calls()  # they refer to this, which would wait for the garbage collector
        if not self._begun:
            self._begun = True
            self._gate.begun(self._waiter)
        if self._waiter.batch:
            self._waiter.batch = False
            self._gate.ended(self._waiter)

    def _admit(self, prompt_tokens: int) -> None:
        if not self._admitted:
            self._admitted = True
            self._call.admitted = time.monotonic() - self._call.started
            self._call.count(prompt_tokens, 0)
            self._gate.admitted(self._request, prompt_tokens)
            self._timer.cancel()
            self._timer = self._at(self._deadline)

    @property
    def _deadline(self) -> float:
        return self._waiter.arrived + self._limits.request_timeout

    @property
    def _last_message(self) -> float:
        """Return when the engine last sent anything since it has this request."""
        return max(self._sent, self._gate.last_message)

    def _until_refused(self) -> asyncio.TimerHandle:
        """Start the timer; while the engine reads prompts, only the watchdog decides whether it hangs."""
        since = time.monotonic() if self._gate.reading else self._last_message
        return self._at(min(self._deadline, since + self._limits.queue_timeout))

    def _at(self, when: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.monotonic()), self._expire)

    def _expire(self) -> None:
        now, limits = time.monotonic(), self._limits
        if self._admitted or now >= self._deadline:
            seconds = limits.request_timeout
            self._inner.fail(DeadlineExceeded(f"the answer was not complete within {seconds:g} s"))
        elif now >= self._last_message + limits.queue_timeout and not self._gate.reading:
            self._inner.fail(self._gate.overdue(limits.queue_timeout))
        else:
            self._timer = self._until_refused()

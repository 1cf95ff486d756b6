"""Dormancy: how an engine lives without a process while no one needs it, and gets one again.

`serving/residency.py` decides when. The client, its facts and what nodes made of them stay, so nothing is
checked or computed again, and lookups do not wake it. A request waits where it would wait for a restart.
An engine that is `held` takes no new requests, only the rest of those that it has begun, because another
one is to get its memory.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ovserve.access import has_begun

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

"""LimiterCalculator: at most so many requests at a time in the part of a graph behind it.

| port | type | |
|---|---|---|
| input `IN` | any | the first packet of a request takes a place |
| output `OUT` | any | the same packets |

Options: `max_running`, and `max_seconds` that a request waits for a place, 0 by default. A request without a
place is a 429 with `Retry-After` and counts as the node's event `limited`. The place is free again when the
request ends. Requests to all connections share the places; those of a reloaded graph are its own.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec

from ovserve.errors import RateLimited
from ovserve.graph import Calculator, Context, Input, LoadContext, Output, calculator

RETRY_AFTER = 1.0  # seconds


class LimiterOptions(msgspec.Struct, frozen=True):
    max_running: Annotated[int, msgspec.Meta(ge=1)]
    max_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


@calculator("LimiterCalculator")
class Limiter(Calculator):
    runs_on = "loop"
    options_type = LimiterOptions

    given: Input[Any] = Input("IN", object)
    passed: Output[Any] = Output("OUT", object)

    @classmethod
    async def load(cls, lc: LoadContext) -> asyncio.Semaphore:
        return asyncio.Semaphore(lc.options(LimiterOptions).max_running)

    async def open(self, cc: Context) -> None:
        self._held = False

    async def process(self, cc: Context) -> None:
        value = cc[self.given]
        if value is None:
            return
        if not self._held:
            await self._take(cc)
        cc.send(self.passed, value)

    async def _take(self, cc: Context) -> None:
        places: asyncio.Semaphore = cc.state
        options = cc.options(LimiterOptions)
        try:
            if places.locked():  # also while others wait, who were first
                async with asyncio.timeout(options.max_seconds):
                    await places.acquire()
            else:
                await places.acquire()
        except TimeoutError:
            cc.count("limited")
            raise RateLimited(
                f"{options.max_running} requests are running, as many as this graph allows",
                retry_after=RETRY_AFTER,
            ) from None
        self._held = True

    async def close(self, cc: Context) -> None:
        if self._held:
            self._held = False
            cc.state.release()

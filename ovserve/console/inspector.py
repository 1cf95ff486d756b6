"""Calls of the requests page: the list of requests, one in detail, and captures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from aiohttp import web

from ovserve.console.calls import answer, caller, heard, integer, read, stream
from ovserve.console.capture import Capture
from ovserve.console.requests import RequestLog
from ovserve.console.watch import Watches
from ovserve.errors import InvalidArgument
from ovserve.serving.manager import Manager

ATTACH_SECONDS = 1.0  # between two looks for graphs that were loaded since
FOREVER_SECONDS = 1e12


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """0 minutes end a capture; with `clear`, what it has recorded goes too."""

    minutes: Annotated[float, msgspec.Meta(ge=0, le=24 * 60)]
    clear: bool = False


class Inspector:
    def __init__(self, manager: Manager, mode: str) -> None:
        self.requests = RequestLog()
        self.watches = Watches(manager)
        self._mode = mode
        self._records = Capture()
        self._attaching: asyncio.Task[None] | None = None
        if mode == "on":
            self._begin(FOREVER_SECONDS)

    async def stop(self) -> None:
        if self._attaching is not None:
            self._attaching.cancel()
            await asyncio.wait({self._attaching})
        self._records.clear()

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """GET: an event per change, with the requests that have ended since the one before."""
        return await stream(request, self._news(integer(request.query.get("after"), "after", 0)))

    async def _news(self, number: int) -> AsyncGenerator[Any]:
        who, first = caller(), True
        while True:
            number, rows = self.requests.since(number, who)
            if rows or first:
                captured = [row.values["id"] for row in rows if self._records.of(row.values["id"], row.owner)]
                yield {
                    "requests": [row.values for row in rows],
                    "captured": captured,
                    "capture": self._state(),
                }
            first = False
            while not await heard(self._wait(number)):
                yield {"capture": self._state()}

    async def _wait(self, number: int) -> None:
        await self.requests.wait(number)
        await asyncio.sleep(0.2)  # so that many requests make few events

    async def get(self, request: web.Request) -> web.Response:
        """GET: one request, with its capture if there is one."""
        id_ = request.match_info["id"]
        row = self.requests.get(id_, caller())
        record = self._records.of(id_, row.owner)
        return answer({"request": row.values, "capture": record.body() if record is not None else None})

    async def state(self, request: web.Request) -> web.Response:
        return answer(self._state())

    async def capture(self, request: web.Request) -> web.Response:
        """POST: start a capture for some minutes, or end it."""
        change = await read(request, _Asked)
        if self._mode == "off":
            raise InvalidArgument("captures are switched off; see --console_capture")
        if change.minutes:
            self._begin(time.time() + change.minutes * 60)
        else:
            self._records.until = 0.0
        if change.clear:
            self._records.clear()
        return answer(self._state())

    def _state(self) -> dict[str, Any]:
        records = self._records
        remaining = max(0.0, records.until - time.time())
        return {
            "mode": self._mode,
            "active": records.active,
            "seconds_left": remaining if remaining < FOREVER_SECONDS / 2 else None,
            "records": len(records.records),
            "bytes": records.size,
        }

    def _begin(self, until: float) -> None:
        self._records.until = until
        self.watches.capture = self._records
        self.watches.attach()
        if self._attaching is None or self._attaching.done():
            self._attaching = asyncio.create_task(self._attach())

    async def _attach(self) -> None:
        """Also record graphs that are loaded while the capture runs, and take the taps out at its end."""
        while self._records.active:
            self.watches.attach()
            await asyncio.sleep(ATTACH_SECONDS)
        self.watches.capture = None
        self.watches.attach()

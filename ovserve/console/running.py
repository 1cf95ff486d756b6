"""Calls for the requests in progress: what each one does at the moment, and to cancel one.

A caller sees and cancels its own requests, an administrator all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from aiohttp import web

from ovserve.access import AccessLog, Caller
from ovserve.access.access_log import Running
from ovserve.console.calls import PING_SECONDS, answer, caller, integer, stream
from ovserve.console.requests import facts, hidden
from ovserve.errors import Cancelled, NotFound

LIVE_SECONDS = 0.4  # between two events

log = logging.getLogger(__name__)


class InProgress:
    def __init__(self, access_log: AccessLog) -> None:
        self._access_log = access_log

    def of(self, who: Caller, id_: str = "") -> list[Running]:
        """Return the requests that the caller may see; those of one id, if it is given."""
        return [
            one
            for one in self._access_log.running
            if not hidden(one.path)
            and (who.rights.admin or one.call.caller is who)
            and (not id_ or one.request_id == id_)
        ]

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """GET: an event with all of them, a few times a second while there are any. `?id=` asks for one."""
        return await stream(request, self._news(caller(), request.query.get("id", "")))

    async def _news(self, who: Caller, id_: str) -> AsyncGenerator[Any]:
        shown, silent = None, 0.0
        while True:
            rows = [_row(one) for one in self.of(who, id_)]
            if rows or shown != rows:
                shown, silent = rows, 0.0
                yield {"running": rows}
            elif silent >= PING_SECONDS:
                silent = 0.0
                yield None
            await asyncio.sleep(LIVE_SECONDS)
            silent += LIVE_SECONDS

    async def cancel(self, request: web.Request) -> web.Response:
        """POST: end the request of this number with an error; no effect if it has ended."""
        number = integer(request.match_info["number"], "number", 0)
        one = next((one for one in self.of(caller()) if one.number == number), None)
        if one is None:
            raise NotFound(f"no request {number} is running")
        by = f" by {caller().name}" if caller().name else ""
        ended = one.call.cancel(Cancelled(f"the request was cancelled in the console{by}"))
        if ended:
            log.info("request %s was cancelled in the console%s", one.request_id, by)
        return answer({"cancelled": ended})


def _row(one: Running) -> dict[str, Any]:
    call = one.call
    seconds = time.monotonic() - call.started
    unread = call.unread_tokens if call.first_token is None else 0
    return {
        "number": one.number,
        **facts(call, seconds, one.method, one.path, one.request_id),
        "unread_tokens": unread,
    }

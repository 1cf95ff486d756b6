"""The requests in progress and the last ones: what the access log knows of each, and where its time went.

It holds no prompt and no answer; `capture.py` does, while it runs. A caller sees its own requests, an
administrator all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

from ovserve.access.access_log import Ended, error_fields
from ovserve.access.caller import Caller
from ovserve.access.request_context import RequestContext
from ovserve.errors import NotFound

MAX_REQUESTS = 500
CONSOLE = "/console"
HIDDEN = {  # polled by pages and probes
    "/", "/metrics", "/health", "/v1/health", "/v3/health", "/v2/health/live", "/v2/health/ready",
    "/v3/models", "/v3/capabilities", "/v1/config", "/v2/repository/index", "ServerLive", "ServerReady",
    "ModelReady", "Check", "Watch",
}  # fmt: skip


class Row(NamedTuple):
    """One request that has ended at the time `at`. `number` counts from 1."""

    number: int
    at: float
    ended: Ended

    @property
    def owner(self) -> Caller:
        return self.ended.call.caller

    @property
    def values(self) -> dict[str, Any]:
        """Return what is known of it. Made when it is read: few of the requests of a busy server are."""
        ended = self.ended
        values = {
            "number": self.number,
            "status": ended.status,
            **facts(ended.call, ended.seconds, ended.method, ended.path, ended.request_id),
            "at": self.at - ended.seconds,
        }
        if (error := ended.call.failure or ended.call.error) is not None:
            values |= {"failure": str(error), "refused": ended.call.failure is None, **error_fields(error)}
        return values

    def visible_to(self, caller: Caller) -> bool:
        return caller.rights.admin or self.owner is caller


def hidden(path: str) -> bool:
    """Return whether a request is one that pages make, and no one looks for."""
    return path.startswith(CONSOLE) or path.partition("?")[0] in HIDDEN


def facts(call: RequestContext, seconds: float, method: str, path: str, request_id: str) -> dict[str, Any]:
    """Return what is known of a request after `seconds`, whether it has ended or not."""
    return {
        "id": request_id,
        "at": time.time() - seconds,
        "method": method,
        "path": path.partition("?")[0],
        "model": call.model,
        "key": call.caller.name,
        "seconds": seconds,
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": call.cached_tokens,
        "generated_tokens": call.generated_tokens,
        "drafted_tokens": call.drafted_tokens,
        "accepted_tokens": call.accepted_tokens,
        "queued": call.queued,
        "admitted": call.admitted,
        "first_token": call.first_token,
        "repeated": call.repeated,
    }


class RequestLog:
    """Listens to the access log."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, Caller], Row] = OrderedDict()  # clients choose ids, so also by key
        self._last = 0
        self._news = asyncio.Event()

    def add(self, ended: Ended) -> None:
        call = ended.call
        if hidden(ended.path):
            return
        self._last += 1
        key = ended.request_id, call.caller
        self._rows.pop(key, None)  # a client may send one id twice: the last one counts
        self._rows[key] = Row(self._last, time.time(), ended)
        if len(self._rows) > MAX_REQUESTS:
            self._rows.popitem(last=False)
        self._news.set()

    def since(self, number: int, caller: Caller) -> tuple[int, list[Row]]:
        """Return the newest number, and the requests after `number` that the caller may see, oldest first."""
        rows: Iterable[Row] = (r for r in self._rows.values() if r.number > number)
        return self._last, [r for r in rows if r.visible_to(caller)]

    def get(self, id_: str, caller: Caller) -> Row:
        """Raises NotFound, also for the request of another key."""
        row = self._rows.get((id_, caller))
        if row is None and caller.rights.admin:
            row = next((r for r in reversed(self._rows.values()) if r.ended.request_id == id_), None)
        if row is None:
            raise NotFound(f"request {id_!r} is not among the last {MAX_REQUESTS}")
        return row

    async def wait(self, number: int) -> None:
        """Wait until there is a request after `number`."""
        while self._last <= number:
            self._news.clear()
            await self._news.wait()

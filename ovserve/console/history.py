"""The last quarter of an hour of the metrics, so that a page that is opened after an incident shows it.

A reading each five seconds, as /metrics writes it. Most lines do not change from one reading to the next, so
of each line only the changes are kept, and of all of them at most `MAX_CHANGES`: the oldest go first.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiohttp import web

from ovserve.access import Caller, as_system
from ovserve.access.access_log import Ended, error_fields
from ovserve.access.request_context import RequestContext
from ovserve.console.capture import answer, caller
from ovserve.errors import NotFound
from ovserve.services.monitoring.scrape import Scraper
from ovserve.serving.manager import Manager

SAMPLE_SECONDS = 5.0
LOOP_SHARE = 0.002  # of the event loop's time at most: a page of 100 graphs takes 53 ms
KEPT_SECONDS = 900.0
MAX_CHANGES = 400_000  # 16 bytes each, and the text of their lines
ABSENT_VALUE = math.nan  # the value of a line that is not in a reading
MODEL = re.compile(r'[{,]name="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")


class Series:
    """The changes of one line: the number of a reading, and the value from there on."""

    __slots__ = ("numbers", "values")

    def __init__(self) -> None:
        self.numbers, self.values = array("q"), array("d")

    def append(self, number: int, value: float) -> int:
        """Return how many changes this adds."""
        if self.values and (
            self.values[-1] == value or (self.values[-1] != self.values[-1] and value != value)
        ):
            return 0
        self.numbers.append(number)
        self.values.append(value)
        return 1

    def drop(self, oldest: int) -> int:
        """Drop what was before the reading `oldest`, and return how many changes that were."""
        stale = 0
        while stale + 1 < len(self.numbers) and self.numbers[stale + 1] <= oldest:
            stale += 1
        if stale:
            del self.numbers[:stale], self.values[:stale]
        return stale


class History:
    """The readings; one call at a time, which `MetricsHistory` sees to."""

    def __init__(self, max_changes: int = MAX_CHANGES) -> None:
        self._max_changes = max_changes
        self._series: dict[str, Series] = {}
        self._readings: deque[tuple[int, float]] = deque()  # number and time
        self._last = 0
        self._changes = 0

    @property
    def changes(self) -> int:
        return self._changes

    def record(self, at: float, page: str) -> None:
        self._last += 1
        self._readings.append((self._last, at))
        series, heads = self._series, set[str]()
        for line in page.splitlines():
            if line.startswith(("#", "vllm:")):
                continue
            head, _, value = line.rpartition(" ")
            heads.add(head)
            if (one := series.get(head)) is None:
                one = series[head] = Series()
            self._changes += one.append(self._last, float(value))
        for head in series.keys() - heads:
            self._changes += series[head].append(self._last, ABSENT_VALUE)
        while self._readings[0][1] <= at - KEPT_SECONDS:
            self._forget()
        while self._changes > self._max_changes and len(self._readings) > 1:
            self._forget()

    def _forget(self) -> None:
        self._readings.popleft()
        oldest = self._readings[0][0]
        for head in list(self._series):
            one = self._series[head]
            self._changes -= one.drop(oldest)
            if len(one.values) == 1 and one.values[0] != one.values[0]:
                del self._series[head]
                self._changes -= 1

    def view(self, who: Caller) -> dict[str, Any]:
        """Return the times of the readings, and each line's changes as [index, value]; null is absent."""
        first = self._readings[0][0] if self._readings else 0
        return {
            "now": time.time(),
            "at": [at for _, at in self._readings],
            "series": {
                head: [
                    [max(0, number - first), None if value != value else value]
                    for number, value in zip(one.numbers, one.values, strict=True)
                ]
                for head, one in self._visible(who)
            },
        }

    def _visible(self, who: Caller) -> Iterable[tuple[str, Series]]:
        for head, one in self._series.items():
            match = MODEL.search(head)
            if match is not None:
                is_visible = who.may_use(ESCAPED.sub(_unescaped, match[1]))
            else:
                # Which models share it is not theirs.
                is_visible = who.rights.models is None or 'process="' not in head
            if is_visible:
                yield head, one


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


class MetricsHistory:
    """Takes the readings, off the path of requests. Must be created on the event loop."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._scraper = Scraper(manager)
        self._history = History()
        self._lock = asyncio.Lock()
        self._task = asyncio.create_task(self._sample())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def get(self, request: web.Request) -> web.Response:
        """GET: what the caller may see of the readings that are kept."""
        who = caller()
        async with self._lock:
            return await asyncio.to_thread(lambda: answer(self._history.view(who)))

    async def _sample(self) -> None:
        while self._manager.metrics.enabled:
            began = time.perf_counter()
            with as_system():
                page = await self._scraper.scrape()
            pause = max(SAMPLE_SECONDS, (time.perf_counter() - began) / LOOP_SHARE)
            async with self._lock:
                await asyncio.to_thread(self._history.record, time.time(), page.decode())
            await asyncio.sleep(pause)


# The requests in progress and the last ones: what the access log knows of each, and where its time went.
#
# It holds no prompt and no answer; `capture.py` does, while it runs. A caller sees its own requests, an
# administrator all of them.


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
        return self._last, [r for r in rows if caller.rights.admin or r.owner is caller]

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

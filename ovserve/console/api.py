"""Calls of the graph and server pages, and the rendered prompt of a chat.

Only administrators read the last lines of the log, and versions, options, keys, processes and their memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from importlib import metadata
from itertools import islice
from typing import Any

import msgspec
from aiohttp import web

from ovserve import __version__
from ovserve.access import Guard
from ovserve.console.capture import Watches, answer, body_of, caller, heard, integer, stream
from ovserve.console.graphs import Changed, Graphs
from ovserve.engine.host.memory import memory, resident
from ovserve.errors import InvalidArgument, ModelNotFound, OvserveError, Unavailable
from ovserve.kinds.payload import HttpPayload
from ovserve.log import request_id
from ovserve.serving.manager import RETRY_AFTER, Manager
from ovserve.serving.servable import Servable
from ovserve.serving.status import ServableStatus, VersionState
from ovserve.serving.tokens import tokens_of

PACKAGES = ("openvino-genai", "openvino", "openvino-tokenizers", "aiohttp", "uvloop", "msgspec", "protobuf")
STARTED = time.time()


def server_info(
    manager: Manager, guard: Guard, options: Mapping[str, tuple[object, object]]
) -> dict[str, Any]:
    """`options` are value and default by name, without secrets."""
    available = memory()
    return {
        "version": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.release()}, {os.cpu_count()} processors",
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "pid": os.getpid(),
        "started": STARTED,
        "memory": resident(os.getpid()),
        "available": available.available,
        "limit": available.limit,
        "fault": manager.fault,
        "options": {n: {"value": v, "default": d} for n, (v, d) in options.items()},
        "keys": [_key_info(entry.caller, entry.expires) for entry in guard.entries],
        "models": [_model_info(manager, status.name) for status in manager.statuses()],
    }


def _model_info(manager: Manager, name: str) -> dict[str, Any]:
    entry = manager.entries.entry(name)
    status = entry.status
    return {
        "name": name,
        "state": _state(status, status.state_detail.upper() or status.state.name),
        "reason": status.reason,
        "parent": entry.spec.adapter.parent if entry.spec.adapter is not None else None,
        "revision": status.revision,
        "since": status.since,
        "graph": str(entry.spec.graph),
        "running": entry.servable.running if entry.servable is not None else 0,
        "context": entry.servable.max_length if entry.servable is not None else None,
        "engines": _engines(entry.servable) if entry.servable is not None else [],
    }


def _engines(servable: Servable) -> list[dict[str, Any]]:
    return [
        {
            "packet": packet,
            "kind": engine.spec.kind,
            "model": os.path.basename(getattr(engine.spec, "model_path", "")),
            "device": getattr(engine.spec, "device", ""),
            "pid": engine.pid,
            "state": engine.state.name,
            "memory": resident(engine.pid) if engine.pid else 0,
            "restarts": engine.stats().restarts,
        }
        for packet, engine in servable.engines.items()
    ]


def _key_info(caller: Any, expires: float | None) -> dict[str, Any]:
    rights, usage = caller.rights, caller.day.current()
    limits = (
        *("requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day"),
        *("concurrency", "max_queue"),
    )
    return {
        "name": caller.name,
        "admin": rights.admin,
        "models": rights.models,
        "limits": {name: value for name in limits if (value := getattr(rights, name)) is not None},
        "today": {"requests": usage.requests, "tokens": usage.tokens},
        "remaining": {what: remaining for what, (_, remaining) in caller.remaining().items()},
        "running": caller.running,
        "expires": expires,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


MAX_LINES = 2000
MAX_MESSAGE_CHARACTERS = 4000  # characters of one message


class LogRing(logging.Handler):
    """A handler that keeps the last records as plain values."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[dict[str, Any]] = deque(maxlen=MAX_LINES)
        self._last = 0
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the text
            self.handleError(record)
            return
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        self._last += 1  # under the handler's lock, as emit always is
        self._lines.append(
            {
                "number": self._last,
                "at": record.created,
                "level": record.levelname,
                "logger": record.name.removeprefix("ovserve."),
                "request": request_id.get(),
                "message": message[:MAX_MESSAGE_CHARACTERS],
            }
        )
        if not self._news.is_set():
            try:
                self._loop.call_soon_threadsafe(self._news.set)  # calculators log from threads
            except RuntimeError:
                return  # the loop has ended

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the lines after `number`, oldest first."""
        self.acquire()
        try:
            new = max(0, min(self._last - number, len(self._lines)))
            return list(islice(self._lines, len(self._lines) - new, None))
        finally:
            self.release()

    async def wait(self, number: int) -> None:
        """Wait until there is a line after `number`."""
        while self._last <= number:
            self._news.clear()
            if self._last <= number:
                await self._news.wait()


LIVE_SECONDS = 0.5  # between two events of a graph at work
CONFLICT_STATUS = 412
AVAILABLE, GONE = VersionState.AVAILABLE, (VersionState.UNLOADING, VersionState.END)


class _Render(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    endpoint: str
    body: msgspec.Raw


class _Tokens(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    text: str


class _Check(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    text: str


class _Apply(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class Api:
    def __init__(
        self,
        manager: Manager,
        guard: Guard,
        watches: Watches,
        options: Mapping[str, tuple[object, object]],
        *,
        write: bool,
    ) -> None:
        self._manager = manager
        self._guard = guard
        self._watches = watches
        self._options = options
        self._graphs = Graphs(manager, write=write)
        self._logs = LogRing()
        logging.getLogger().addHandler(self._logs)

    async def stop(self) -> None:
        logging.getLogger().removeHandler(self._logs)
        await self._graphs.stop()

    async def models(self, request: web.Request) -> web.Response:
        """GET: the models that the caller may use, as /v3/models has them, without a line in the log."""
        if self._manager.stopping:  # its engines end before it does
            raise Unavailable("the server is stopping", retry_after=RETRY_AFTER)
        may, servables = caller().may_use, self._manager.servables
        lengths = {s.name: s.max_length for s in servables}
        restarts = {s.name: sum(e.stats().restarts for e in s.engines.values()) for s in servables}
        chats = {s.name for s in servables if s.chats}
        talks = {s.name for s in servables if "realtime" in s.endpoints}
        visible = [s for s in self._manager.statuses() if s.state not in GONE and may(s.name)]
        adapters = {e.name: e.spec.adapter for e in self._manager.entries.values()}
        rows = [
            {
                "id": s.name,
                "created": s.since,
                "state": _state(s, "AVAILABLE" if s.state is AVAILABLE else "LOADING"),
                "reason": s.reason or s.state_detail,
                "max_model_len": lengths.get(s.name),
                "chats": s.name in chats,
                "talks": s.name in talks,
                "restarts": restarts.get(s.name, 0),
                "idle": s.state_detail == "unloaded",
                "parent": adapter.parent if (adapter := adapters.get(s.name)) else None,
            }
            for s in visible
        ]
        return answer({"models": rows})

    async def render(self, request: web.Request) -> web.Response:
        """POST: the prompt that a body would make, with its tokens; nothing is generated."""
        request_body = await body_of(request, _Render)
        body = bytes(request_body.body)
        head = await self._manager.bodies.admit(body)
        tokens = tokens_of(self._manager.get(request_body.model))
        prompt = await tokens.rendered(HttpPayload(request_body.endpoint, body, head=head))
        return answer({**prompt._asdict(), "tokens": len(prompt.ids)})

    async def tokens(self, request: web.Request) -> web.Response:
        """POST: the tokens of a text, which may be a rendered prompt: nothing is added to it."""
        request_body = await body_of(request, _Tokens)
        body = msgspec.json.encode(
            {"prompt": request_body.text, "add_special_tokens": False, "return_token_strs": True}
        )
        head = await self._manager.bodies.admit(body)
        tokenized = await tokens_of(self._manager.get(request_body.model)).tokenize(body, head.large)
        decoded = msgspec.json.decode(tokenized.body)
        return answer({"ids": decoded["tokens"], "pieces": decoded["token_strs"]})

    async def graph(self, request: web.Request) -> web.Response:
        return answer(await self._graphs.get(request.match_info["name"]))

    async def check(self, request: web.Request) -> web.Response:
        request_body = await body_of(request, _Check)
        return answer({"diagnostics": await self._graphs.check(request_body.name, request_body.text)})

    async def apply(self, request: web.Request) -> web.Response:
        """PUT with `If-Match`: 412 if the file is not the one that was edited."""
        expected = request.headers.get("If-Match", "").strip('"')
        if not expected:
            raise InvalidArgument.at("If-Match", "required, the hash of the text that was edited")
        request_body = await body_of(request, _Apply)
        try:
            return answer(await self._graphs.apply(request.match_info["name"], request_body.text, expected))
        except Changed as exc:
            return answer({"error": {"message": str(exc), "code": "changed"}}, CONFLICT_STATUS)

    async def live(self, request: web.Request) -> web.StreamResponse:
        """GET: an event each half second with the counters of a graph, which is counted meanwhile."""
        name = request.match_info["name"]
        if not caller().may_use(name):
            raise ModelNotFound(f"model {name!r} is not known", param="model")
        self._manager.entries.entry(name)
        return await stream(request, self._at_work(name))

    async def _at_work(self, name: str) -> AsyncGenerator[Any]:
        admin = caller().rights.admin  # others would see what requests of other keys carried
        with self._watches.viewing(name) as watch:
            while True:
                self._watches.attach()  # to the graph that a reload has brought
                try:
                    entry = self._manager.entries.entry(name)
                except OvserveError:
                    return
                yield {
                    "at": asyncio.get_running_loop().time(),
                    "revision": entry.revision,
                    **_of_servable(entry.servable, admin=admin),
                    **watch.snapshot(),
                    **({"packets": watch.packets()} if admin else {}),
                }
                await asyncio.sleep(LIVE_SECONDS)

    async def server(self, request: web.Request) -> web.Response:
        return answer(await asyncio.to_thread(server_info, self._manager, self._guard, self._options))

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """GET: an event per change, with the lines since the one before."""
        return await stream(request, self._lines(integer(request.query.get("after"), "after")))

    async def _lines(self, number: int) -> AsyncGenerator[Any]:
        while True:
            if lines := self._logs.since(number):
                number = lines[-1]["number"]
                yield {"lines": lines}
            while not await heard(self._logs.wait(number)):
                yield None


def _state(status: ServableStatus, otherwise: str) -> str:
    if status.failed:
        return "FAILED"
    return "RESTARTING" if status.error_code == "UNAVAILABLE" else otherwise


def _of_servable(servable: Servable | None, *, admin: bool) -> dict[str, Any]:
    """Return what runs, the state of each engine by its side packet, and the last error of each node."""
    if servable is None:
        return {"running": 0, "engines": {}, "errors": {}}
    return {
        "running": servable.running,
        "engines": {packet: engine.state.name for packet, engine in servable.engines.items()},
        "errors": servable.graph.watched.errors if admin else {},
    }

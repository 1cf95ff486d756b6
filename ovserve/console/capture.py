"""A capture: what requests carried and what each node made of it, for a few minutes and in memory only.

An administrator starts it, or --console_capture on does. It keeps the packets of the streams in a readable
form: the body, the rendered prompt, what the engine returned, what the parser made of it, and the answer. The
oldest requests go when 64 MiB are reached, and everything goes when it is cleared or the server stops.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from ovserve.access import Caller, RequestContext, current_request
from ovserve.access.caller import check_host, check_site
from ovserve.api.kserve.tensor import Tensor
from ovserve.api.openai.realtime import packets as realtime
from ovserve.api.openai.realtime.packets import Answer, Transcript
from ovserve.errors import InvalidArgument, UnsupportedMediaType
from ovserve.graph.streams import Stream
from ovserve.kinds.payload import HttpPayload, HttpResponse
from ovserve.llm.audio import SAMPLE_BYTES, SAMPLES_PER_SECOND
from ovserve.llm.output import Parsed
from ovserve.llm.request import Delta, GenerateRequest
from ovserve.log import request_id
from ovserve.serving.manager import Manager

MAX_RECORDED_CHARACTERS = 64 << 20  # characters of all records
MOST_OF_ONE = 8 << 20
ENTRY_COST_CHARACTERS = 200  # characters that an entry costs besides its text
LONGEST_TEXT = 4 << 20


@dataclass
class Record:
    """One request. `entries` are the packets in their order; `cut` says that later ones are missing."""

    call: RequestContext
    model: str
    at: float
    entries: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0
    cut: bool = False

    def body(self) -> dict[str, Any]:
        return {"model": self.model, "at": self.at, "cut": self.cut, "entries": self.entries}


class Capture:
    """Records of runs that began since it started. `until` is `time.time()`; it ends by `active`."""

    def __init__(self) -> None:
        self.until = 0.0
        self.size = 0
        # Clients choose ids, so a record is found by id and key: no key reads what another sent.
        self.records: OrderedDict[tuple[str, Caller], Record] = OrderedDict()
        self._runs: WeakKeyDictionary[object, Record] = WeakKeyDictionary()

    @property
    def active(self) -> bool:
        return time.time() < self.until

    def clear(self) -> None:
        self.records.clear()
        self._runs.clear()
        self.size = 0

    def begin(self, run: object, model: str) -> None:
        if not self.active:
            return
        call = current_request()
        key = request_id.get(), call.caller
        record = self.records.pop(key, None)
        if record is not None and record.call is not call:  # the id of an earlier request is used again
            self.size -= record.size
            record = None
        if record is None:  # else an engine ended, and this is the second run of one request
            record = Record(call, model, time.time())
        self.records[key] = self._runs[run] = record

    def of(self, id_: str, owner: Caller) -> Record | None:
        return self.records.get((id_, owner))

    def end(self, run: object) -> None:
        self._runs.pop(run, None)

    def packet(self, run: object, stream: str, value: Any) -> None:
        record = self._runs.get(run)
        if record is None or record.cut:
            return
        entry = {"t": time.monotonic() - record.call.started, "stream": stream, **describe(value)}
        cost = ENTRY_COST_CHARACTERS + len(entry.get("text", "")) + sum(map(len, entry.get("prompts", ())))
        if record.size + cost > MOST_OF_ONE:
            record.cut = True
            return
        record.entries.append(entry)
        record.size += cost
        self.size += cost
        while self.size > MAX_RECORDED_CHARACTERS and len(self.records) > 1:
            _, oldest = self.records.popitem(last=False)
            oldest.cut = True  # it may still run
            self.size -= oldest.size


def describe(value: Any) -> dict[str, Any]:
    """Return what a packet holds: its `kind`, and what of it a person reads."""
    if isinstance(value, HttpPayload):
        return {"kind": "body", "endpoint": value.endpoint, "text": _text(value.body)}
    if isinstance(value, GenerateRequest):
        return _generate(value)
    if isinstance(value, Delta):
        return {"kind": "delta", **_set(value)}
    if isinstance(value, Parsed):
        parts = [[type(part).__name__, _set(part)] for part in value.parts]
        return {"kind": "parsed", **_set(value), "parts": parts}
    if isinstance(value, HttpResponse):
        return {"kind": "answer", "text": _text(value.body), "headers": dict(value.headers)}
    if isinstance(value, bytes | str):
        return {"kind": "answer", "text": _text(value)}
    if isinstance(value, Answer | Transcript):
        return {"kind": "value", "text": value.text}
    return {"kind": "value", "text": type(value).__name__ if value is not True else "true"}


def _generate(request: GenerateRequest) -> dict[str, Any]:
    prompts = [p[:LONGEST_TEXT] if isinstance(p, str) else " ".join(map(str, p)) for p in request.prompts]
    sampling = msgspec.to_builtins(msgspec.structs.replace(request.sampling, constraint=None))
    return {"kind": "prompt", "prompts": prompts, "sampling": sampling, "images": len(request.images)}


def _set(value: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct that differ from their defaults."""
    fields: dict[str, Any] = {}
    for one in msgspec.structs.fields(value):
        content = getattr(value, one.name)
        if content != one.default and one.name != "parts":
            fields[one.name] = msgspec.to_builtins(content)
    return fields


def _text(data: bytes | str) -> str:
    part = data[:LONGEST_TEXT]
    return part if isinstance(part, str) else part.decode("utf-8", "replace")


# The common part of all calls under /console/api/: who may make them, the JSON body, the JSON or streamed
# answer.


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PING_SECONDS = 15.0  # of silence in a stream
SETTLE_SECONDS = 0.2  # so that many changes make few events


class Access(msgspec.Struct, frozen=True):
    """The clients that the calls answer. `names` are host names the server listens on."""

    keys_required: Callable[[], bool]
    names: tuple[str, ...] = ()

    def protect(self, handler: Handler, *, admin: bool = False) -> Handler:
        """Return the handler for requests of this server's own pages; with `admin`, for callers with that
        right."""

        async def protected(request: web.Request) -> web.StreamResponse:
            check_site(request.headers)
            if not self.keys_required():
                check_host(request.headers, self.names)
            if admin:
                current_request().caller.require_admin()
            if request.method in ("POST", "PUT") and request.content_type != "application/json":
                raise UnsupportedMediaType(
                    f"content-type: expected application/json, got {request.content_type}"
                )
            if "Content-Encoding" in request.headers:
                raise UnsupportedMediaType("content-encoding: bodies of the console have none")
            return await handler(request)

        return protected


def caller() -> Caller:
    return current_request().caller


async def body_of(request: web.Request, type_: type[T]) -> T:
    """Return the body as `type_`. Raises InvalidArgument naming the field."""
    try:
        return msgspec.json.decode(await request.read(), type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"the body: {exc}") from None


def answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=HEADERS
    )


async def stream(request: web.Request, events: AsyncGenerator[Any]) -> web.StreamResponse:
    """Send each value as a server-sent event until the client leaves. None is sent as a comment."""
    response = web.StreamResponse(headers={**HEADERS, "X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    await response.prepare(request)
    async with aclosing(events):  # what it holds is given back as soon as the client leaves
        async for event in events:
            line = b": ping" if event is None else b"data: " + msgspec.json.encode(event)
            await response.write(line + b"\n\n")
    await response.write_eof()
    return response


async def heard(waiting: Coroutine[Any, Any, None]) -> bool:
    """Wait for it, 15 seconds at most; return whether it came."""
    try:
        async with asyncio.timeout(PING_SECONDS):
            await waiting
            await asyncio.sleep(SETTLE_SECONDS)
    except TimeoutError:
        return False
    return True


def integer(text: str | None, name: str) -> int:
    """Return a number of the query, 0 if it has none. Raises InvalidArgument."""
    try:
        return 0 if text is None else int(json.loads(text))
    except (ValueError, TypeError):
        raise InvalidArgument.expected(name, "a number", text) from None


# Count what nodes and streams of a graph do, while it is watched or a capture runs.
#
# A `GraphWatch` is put into the slot of the graph that serves a name, and into the next one's after a reload.
# Its counters only grow; who shows them takes differences.
#
# Captures show a packet in a few words: its sizes without what a client wrote, and an excerpt of its text.


EXCERPT_CHARACTERS = 300  # characters


def summary(value: Any) -> str:
    """Return the sizes of a packet. It holds nothing of its content."""
    if isinstance(value, HttpPayload):
        return f"{value.endpoint}, {len(value.body)} bytes"
    if isinstance(value, GenerateRequest):
        return _request(value)
    if isinstance(value, Delta):
        return _delta(value)
    if isinstance(value, Parsed):
        return ", ".join(type(part).__name__ for part in value.parts) or "no part"
    if isinstance(value, HttpResponse):
        return f"{len(value.body)} bytes of {value.content_type}"
    if isinstance(value, bytes | str):
        return f"{len(value)} {'bytes' if isinstance(value, bytes) else 'characters'}"
    if isinstance(value, Tensor):
        return f"{value.datatype} {list(value.shape)}"
    words = REALTIME.get(type(value))
    return words(value) if words is not None else ""


REALTIME: dict[type, Callable[[Any], str]] = {
    realtime.Sound: lambda v: f"{len(v.audio) // SAMPLE_BYTES} samples",
    realtime.Activity: lambda v: (
        f"{len(v.probabilities)} frames, speech {max(v.probabilities, default=0):.2f}"
    ),
    realtime.Utterance: lambda v: f"{len(v.audio) / SAMPLE_BYTES / SAMPLES_PER_SECOND:.1f} s",
    realtime.Transcript: lambda v: f"{len(v.text)} characters",
    realtime.Prompt: lambda v: f"{len(v.messages)} messages",
    realtime.Answer: lambda v: f"{len(v.text)} characters, {len(v.audio)} bytes of audio",
}


def _request(value: GenerateRequest) -> str:
    tokens = value.sampling.max_tokens
    parts = [f"prompt of {len(p)} {'characters' if isinstance(p, str) else 'ids'}" for p in value.prompts[:3]]
    parts += [f"{len(value.images)} images"] if value.images else []
    return ", ".join([*parts, f"max_tokens {tokens}" if tokens is not None else "max_tokens not set"])


def _delta(value: Delta) -> str:
    parts = [f"admission of {value.prompt_tokens} tokens"] if value.prompt_tokens else []
    parts += [f"{value.tokens} token{'' if value.tokens == 1 else 's'}"] if value.tokens else []
    return ", ".join([*parts, *([value.finish_reason] if value.finish_reason else [])])


def excerpt(value: Any) -> str:
    """Return the beginning of what a person reads of a packet."""
    description = describe(value)
    if "parts" in description:
        return "".join(part.get("text", "") for _, part in description["parts"])[:EXCERPT_CHARACTERS]
    return str(description.get("text") or " ".join(description.get("prompts", ())))[:EXCERPT_CHARACTERS]


LEAST_SECONDS = 1e-6  # the upper bound of the first bucket of call times
BUCKET_GROWTH = math.log(1.2)  # a percentile is read to a tenth; a call of an hour is in bucket 121


@dataclass(slots=True)
class NodeCount:
    calls: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    errors: int = 0
    buckets: Counter[int] = field(default_factory=Counter)  # calls by their time; bucket n ends at 1.2**n us

    def called(self, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        at = math.log(seconds / LEAST_SECONDS) / BUCKET_GROWTH if seconds > LEAST_SECONDS else 0.0
        self.buckets[math.ceil(at)] += 1


@dataclass(slots=True)
class StreamCount:
    packets: int = 0
    longest: int = 0  # packets in the fullest of its queues
    last: Any = None  # the newest packet, for its summary
    at: float = 0.0  # when it went by, `time.monotonic()`


@dataclass
class GraphWatch:
    """A `Tap` of one name. With a `capture`, it passes runs and packets on."""

    name: str
    capture: Capture | None = None
    viewers: int = 0
    nodes: dict[str, NodeCount] = field(default_factory=dict)
    streams: dict[str, StreamCount] = field(default_factory=dict)

    def started(self, run: object) -> None:
        if self.capture is not None:
            self.capture.begin(run, self.name)

    def ended(self, run: object) -> None:
        if self.capture is not None:
            self.capture.end(run)

    def packet(self, stream: Stream, timestamp: int, value: Any) -> None:
        count = self.streams.get(stream.name)
        if count is None:
            count = self.streams[stream.name] = StreamCount()
        count.packets += 1
        count.last, count.at = value, time.monotonic()
        for queue in stream.queues:
            if len(queue.packets) >= count.longest and not queue.swallow:
                count.longest = len(queue.packets) + 1
        if self.capture is not None:
            self.capture.packet(stream.run, stream.name, value)

    def called(self, node: str, seconds: float) -> None:
        self._node(node).called(seconds)

    def failed(self, run: object, node: str) -> None:
        self._node(node).errors += 1

    def _node(self, name: str) -> NodeCount:
        count = self.nodes.get(name)
        if count is None:
            count = self.nodes[name] = NodeCount()
        return count

    def snapshot(self) -> dict[str, Any]:
        return {
            "nodes": {
                n: [c.calls, c.seconds, c.longest, c.errors, dict(c.buckets)] for n, c in self.nodes.items()
            },
            "streams": {n: [c.packets, c.longest] for n, c in self.streams.items()},
        }

    def forget(self) -> None:
        """Let go of the packets that are kept for their summary."""
        for count in self.streams.values():
            count.last = None

    def packets(self) -> dict[str, Any]:
        """Return the last packet of each stream: its type, sizes and age, and its text while a capture
        runs."""
        now = time.monotonic()
        return {
            name: {
                "type": type(count.last).__name__,
                "summary": summary(count.last),
                "age": now - count.at,
                "text": excerpt(count.last) if self.capture is not None else None,
            }
            for name, count in self.streams.items()
            if count.last is not None  # forgotten while there was no viewer
        }


class Watches:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._watches: dict[str, GraphWatch] = {}
        self.capture: Capture | None = None

    def attach(self) -> None:
        """Put each watch that is wanted into the graph that serves its name now, and take out the others."""
        for servable in self._manager.servables:
            watch = self._watches.get(servable.name)
            if watch is None and self.capture is not None:
                watch = self._watches[servable.name] = GraphWatch(servable.name)
            if watch is None:
                continue
            watch.capture = self.capture
            is_needed = watch.viewers or watch.capture is not None
            if not watch.viewers:
                watch.forget()
            servable.graph.watched.tap = watch if is_needed else None
        for name in [n for n, w in self._watches.items() if not w.viewers and w.capture is None]:
            del self._watches[name]

    @contextmanager
    def viewing(self, name: str) -> Iterator[GraphWatch]:
        """Inside, the graph of this name is counted."""
        watch = self._watches.setdefault(name, GraphWatch(name))
        watch.viewers += 1
        try:
            self.attach()
            yield watch
        finally:
            watch.viewers -= 1
            self.attach()

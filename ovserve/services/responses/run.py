"""A running response: its fold, its events as bytes, its followers, and how it ends early. And the reply that
carries the events to a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ovserve.access import current_request
from ovserve.api.openai.responses.encoder import EventEncoder
from ovserve.api.openai.responses.fold import ResponseFold
from ovserve.api.openai.responses.objects import Failure, ResponseEvent, ResponseEvents
from ovserve.api.openai.responses.replay import resume
from ovserve.errors import InvalidArgument, NodeError, OvserveError, for_log
from ovserve.kinds.payload import HttpResponse
from ovserve.services.responses.mcp_answer import McpAnswer
from ovserve.serving.servable import GraphResponse


class Run:
    """`first` is the packet with which the graph began to answer; `received` takes it like any other."""

    def __init__(self, first: ResponseEvents, owner: str, *, keeps: bool) -> None:
        self.fold, self.owner, self._keeps = ResponseFold(first), owner, keeps
        self._encoder = EventEncoder()
        self.id = self.fold.response.id
        self.task: asyncio.Task[Any] | None = None  # of a background response
        self.cancelled = False  # by POST cancel, as opposed to a server that stops
        self.ended = False
        self.deleted = False  # not to be stored at its end
        self.stored = False  # while it runs
        self._chunks: list[bytes] = []
        self.written = 0  # chunks that are in the store already
        self._news = asyncio.Event()

    @property
    def background(self) -> bool:
        return self.fold.response.background

    @property
    def log(self) -> bytes:
        return b"".join(self._chunks)

    def unwritten(self) -> tuple[bytes, int]:
        """Return the events that are not stored yet, and the value of `written` once they are."""
        return b"".join(self._chunks[self.written :]), len(self._chunks)

    def received(self, packet: ResponseEvents) -> bytes:
        """Fold a packet of the graph; return its events for the client."""
        self.fold.usage = packet.usage
        return self._add(packet.events)

    def fail(self, error: Failure) -> bytes:
        """End the response as failed, unless it has ended; return the events of that."""
        return self._add(self.fold.end_early("failed", error))

    def cancel(self) -> bytes:
        """Like `fail`, for a response that was cancelled."""
        return self._add(self.fold.end_early("cancelled"))

    def _add(self, events: Iterable[ResponseEvent]) -> bytes:
        out = b""
        for event in events:
            self.fold.apply(event)
            out += self._encoder.encode(event, self.fold.response)
        if self._keeps and out:
            self._chunks.append(out)
            self._wake()
        return out

    def end(self) -> None:
        """Nothing follows: let the followers go."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, after: int | None = None) -> AsyncIterator[bytes]:
        """The events after number `after`, those to come included."""
        num_sent = 0
        skip = -1 if after is None else after
        while True:
            news = self._news
            fresh = b"".join(self._chunks[num_sent:])
            num_sent = len(self._chunks)
            if fresh and skip >= 0:
                here = fresh.count(b"\n\n")
                fresh, skip = (resume(fresh, skip) if skip < here else b""), skip - here
            if fresh:
                yield fresh
            elif self.ended and num_sent == len(self._chunks):
                return
            else:
                await news.wait()


@dataclass(frozen=True)
class ResponseReply:
    """`body`, or `events` to stream. `content_type` differs only for graphs that write their own answers."""

    body: bytes = b""
    events: AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


HIDDEN = "internal error; see the server's log"

log = logging.getLogger(__name__)


async def fold_all(answer: GraphResponse | McpAnswer, first: ResponseEvents) -> ResponseFold:
    """The whole response: what its events add up to."""
    fold = ResponseFold(first)
    fold.add(first)
    while (packet := await answer.next_events()) is not None:
        fold.add(packet)
    return fold


async def stream_of(
    run: Run, answer: GraphResponse | McpAnswer, first: ResponseEvents
) -> AsyncIterator[bytes]:
    """A foreground stream. It ends with response.failed if the graph fails."""
    yield run.received(first)
    try:
        while (packet := await answer.next_events()) is not None:
            yield run.received(packet)
    except OvserveError as exc:
        current_request().failure = exc
        yield run.fail(failure_of(exc))


def failure_of(error: OvserveError) -> Failure:
    """Log an error that ends a response; return what its client sees of it, without internal details."""
    ours = error.kind == "internal"
    log.log(
        logging.ERROR if ours else logging.WARNING,
        "a response failed: %s",
        error,
        exc_info=for_log(error) if ours else None,
    )
    code = "invalid_prompt" if isinstance(error, InvalidArgument) else "server_error"
    return Failure(code, HIDDEN if isinstance(error, NodeError) and ours else str(error))


async def through(answer: GraphResponse | McpAnswer, first: HttpResponse) -> AsyncIterator[bytes]:
    """The stream of a graph that writes its own responses."""
    yield first.body
    while (chunk := await answer.next()) is not None:
        yield chunk


async def one(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk

"""A running response: its fold, its events as bytes, its followers, and how it ends early. And the reply that
carries the events to a client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ovserve.access import current_request
from ovserve.api.openai.responses.encoder import EventEncoder
from ovserve.api.openai.responses.fold import ResponseFold
from ovserve.api.openai.responses.objects import Failure, ResponseEvent, ResponseEvents
from ovserve.api.openai.responses.replay import failed, lost, resume
from ovserve.errors import InvalidArgument, NodeError, NotFound, OvserveError, Unavailable, for_log
from ovserve.kinds.payload import HttpResponse
from ovserve.services.responses.input import ResolvedRequest, read_stored
from ovserve.services.responses.mcp_answer import McpAnswer
from ovserve.services.responses.store import Record, ResponseStore, StoreError
from ovserve.serving.servable import GraphResponse

log = logging.getLogger(__name__)


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


async def fold_all(answer: GraphResponse | McpAnswer, first: ResponseEvents) -> ResponseFold:
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


# Stored responses: what the service reads from its store and writes to it.
#
# A store that cannot be read is Unavailable; one that cannot be written never fails an answer.
#
# Cancel a background response that another server on the same store generates.
#
# The request is a row in the store. The server that runs the response looks for such rows with each
# checkpoint (`service.py`), ends the response and writes how it ended, which is read here.


LOOK_SECONDS = 0.2
MOST_SECONDS = 10.0  # several checkpoints of the other server


async def cancel_elsewhere(store: ResponseStore, record: Record) -> Record | None:
    """The response as it ended; None if it was deleted meanwhile. Raises Unavailable, StoreError."""
    await store.request_cancel(record.owner, record.id)
    deadline = time.monotonic() + MOST_SECONDS
    current: Record | None = record
    while current is not None and current.server:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"response {record.id!r} runs on another server, which has not cancelled it yet",
                retry_after=1.0,
            )
        await asyncio.sleep(LOOK_SECONDS)
        current = await store.get(record.owner, record.id)
    return current


SERVER_GONE = "the server ended while this response was being generated"
END_LOST = "the end of this response could not be stored"


class StoredResponses:
    """`store` None: nothing is stored, and reading is a 404. `running`: ids of this server's runs."""

    def __init__(self, store: ResponseStore | None, running: Container[str]) -> None:
        self.store, self._running = store, running

    async def get(self, owner: str, id_: str) -> Record:
        """Return a response; one whose server died has failed. Raises NotFound, Unavailable."""
        store = self._required()
        record = await read_stored(store.get(owner, id_))
        if record is not None and record.server:  # another server's, or it has ended since
            if record.server != store.instance:
                await self.fail_orphans()
            record = await read_stored(store.get(owner, id_))
        if record is None:
            raise unknown(id_)
        if record.server == store.instance and id_ not in self._running:
            record = replace(record, server="", body=failed(record.body, END_LOST))
        return record

    async def end(self, record: Record) -> Record:
        """Return a background response as it ended; one that runs on another server is cancelled there."""
        if not record.server:
            return record
        current = await read_stored(cancel_elsewhere(self._required(), record))
        if current is None:
            raise unknown(record.id)
        return current

    async def delete(self, owner: str, id_: str) -> bool:
        """Delete a response; return whether there was one. Raises NotFound, Unavailable."""
        return await read_stored(self._required().delete(owner, id_))

    async def save(
        self, request: ResolvedRequest, fold: ResponseFold, ended: Run | None = None
    ) -> str | None:
        """Write a response as it is now, unless it was deleted while it ran.

        Returns None, or why that failed.
        """
        assert self.store is not None, "requests that store are rejected without a store"
        assert fold.input is not None, "the graph sends it for a response that is stored"
        record = Record(
            id=fold.response.id,
            owner=request.owner,
            created=fold.response.created_at,
            server="" if fold.ended else self.store.instance,
            previous=request.previous,
            body=fold.snapshot(),
            input=fold.input.json,
            log=ended.log if ended else None,
        )
        try:
            ids = [*fold.input.ids, *(item.id for item in fold.response.output)]
            await self.store.put(record, ids, again=ended is not None and ended.stored)
        except StoreError as exc:
            log.error("response %s is not stored: %s", record.id, exc)
            return "the response store failed"
        return None

    async def fail_orphans(self) -> None:
        """Write that the responses of servers that died have failed. A store that fails is tried later."""
        if self.store is None:
            return
        try:
            for record in await self.store.orphans():
                body, events = lost(record.body, record.log, SERVER_GONE)
                await self.store.put(replace(record, server="", body=body, log=events))
        except StoreError as exc:
            log.error("the response store cannot be used: %s", exc)

    def _required(self) -> ResponseStore:
        if self.store is None:
            raise NotFound("this server keeps no responses (--response_store off)")
        return self.store


class _Background(msgspec.Struct):
    background: bool


def is_background(record: Record) -> bool:
    return msgspec.json.decode(record.body, type=_Background).background


def require_background(id_: str, background: bool) -> None:
    """Raises InvalidArgument for a response that ends with its client's connection."""
    if not background:
        raise InvalidArgument(
            f"response {id_!r} was not created with background: true; close its connection to cancel it",
            param="response_id",
        )


def unknown(id_: str) -> NotFound:
    return NotFound(f"response {id_!r} not found", param="response_id")

"""The Responses API as a service, with stored conversations. `http/routes/responses.py` uses it.

A graph is stateless: this service gives it the stored conversation in the payload's context, and keeps what
comes out. A foreground answer runs in its client's task and ends with it; a background one runs in
a task of its own, held here. What the store cannot do never fails an answer: it is served, logged, and its
header says that it is not stored. Only a background answer needs the store, since it is read from there.

Every method takes the `owner`, the name behind the API key: nobody sees what belongs to another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
from msgspec import Raw

from ovserve.api.openai.common import encode
from ovserve.api.openai.responses.operations import Deleted
from ovserve.api.openai.responses.replay import failed, lost, replay
from ovserve.api.openai.responses.writer import ResponseWriter, Started
from ovserve.calculators.payload import HttpResponse
from ovserve.errors import Internal, InvalidArgument, NotFound, OvserveError, Unavailable
from ovserve.responses.checkpoint import Checkpoints
from ovserve.responses.elsewhere import cancel_elsewhere
from ovserve.responses.input import ResolvedRequest, prepare
from ovserve.responses.queries import check_page, count_tokens, page_of
from ovserve.responses.run import Run
from ovserve.responses.store import Record, ResponseStore, StoreError
from ovserve.responses.streams import last_words, one, stream_of, through
from ovserve.responses.truncation import start_fitting
from ovserve.sandbox.bodies import Head
from ovserve.serving.manager import Manager
from ovserve.serving.servable import GraphResponse
from ovserve.serving.tokens import TokenizeResult

NOT_STORED = "x-ovserve-not-stored"
CLAMPED = "x-ovserve-clamped"
TRUNCATED = "x-ovserve-truncated"
STORE_SECONDS = 0.5  # a disk that takes longer is not waited for
SERVER_GONE = "the server ended while this response was being generated"
END_LOST = "the end of this response could not be stored"
SERVER_STOPPED = "the server was stopped while this response was being generated"

KEPT = 256  # background responses held in memory because the store failed at their end

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResponseReply:
    """`body`, or `events` to stream. `content_type` is another one only for graphs of others' making."""

    body: bytes = b""
    events: AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


# What a background response's task tells its creator: the run, the headers, the object to answer with.
Beginning = asyncio.Future[tuple[Run, dict[str, str], bytes]]


class ResponsesService:
    """`store` None: nothing is kept (the operator switched it off)."""

    def __init__(self, manager: Manager, store: ResponseStore | None) -> None:
        self._manager, self._store = manager, store
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._saving: set[asyncio.Task[str | None]] = set()
        self._checkpoints = Checkpoints(store, self._runs, self._end) if store is not None else None

    async def start(self) -> None:
        """Tell the responses of a server that died how they ended. A store that fails here is tried later."""
        await self._bury()
        if self._checkpoints is not None:
            self._checkpoints.start()

    async def stop(self) -> None:
        """End the background responses; they have failed by that."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._checkpoints is not None:
            await self._checkpoints.stop()

    async def close(self) -> None:
        """Wait until everything is written. Nothing may be running any more."""
        while self._saving:
            await asyncio.wait(self._saving)
        if self._store is not None:
            await self._store.close()

    # -- POST responses

    @asynccontextmanager
    async def create(
        self, owner: str, body: bytes, headers: Mapping[str, str], head: Head
    ) -> AsyncIterator[ResponseReply]:
        """Leaving the block ends a foreground answer. Raises OvserveError before anything is answered."""
        asked = await prepare(owner, body, self._store, self._manager.bodies, head)
        if asked.background:
            yield await self._create_background(asked, headers)
            return
        async with self._answer(asked, headers) as (answer, first, notes):
            if not isinstance(first.body, Started):  # a graph with a writer of its own: not ours to keep
                if asked.store:
                    notes[NOT_STORED] = "this graph writes its own responses"
                events = through(answer, first) if first.more else None
                yield ResponseReply(first.body, events, notes, first.content_type)
            elif not asked.stream:
                yield await self._whole(asked, answer, first.body, notes)
            else:
                run = Run(first.body.writer, asked.owner, keeps=asked.store)
                try:
                    await self._begin(asked, run, notes)
                    yield ResponseReply(events=stream_of(run, answer, first.body), headers=notes)
                finally:  # also when the client leaves in the middle, or before the first event
                    run.add(run.writer.cancel())
                    self._done(asked, run)

    async def count(self, owner: str, body: bytes, head: Head) -> TokenizeResult:
        """How many tokens the prompt of such a response has."""
        return await count_tokens(self._manager, self._store, owner, body, head)

    @asynccontextmanager
    async def _answer(
        self, asked: ResolvedRequest, headers: Mapping[str, str]
    ) -> AsyncIterator[tuple[GraphResponse, HttpResponse, dict[str, str]]]:
        servable = self._manager.get(asked.model)

        def start(history: list[Raw] | None, input_: list[Raw] | None) -> GraphResponse:
            return servable.start(asked.payload(headers, history, input_))

        with servable.lease():
            async with start_fitting(start, asked) as (answer, first, dropped):
                notes = dict(first.headers)
                if CLAMPED in notes:
                    notes[CLAMPED] = notes[CLAMPED].replace("max_tokens", "max_output_tokens")
                if dropped:
                    notes[TRUNCATED] = f"items={dropped}"
                yield answer, first, notes

    async def _whole(
        self, asked: ResolvedRequest, answer: GraphResponse, first: Started, notes: dict[str, str]
    ) -> ResponseReply:
        whole = bytes(first)
        while (piece := await answer.next()) is not None:
            whole += piece
        if asked.store and (why := await self._within(self._save(asked, first.writer))):
            first.writer.response.store = False
            whole, notes[NOT_STORED] = first.writer.snapshot(), why
        return ResponseReply(whole, headers=notes)

    async def _begin(self, asked: ResolvedRequest, run: Run, notes: dict[str, str]) -> None:
        """Make a stream known before its first event: to the store, so that a crash leaves a trace of it."""
        if asked.store:
            self._runs[run.id] = run
            if why := await self._within(self._first_save(asked, run)):
                notes[NOT_STORED] = why

    async def _first_save(self, asked: ResolvedRequest, run: Run) -> str | None:
        why = await self._save(asked, run.writer)
        run.stored = why is None
        return why

    def _done(self, asked: ResolvedRequest, run: Run) -> None:
        """The response has ended: let followers go, and keep it."""
        run.end()
        if asked.store and not run.deleted:
            saving = asyncio.create_task(self._save(asked, run.writer, run))
            self._saving.add(saving)
            saving.add_done_callback(lambda task: self._saved(run, task))

    def _saved(self, run: Run, task: asyncio.Task[str | None]) -> None:
        self._saving.discard(task)
        if task.result() is None or not run.background:
            self._runs.pop(run.id, None)
            return
        # Its client was promised to find it here: keep it as long as there are few of them.
        kept = [id_ for id_, other in self._runs.items() if other.ended]
        for id_ in kept[:-KEPT]:
            del self._runs[id_]

    # -- background

    async def _create_background(self, asked: ResolvedRequest, headers: Mapping[str, str]) -> ResponseReply:
        started: Beginning = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._background(asked, headers, started))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            run, notes, body = await asyncio.shield(started)
        except asyncio.CancelledError:
            if not started.done():
                task.cancel()  # nobody was told its id
            raise
        run.task = task
        return (
            ResponseReply(events=run.follow(), headers=notes)
            if asked.stream
            else ResponseReply(body, headers=notes)
        )

    async def _background(
        self, asked: ResolvedRequest, headers: Mapping[str, str], started: Beginning
    ) -> None:
        run: Run | None = None
        error: OvserveError = Internal("unexpected end")
        try:
            async with self._answer(asked, headers) as (answer, first, notes):
                if not isinstance(first.body, Started):
                    raise InvalidArgument(
                        "background: this graph writes its own responses", param="background"
                    )
                begun = Run(first.body.writer, asked.owner, keeps=True)
                if why := await self._first_save(asked, begun):
                    raise Unavailable(f"background: the response cannot be kept: {why}")
                run = self._runs[begun.id] = begun
                run.received(first.body)
                started.set_result((run, notes, run.writer.snapshot()))
                while (piece := await answer.next()) is not None:
                    run.received(piece)
        except OvserveError as exc:
            error = exc
        except asyncio.CancelledError:
            error = Unavailable(SERVER_STOPPED)
        finally:
            if run is None:
                if not started.cancelled():
                    started.set_exception(error)
            else:
                if run.writer.ended or run.cancelled:
                    run.add(run.writer.cancel())
                else:
                    run.add(last_words(run.writer, error))
                self._done(asked, run)

    # -- the other verbs

    async def get(self, owner: str, id_: str) -> bytes:
        run = self._run(owner, id_)
        return run.writer.snapshot() if run else (await self._stored(owner, id_)).body

    async def stream(self, owner: str, id_: str, after: int | None) -> AsyncIterator[bytes]:
        """Its events after number `after`; a running response is followed to its end."""
        if run := self._run(owner, id_):
            return run.follow(after)
        record = await self._stored(owner, id_)
        if record.server:
            raise InvalidArgument(f"response {id_!r} runs on another server; ask that one", param="stream")
        return one(replay(record.body, record.log, after, SERVER_GONE))

    async def delete(self, owner: str, id_: str) -> bytes:
        if run := self._run(owner, id_):
            run.deleted = True
            await self._end(run)
        elif _is_background(record := await self._stored(owner, id_)):
            await self._ended(record)  # or its server would write it again at its end
        if not await self._ask(self._required().delete(owner, id_)) and run is None:
            raise _unknown(id_)
        self._runs.pop(id_, None)
        return encode(Deleted(id_))

    async def cancel(self, owner: str, id_: str) -> bytes:
        """The response as it then is; one that has ended stays as it ended."""
        run = self._run(owner, id_)
        if run is None:
            record = await self._stored(owner, id_)
            _require_background(record.id, _is_background(record))
            return (await self._ended(record)).body
        _require_background(run.id, run.background)
        await self._end(run)
        return run.writer.snapshot()

    async def input_items(
        self, owner: str, id_: str, *, limit: int = 20, order: str = "desc", after: str | None = None
    ) -> bytes:
        """A page of the request's own input, as OpenAI lists it: the newest first unless order is asc."""
        check_page(limit, order)
        items = msgspec.json.decode((await self._stored(owner, id_)).input)
        return page_of(items, id_, limit, order, after)

    # -- parts

    def _run(self, owner: str, id_: str) -> Run | None:
        run = self._runs.get(id_)
        return run if run is not None and run.owner == owner else None

    async def _end(self, run: Run) -> None:
        if run.task is not None and not run.ended:
            run.cancelled = True
            run.task.cancel()
            await asyncio.wait({run.task})

    async def _ended(self, record: Record) -> Record:
        """The background response as it ended; one that runs on another server is cancelled there."""
        if not record.server:
            return record
        found = await self._ask(cancel_elsewhere(self._required(), record))
        if found is None:
            raise _unknown(record.id)
        return found

    async def _stored(self, owner: str, id_: str) -> Record:
        store = self._required()
        record = await self._ask(store.get(owner, id_))
        if record is not None and record.server:  # another server's, or it has ended since
            if record.server != store.instance:
                await self._bury()
            record = await self._ask(store.get(owner, id_))
        if record is None:
            raise _unknown(id_)
        if record.server == store.instance and id_ not in self._runs:
            record = replace(record, server="", body=failed(record.body, END_LOST))
        return record

    def _required(self) -> ResponseStore:
        if self._store is None:
            raise NotFound("this server keeps no responses (--response_store off)")
        return self._store

    async def _ask(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except StoreError as exc:
            log.error("the response store cannot be read: %s", exc)
            raise Unavailable("the response store cannot be read now") from exc

    async def _save(
        self, asked: ResolvedRequest, writer: ResponseWriter, ended: Run | None = None
    ) -> str | None:
        """Write the response as it is now, unless it was deleted while it ran; why that failed, or None."""
        assert self._store is not None
        given = writer.decoded.stored_input
        record = Record(
            id=writer.response.id,
            owner=asked.owner,
            created=writer.response.created_at,
            server="" if writer.ended else self._store.instance,
            previous=asked.previous,
            body=writer.snapshot(),
            input=given.json,
            log=ended.log if ended else None,
        )
        try:
            ids = [*given.ids, *(item.id for item in writer.response.output)]
            await self._store.put(record, ids, again=ended is not None and ended.stored)
        except StoreError as exc:
            log.error("response %s is not stored: %s", record.id, exc)
            return "the response store failed"
        return None

    async def _within(self, saving: Awaitable[str | None]) -> str | None:
        """The outcome of a save if the disk is quick; a slow one is not waited for."""
        task = asyncio.ensure_future(saving)
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)
        done, _ = await asyncio.wait({task}, timeout=STORE_SECONDS)
        return task.result() if done else None

    async def _bury(self) -> None:
        if self._store is None:
            return
        try:
            for record in await self._store.orphans():
                body, events = lost(record.body, record.log, SERVER_GONE)
                await self._store.put(replace(record, server="", body=body, log=events))
        except StoreError as exc:
            log.error("the response store cannot be used: %s", exc)


class _Background(msgspec.Struct):
    background: bool


def _is_background(record: Record) -> bool:
    return msgspec.json.decode(record.body, type=_Background).background


def _require_background(id_: str, background: bool) -> None:
    if not background:
        raise InvalidArgument(
            f"response {id_!r} was not created with background: true; close its connection to cancel it",
            param="response_id",
        )


def _unknown(id_: str) -> NotFound:
    return NotFound(f"response {id_!r} not found", param="response_id")

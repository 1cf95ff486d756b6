"""The Responses API as a service, with stored conversations. `http/routes/responses.py` uses it.

A graph is stateless: it gets the stored conversation in the payload's context, and answers with events that
this service folds and stores. A foreground response runs in its client's task and ends with it; a background
one has a task of its own. If the store fails, a response is served all the same, and a header says that it is
not stored. Only a background response needs the store, because its client reads it from there.

Every method takes the `owner`, the name behind the API key: no one sees the responses of others.

Checkpoints: the new events of running responses are stored once a second, so a kill -9 loses one second. The
same turn looks for responses that another server was asked to cancel (`run.py`). Only new events are written,
so the cost is linear in the length of the response. The store's thread writes them, so no stream waits for
the disk. After a failure the next turn tries again; the end of a response is written separately.

truncation: "auto": the oldest turns are left out until the conversation fits.

Only the engine can count tokens, so the fit is found by asking: a request that is too long is rejected before
any work, and a binary search over whole turns takes few of them. System and developer messages and tools
stay, and so does the last turn; a call and its output are in one turn, so neither is left without the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from ovserve.api.openai.body import peek_optional_model, unique_members, with_model
from ovserve.api.openai.common import encode
from ovserve.api.openai.responses.items import ADDITIONAL_TOOLS
from ovserve.api.openai.responses.objects import ResponseEvents
from ovserve.api.openai.responses.replay import replay
from ovserve.api.openai.responses.request import Deleted, ItemPage
from ovserve.errors import ContextLengthExceeded, Internal, InvalidArgument, OvserveError, Unavailable
from ovserve.kinds.payload import HttpResponse
from ovserve.sandbox.bodies import Head
from ovserve.services.responses.input import ItemHead, ResolvedRequest, own_items, prepare
from ovserve.services.responses.mcp_answer import McpAnswer, McpSession, session_of
from ovserve.services.responses.run import (
    SERVER_GONE,
    ResponseReply,
    Run,
    StoredResponses,
    failure_of,
    fold_all,
    is_background,
    one,
    require_background,
    stream_of,
    through,
    unknown,
)
from ovserve.services.responses.store import ResponseStore, StoreError
from ovserve.serving.manager import Manager
from ovserve.serving.servable import GraphResponse
from ovserve.serving.tokens import TokenizeResult, tokens_of

log = logging.getLogger(__name__)

Items = list[Raw]
# An answer to the request with so much of its history and its input; None: all of it.
Answer = GraphResponse | McpAnswer
Start = Callable[[Items | None, Items | None], Answer]


def _turns(items: list[Raw]) -> list[list[int]]:
    """Indices of what may go, by turns: each begins with a user's message. Instructions and tools stay."""
    turns: list[list[int]] = []
    for i, item in enumerate(items):
        kind = msgspec.json.decode(item, type=ItemHead)
        if kind.role in ("system", "developer") or kind.type == ADDITIONAL_TOOLS:
            continue
        if kind.role == "user" or not turns:
            turns.append([])
        turns[-1].append(i)
    return turns


@asynccontextmanager
async def start_fitting(
    start: Start, request: ResolvedRequest
) -> AsyncIterator[tuple[Answer, HttpResponse, int]]:
    """A running answer, how it begins, and how many items were left out to make it fit."""
    async with start(None, None) as answer:
        first = await _first(answer, request.truncate)
        if first is not None:
            yield answer, first, 0
            return
    past, own, dropped = await _shorten(start, request)
    async with start(past, own) as answer:
        yield answer, await answer.first(), dropped


async def _first(answer: Answer, truncate: bool) -> HttpResponse | None:
    """Return how it begins; None if it is too long and may be shortened."""
    try:
        return await answer.first()
    except ContextLengthExceeded:
        if not truncate:
            raise
        return None


async def _fits(start: Start, past: Items, own: Items) -> bool:
    async with start(past, own) as answer:
        return await _first(answer, truncate=True) is not None


async def _shorten(start: Start, request: ResolvedRequest) -> tuple[Items, Items, int]:
    own = own_items(request)
    past = list(request.context.history)
    turns = _turns([*past, *own])

    def without(count: int) -> tuple[Items, Items, int]:
        gone = {i for turn in turns[:count] for i in turn}
        kept_past = [item for i, item in enumerate(past) if i not in gone]
        kept_own = [item for i, item in enumerate(own) if i + len(past) not in gone]
        return kept_past, kept_own, len(gone)

    low, high = 1, max(len(turns) - 1, 0)
    while low < high:
        middle = (low + high) // 2
        past_left, own_left, _ = without(middle)
        if await _fits(start, past_left, own_left):
            high = middle
        else:
            low = middle + 1
    return without(high)


def page_of(items: list[dict[str, Any]], id_: str, limit: int, order: str, after: str | None) -> bytes:
    """A page of the items of response `id_`: the newest first unless order is asc. Raises InvalidArgument."""
    if order == "desc":
        items.reverse()
    if after is not None:
        at = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise InvalidArgument.at("after", f"{after!r} is not an item of response {id_!r}")
        items = items[at + 1 :]
    page = items[:limit]
    ids = [item["id"] for item in page] or [""]
    more = len(items) > limit
    return encode(ItemPage(data=page, first_id=ids[0], last_id=ids[-1], has_more=more))


RETRY_SECONDS = 1.0


class Checkpoints:
    """`runs` is read, at each turn, for what is running then. `cancel` ends one of them."""

    def __init__(
        self,
        store: ResponseStore,
        runs: Mapping[str, Run],
        cancel: Callable[[Run], Awaitable[None]],
        seconds: float = RETRY_SECONDS,
    ) -> None:
        self._store, self._runs, self._cancel, self._seconds = store, runs, cancel, seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._every_second(), name="checkpoints of responses")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _every_second(self) -> None:
        failed = False
        while True:
            await asyncio.sleep(self._seconds)
            fresh = {run: run.unwritten() for run in self._runs.values() if not run.ended}
            parts = {run.id: part for run, (part, _) in fresh.items() if part}
            if not fresh:
                continue  # nothing runs here
            try:
                if parts:
                    await self._store.append(parts)
                for id_ in await self._store.cancels():
                    if (run := self._runs.get(id_)) is not None:
                        await self._cancel(run)
            except StoreError as exc:
                if not failed:
                    log.error("running responses cannot be stored: %s", exc)
                failed = True
            else:
                failed = False
                for run, (_, length) in fresh.items():
                    run.written = length


NOT_STORED = "x-ovserve-not-stored"
CLAMPED = "x-ovserve-clamped"
TRUNCATED = "x-ovserve-truncated"
REPETITION = "x-ovserve-repetition"
STORE_SECONDS = 0.5  # a disk that takes longer is not waited for
SERVER_STOPPED = "the server was stopped while this response was being generated"
MAX_UNSTORED_RESPONSES = 256  # background responses held in memory because the store failed at their end


# A background response's task sends its creator the run, the headers, and the object to answer with.
Beginning = asyncio.Future[tuple[Run, dict[str, str], bytes]]


class ResponsesService:
    """`store` None: nothing is kept (the operator switched it off)."""

    def __init__(self, manager: Manager, store: ResponseStore | None) -> None:
        self._manager, self._store = manager, store
        self._runs: dict[str, Run] = {}
        self._stored = StoredResponses(store, self._runs)
        self._tasks: set[asyncio.Task[None]] = set()
        self._saving: set[asyncio.Task[str | None]] = set()
        self._checkpoints = Checkpoints(store, self._runs, self._end) if store is not None else None

    async def start(self) -> None:
        """Mark the responses of a server that died as failed. A store that fails here is tried later."""
        await self._stored.fail_orphans()
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
        request = await prepare(owner, body, self._store, self._manager.bodies, head)
        if request.background:
            yield await self._create_background(request, headers)
            return
        async with self._answer(request, headers) as (answer, first, notes):
            if first.events is None:  # the graph writes its own responses, so there is nothing to fold
                if request.store:
                    notes[NOT_STORED] = "this graph writes its own responses"
                events = through(answer, first) if first.more else None
                yield ResponseReply(first.body, events, notes, first.content_type)
            elif not request.stream:
                yield await self._whole(request, answer, first.events, notes)
            else:
                run = Run(first.events, request.owner, keeps=request.store)
                try:
                    await self._begin(request, run, notes)
                    yield ResponseReply(events=stream_of(run, answer, first.events), headers=notes)
                finally:  # also when the client leaves in the middle, or before the first event
                    run.cancel()
                    self._done(request, run)

    async def count(self, owner: str, body: bytes, head: Head) -> TokenizeResult:
        """Count the tokens of the prompt of such a response; `model` may be left out."""
        manager = self._manager
        model = head.model if head.large or head.model is not None else peek_optional_model(body)
        name = manager.only(model).name
        completed = await manager.bodies.run(head.large, with_model, body, name)
        request = await prepare(owner, completed, self._store, manager.bodies, head)
        servable = manager.get(request.model)
        session = await session_of(servable, request, runs=False)
        payload = request.payload({}, mcp=None if session is None else session.offers)
        return await tokens_of(servable).count_response(payload)

    @asynccontextmanager
    async def _answer(
        self, request: ResolvedRequest, headers: Mapping[str, str]
    ) -> AsyncIterator[tuple[Answer, HttpResponse, dict[str, str]]]:
        try:
            servable = self._manager.get(request.model)
        except OvserveError:
            if not request.large:  # see `servable_of` in http/body.py
                unique_members(request.body)
            raise

        session: McpSession | None = None

        def start(history: list[Raw] | None, input_: list[Raw] | None) -> Answer:
            if session is None or request.fields is None:
                return servable.start(request.payload(headers, history, input_))
            offers = session.offers

            def start_round(call_items: list[Raw], replaced: dict[str, Raw]) -> GraphResponse:
                return servable.start(request.payload(headers, history, input_, offers, call_items, replaced))

            return McpAnswer(session, start_round, request.fields)

        with servable.lease():
            session = await session_of(servable, request)
            async with start_fitting(start, request) as (answer, first, dropped):
                notes = dict(first.headers)
                if CLAMPED in notes:
                    notes[CLAMPED] = notes[CLAMPED].replace("max_tokens", "max_output_tokens")
                if dropped:
                    notes[TRUNCATED] = f"items={dropped}"
                yield answer, first, notes

    async def _whole(
        self, request: ResolvedRequest, answer: Answer, first: ResponseEvents, notes: dict[str, str]
    ) -> ResponseReply:
        fold = await fold_all(answer, first)
        why_incomplete = fold.response.incomplete_details
        if why_incomplete is not None and why_incomplete.stop_reason is not UNSET:
            notes[REPETITION] = "0"
        if request.store and (why := await self._within(self._stored.save(request, fold))):
            fold.response.store = False
            notes[NOT_STORED] = why
        return ResponseReply(fold.snapshot(), headers=notes)

    async def _begin(self, request: ResolvedRequest, run: Run, notes: dict[str, str]) -> None:
        """Make a stream known before its first event: to the store, so that a crash leaves a trace of it."""
        if request.store:
            self._runs[run.id] = run
            if why := await self._within(self._first_save(request, run)):
                notes[NOT_STORED] = why

    async def _first_save(self, request: ResolvedRequest, run: Run) -> str | None:
        why = await self._stored.save(request, run.fold)
        run.stored = why is None
        return why

    def _done(self, request: ResolvedRequest, run: Run) -> None:
        """The response has ended: let followers go, and keep it."""
        run.end()
        if request.store and not run.deleted:
            saving = asyncio.create_task(self._stored.save(request, run.fold, run))
            self._saving.add(saving)
            saving.add_done_callback(lambda task: self._saved(run, task))

    def _saved(self, run: Run, task: asyncio.Task[str | None]) -> None:
        self._saving.discard(task)
        if task.result() is None or not run.background:
            self._runs.pop(run.id, None)
            return
        # Its client was promised to find it here: keep it as long as there are few of them.
        ended = [id_ for id_, other in self._runs.items() if other.ended]
        for id_ in ended[:-MAX_UNSTORED_RESPONSES]:
            del self._runs[id_]

    # -- background

    async def _create_background(self, request: ResolvedRequest, headers: Mapping[str, str]) -> ResponseReply:
        started: Beginning = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._background(request, headers, started))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            run, notes, body = await asyncio.shield(started)
        except asyncio.CancelledError:
            if started.cancel():  # else the task would report its end to it
                task.cancel()  # no one knows its id
            raise
        run.task = task
        if request.stream:
            return ResponseReply(events=run.follow(), headers=notes)
        return ResponseReply(body, headers=notes)

    async def _background(
        self, request: ResolvedRequest, headers: Mapping[str, str], started: Beginning
    ) -> None:
        run: Run | None = None
        error: OvserveError = Internal("unexpected end")
        try:
            async with self._answer(request, headers) as (answer, first, notes):
                if first.events is None:
                    raise InvalidArgument.at("background", "this graph writes its own responses")
                begun = Run(first.events, request.owner, keeps=True)
                if why := await self._first_save(request, begun):
                    raise Unavailable(f"background: the response cannot be kept: {why}")
                run = self._runs[begun.id] = begun
                run.received(first.events)
                started.set_result((run, notes, run.fold.snapshot()))
                while (packet := await answer.next_events()) is not None:
                    run.received(packet)
        except OvserveError as exc:
            error = exc
        except asyncio.CancelledError:
            error = Unavailable(SERVER_STOPPED)
        finally:
            if run is None:
                if not started.cancelled():
                    started.set_exception(error)
            else:
                if run.cancelled:
                    run.cancel()
                elif not run.fold.ended:
                    run.fail(failure_of(error))
                self._done(request, run)

    # -- the other verbs

    async def get(self, owner: str, id_: str) -> bytes:
        run = self._run(owner, id_)
        return run.fold.snapshot() if run else (await self._stored.get(owner, id_)).body

    async def stream(self, owner: str, id_: str, after: int | None) -> AsyncIterator[bytes]:
        """Its events after number `after`; a running response is followed to its end."""
        if run := self._run(owner, id_):
            return run.follow(after)
        record = await self._stored.get(owner, id_)
        if record.server:
            raise InvalidArgument(f"response {id_!r} runs on another server; ask that one", param="stream")
        return one(replay(record.body, record.log, after, SERVER_GONE))

    async def delete(self, owner: str, id_: str) -> bytes:
        if run := self._run(owner, id_):
            run.deleted = True
            await self._end(run)
        elif is_background(record := await self._stored.get(owner, id_)):
            await self._stored.end(record)  # or its server would write it again at its end
        if not await self._stored.delete(owner, id_) and run is None:
            raise unknown(id_)
        self._runs.pop(id_, None)
        return encode(Deleted(id_))

    async def cancel(self, owner: str, id_: str) -> bytes:
        """The response as it then is; one that has ended stays as it ended."""
        run = self._run(owner, id_)
        if run is None:
            record = await self._stored.get(owner, id_)
            require_background(record.id, is_background(record))
            return (await self._stored.end(record)).body
        require_background(run.id, run.background)
        await self._end(run)
        return run.fold.snapshot()

    async def input_items(self, owner: str, id_: str, *, limit: int, order: str, after: str | None) -> bytes:
        """A page of the request's own input, as OpenAI lists it: the newest first unless order is asc."""
        items = msgspec.json.decode((await self._stored.get(owner, id_)).input)
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

    async def _within(self, saving: Awaitable[str | None]) -> str | None:
        """Return the outcome of a save if the disk is quick; a slow one is not waited for."""
        task = asyncio.ensure_future(saving)
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)
        finished, _ = await asyncio.wait({task}, timeout=STORE_SECONDS)
        return task.result() if finished else None

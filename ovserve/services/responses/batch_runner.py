"""BatchRunner: checks the input of batches, answers their lines, and writes their files.

Lines wait outside of the queues of live requests and run in the room that those leave
(`engine/admission/`). What the server itself refuses (a full or restarting engine, a limit per minute, a
model that is gone) is not a result: the line runs again later, until the batch expires. A line that was at
work when an engine ended runs again alone, and has failed when the engine ends twice more.

A result is in the store before it is counted. So after a kill -9 a line has its result or runs again. Lines
of a batch run in the order of their prompts, so that the prefix cache holds what they share.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from msgspec import Raw

from ovserve.access import NOBODY, Guard, RequestContext, calling
from ovserve.api.openai.batches import Batch, LineResponse, LineResult
from ovserve.api.openai.body import decode_fields, peek_model
from ovserve.api.openai.common import encode
from ovserve.errors import (
    EndsEngine,
    EngineDead,
    ModelNotFound,
    OvserveError,
    RateLimited,
    Unavailable,
    for_log,
    public,
)
from ovserve.kinds.payload import HttpPayload
from ovserve.log import request_id
from ovserve.services.responses.batch_lines import (
    BatchBounds,
    BatchValidator,
    ResultWriter,
    encoded,
    endpoint_of,
    read_line,
    usage_of,
)
from ovserve.services.responses.batch_rows import (
    Batches,
    BatchRecord,
    Claimed,
    Finished,
    NotOurs,
    Place,
    Places,
    enter,
)
from ovserve.services.responses.files import Files, new_id
from ovserve.services.responses.service import ResponsesService
from ovserve.services.responses.store import StoreError
from ovserve.serving.manager import Manager

MAX_RUNNING_LINES = 64  # of all batches; more would wait in front of the engines
MAX_HELD_BYTES = 64 << 20  # of their bodies
MAX_RUNNING_BATCHES = 16
MAX_DEATHS = 2  # of engines that had nothing but this line
LOOK_SECONDS = 1.0  # for batches of others, for cancelled and expired ones
SWEEP_SECONDS = 60.0
GROUP_SECONDS = 0.1  # in which results are collected for one transaction
RETRY_SECONDS = 1.0  # after a fault of the store
LONGEST_PAUSE_SECONDS = 30.0
MISSING_MODEL_SECONDS = 5.0

AnswerError = Callable[[OvserveError], tuple[int, bytes]]  # status and body as a live request gets them

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Running:
    number: int
    owner: str
    record: BatchRecord
    file: BinaryIO | None = None
    places: Places = field(default_factory=Places)  # of lines without a result
    again: deque[Place] = field(default_factory=deque)
    waiting: deque[Place] = field(default_factory=deque)  # for a model; taken after all others
    suspects: deque[Place] = field(default_factory=deque)  # an engine ended while it had these
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)  # by line
    results: list[Finished] = field(default_factory=list)  # not stored yet
    paused_until: float = 0.0  # time.monotonic()
    pause_reason: str = ""
    storing_fails: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def batch(self) -> Batch:
        return self.record.batch

    @property
    def has_lines(self) -> bool:
        return bool(self.places or self.again or self.waiting or self.suspects)

    @property
    def over(self) -> bool:
        """Return whether no line may begin any more."""
        return self.batch.status != "in_progress" or time.time() >= self.batch.expires_at

    def take(self) -> Place:
        for first in (self.suspects, self.again):
            if first:
                return first.popleft()
        return self.places.pop() if self.places else self.waiting.popleft()

    def forget_lines(self) -> None:
        self.places = Places()
        self.again.clear()
        self.waiting.clear()
        self.suspects.clear()


class BatchRunner:
    def __init__(
        self,
        manager: Manager,
        files: Files,
        rows: Batches,
        responses: ResponsesService,
        guard: Guard,
        bounds: BatchBounds,
        answer_error: AnswerError,
    ) -> None:
        self._manager, self._files, self._rows = manager, files, rows
        self._responses, self._guard = responses, guard
        self._answer_error = answer_error
        self._validator = BatchValidator(manager, files, rows, guard, bounds)
        self._writer = ResultWriter(files, rows)
        self._batches: dict[int, _Running] = {}  # by number
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._alone = False  # the line that began last is a suspect
        self._held_bytes = 0  # of lines that run
        self._full: frozenset[str] | None = frozenset()  # as Files.full()
        self._ticks: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._swept = 0.0

    def start(self) -> None:
        self._ticks = asyncio.create_task(self._every_second(), name="batches")

    def wake(self) -> None:
        """Look for new and cancelled batches now."""
        self._wake.set()

    async def stop(self) -> None:
        """End the lines that run; they have no result, and run again after the next start."""
        tasks = [task for task in (self._ticks, *self._tasks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(StoreError):
            await self._rows.release()

    # ---- batches

    async def _every_second(self) -> None:
        failed = False
        while True:
            try:
                await self._look()
            except (StoreError, Unavailable) as error:
                if not failed:
                    log.error("batches wait: %s", error)
                failed = True
            else:
                failed = False
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

    async def _look(self) -> None:
        if time.monotonic() - self._swept >= SWEEP_SECONDS:
            self._swept = time.monotonic()
            await self._rows.sweep(self._files.bounds.ttl, self._files.sweep)
        living = list(await self._rows.living())
        metrics = self._manager.metrics.batches
        metrics.living = Counter(batch.status for batch in living)
        metrics.oldest = min((batch.created_at for batch in living), default=0)
        if not living or self._manager.stopping:
            return
        await self._measure()
        for claimed in await self._rows.claim(MAX_RUNNING_BATCHES):
            running = self._batches.get(claimed.number)
            if claimed.record.batch.status != "cancelling" and not self._guard.knows(claimed.owner):
                await self._rows.change(claimed.number, _cancel)  # the key was deleted
            if running is None:
                self._begin(claimed)
            elif claimed.record.batch.status == "cancelling":
                running.record.batch.status = "cancelling"
                running.changed.set()
        self._dispatch()

    async def _measure(self) -> None:
        """See whether there is room for results."""
        full = await self._files.full()
        if full != self._full:
            log.warning("%s", _fullness(full))
        self._full = full

    def _begin(self, claimed: Claimed) -> None:
        running = self._batches[claimed.number] = _Running(claimed.number, claimed.owner, claimed.record)
        task = self._tasks[claimed.number] = asyncio.create_task(self._process(running))
        task.add_done_callback(lambda _: self._forget(running.number))

    def _forget(self, number: int) -> None:
        self._batches.pop(number, None)
        self._tasks.pop(number, None)
        self._dispatch()

    async def _process(self, running: _Running) -> None:
        """Bring a batch to its end. After a fault of the store or the disk, its step is repeated."""
        batch, reason = running.batch, ""
        log.info("batch %s is %s", batch.id, batch.status)
        while True:
            try:
                await self._advance(running)
            except NotOurs:
                log.info("batch %s is no longer of this server", batch.id)
            except (StoreError, OSError, Unavailable) as error:
                if reason != (reason := str(error)):
                    log.error("batch %s waits: %s", batch.id, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            else:
                log.info("batch %s is %s", batch.id, running.batch.status)
            return

    async def _advance(self, running: _Running) -> None:
        if running.batch.status == "validating" and time.time() < running.batch.expires_at:
            running.record = await self._validator.validate(running.number, running.owner, running.record)
        if running.batch.status == "in_progress":
            try:
                await self._run_lines(running)
            finally:
                await self._close(running)
        if running.batch.status != "failed":
            running.record = await self._writer.write(running.number, running.owner, running.record)

    async def _close(self, running: _Running) -> None:
        """End what runs; keep what has ended, if the store can."""
        await _end_tasks(running)
        with suppress(StoreError, NotOurs):
            if running.results:
                running.record = await self._rows.finish(running.number, running.results)
                running.results = []
        if running.file is not None:
            running.file.close()
            running.file = None

    # ---- lines

    async def _run_lines(self, running: _Running) -> None:
        if running.over:  # also without its input file, for which it has waited
            return
        path = self._files.path(running.batch.input_file_id)
        running.forget_lines()
        running.places, suspects = await self._rows.pending(running.number)
        running.suspects.extend(suspects)
        await self._measure()
        running.file = await asyncio.to_thread(path.open, "rb", 0)
        self._dispatch()
        while not running.over and (running.has_lines or running.tasks or running.results):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await running.changed.wait()
            if running.results:
                await asyncio.sleep(GROUP_SECONDS)
            running.changed.clear()
            await self._store_results(running)
            self._dispatch()
        await _end_tasks(running)
        while not await self._store_results(running):
            pass  # it waits before it returns False
        counts = running.batch.request_counts
        if not running.over and counts.completed + counts.failed < counts.total:
            raise Unavailable("a line ended without a result")  # its error is in the log

    async def _store_results(self, running: _Running) -> bool:
        """Store results and count them; return whether all are. While that fails, no line begins."""
        if not (results := running.results):
            return True
        running.results = []
        try:
            running.record = await self._rows.finish(running.number, results)
        except StoreError as error:
            if not running.storing_fails:
                log.error("batch %s: results wait for the store: %s", running.batch.id, error)
            running.storing_fails = True
            running.results = results + running.results
            await asyncio.sleep(RETRY_SECONDS)
            return False
        running.storing_fails = False
        metrics = self._manager.metrics.batches
        for result in results:
            metrics.lines["completed" if result.succeeded else "failed"] += 1
        return True

    def _dispatch(self) -> None:
        """Begin lines as long as there is a place for one."""
        while not self._manager.stopping and (running := self._next()) is not None:
            self._alone = bool(running.suspects)
            place = running.take()
            self._held_bytes += place.size
            self._manager.metrics.batches.running += 1
            running.tasks[place.line] = asyncio.create_task(self._line(running, place, alone=self._alone))

    def _next(self) -> _Running | None:
        """Return the batch whose next line may begin: of the key that has fewest, then the oldest."""
        batches = [batch for batch in self._batches.values() if batch.file is not None]
        count = sum(len(batch.tasks) for batch in batches)
        if (full := self._full) is None:
            return None
        if count and (self._alone or count >= MAX_RUNNING_LINES or self._held_bytes >= MAX_HELD_BYTES):
            return None
        now = time.monotonic()
        ready = [
            batch
            for batch in batches
            if batch.has_lines
            and not batch.over
            and not batch.storing_fails
            and batch.paused_until <= now
            and batch.owner not in full
        ]
        if suspects := [batch for batch in ready if batch.suspects]:
            return None if count else suspects[0]
        held = Counter[str]()
        for batch in batches:
            held[batch.owner] += len(batch.tasks)
        rights = {batch: self._guard.rights(batch.owner) for batch in ready}
        ready = [b for b in ready if (most := rights[b].concurrency) is None or held[b.owner] < most]
        return min(
            ready, key=lambda b: (held[b.owner] / rights[b].weight, len(b.tasks), b.number), default=None
        )

    async def _line(self, running: _Running, place: Place, *, alone: bool) -> None:
        try:
            if (result := await self._result(running, place, alone=alone)) is not None:
                running.results.append(result)
        finally:
            self._held_bytes -= place.size
            self._manager.metrics.batches.running -= 1
            running.tasks.pop(place.line, None)
            running.changed.set()
            self._dispatch()

    async def _result(self, running: _Running, place: Place, *, alone: bool) -> Finished | None:
        """Return the result of a line, or None if it is to run again."""
        assert running.file is not None, "open while lines run"
        data = await asyncio.to_thread(os.pread, running.file.fileno(), place.size, place.start)
        line = read_line(data)
        id_ = new_id("batch_req_")
        request_id.set(id_)
        call = RequestContext(NOBODY)
        call.batch = call.repeated = True  # what is repeated, and how often, is decided here
        try:
            call.caller = self._guard.caller_named(running.owner)
            with calling(call):
                status, body = await self._send(running, encode(line.body))
        except OvserveError as error:
            if (failure := await self._failure(running, place, call, error, alone=alone)) is None:
                return None
            if failure.kind == "internal":
                log.error("%s", failure, exc_info=for_log(failure))
            status, body = self._answer_error(public(failure))
        result = LineResult(id=id_, custom_id=line.custom_id, response=LineResponse(status, id_, Raw(body)))
        return Finished(place.line, 200 <= status < 300, encoded(result), usage_of(body))

    async def _failure(
        self, running: _Running, place: Place, call: RequestContext, error: OvserveError, *, alone: bool
    ) -> OvserveError | None:
        """Return the error as a result; None where the server is the reason, and the line runs again."""
        if isinstance(error, EngineDead) and call.admitted is not None and not self._manager.stopping:
            deaths = place.deaths + alone
            if deaths >= MAX_DEATHS:
                return EndsEngine(f"the engine ended {deaths} times while this was the only line that it had")
            if alone:
                await self._rows.count_death(running.number, place.line)
            running.suspects.append(place._replace(deaths=deaths))
            running.paused_until = time.monotonic() + RETRY_SECONDS
            return None
        if isinstance(error, ModelNotFound) and call.caller.may_use(call.model or ""):
            running.waiting.append(place)
            running.paused_until = time.monotonic() + MISSING_MODEL_SECONDS
            return None
        if self._manager.stopping or isinstance(error, Unavailable | RateLimited):
            running.again.append(place)
            if running.pause_reason != error.message:  # a day's limit pauses for hours
                running.pause_reason = error.message
                log.info("batch %s waits: %s", running.batch.id, error.message)
            pause = getattr(error, "retry_after", None) or RETRY_SECONDS
            running.paused_until = time.monotonic() + min(pause, LONGEST_PAUSE_SECONDS)
            return None
        return error

    async def _send(self, running: _Running, body: bytes) -> tuple[int, bytes]:
        """Return status and body as JSON."""
        endpoint, bodies = endpoint_of(running.batch.endpoint), self._manager.bodies
        head = await bodies.admit(body)
        if endpoint == "responses":
            fields = decode_fields(body)
            body = encode({"store": False, **fields})  # else thousands would displace those of live requests
            async with self._responses.create(running.owner, body, {}, head) as reply:
                return 200, reply.body
        servable = self._manager.get(peek_model(body) if head.model is None else head.model)
        async with servable.start(HttpPayload(endpoint, body, {}, head)) as answer:
            first = await answer.first()
            whole = await answer.whole(first)
        if first.content_type != "application/json":
            whole = encode(whole.decode("utf-8", "replace"))
        return first.status, whole


def _cancel(record: BatchRecord) -> None:
    if record.batch.status in ("validating", "in_progress"):
        enter(record, "cancelling")


def _fullness(full: frozenset[str] | None) -> str:
    if full is None:
        return "batches wait: files and results take --file_store_max_bytes; delete files"
    if full:
        return f"batches of {', '.join(sorted(full))} wait: --file_store_max_bytes_per_key; delete files"
    return "batches go on: there is room for results"


async def _end_tasks(running: _Running) -> None:
    running.forget_lines()
    tasks = list(running.tasks.values())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""EngineClient: the server's handle on one engine, across the deaths of its process.

Built by `serving/`, used by the executor calculator: `stream = await client.generate(request)`, then
`await stream.next()` until a delta has a finish_reason, and `stream.abort_if_running()` on the way out.
`tokenize` and `detokenize` ask it between two steps.

One supervisor task owns the process: it waits for its end and starts the next, with growing pauses. A dead
engine ends every running request with EngineDead, after the text that had arrived; requests that come
meanwhile wait for the next engine up to `restart_wait` seconds. After `max_load_failures` failures in a row
the state is "failed" and requests are refused at once, but tries go on at the longest pause: what broke
loading (memory taken by a neighbour, a disk not mounted yet) often mends without us, and a server that
needs a human to notice that is worse than a process started every half minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ovserve.engine.compiled import CompiledGrammars
from ovserve.engine.fan_out import engine_requests
from ovserve.engine.grammars import GrammarLimits, GrammarProver
from ovserve.engine.mailbox import Mailbox
from ovserve.engine.messages import (
    LAST_WORDS,
    Abort,
    Accepted,
    Detokenize,
    EngineFacts,
    EngineSpec,
    Failed,
    Steps,
    Tokenize,
    Usage,
)
from ovserve.engine.meter import Meter, Track
from ovserve.engine.process import EngineProcess, Word
from ovserve.engine.questions import UNSENDABLE, Questions
from ovserve.engine.state import DEFAULT_RESTARTS, EngineState, EngineStats, RestartPolicy
from ovserve.errors import EngineDead, InvalidArgument, LoadError, OvserveError, Unavailable, from_kind
from ovserve.llm.constraint import Constraint
from ovserve.llm.decoding import refuse_combination
from ovserve.llm.request import Delta, GenerateRequest

log = logging.getLogger(__name__)


class Route(NamedTuple):
    """Where the words of one engine request go; a client's request may be several (`fan_out.py`)."""

    mailbox: Mailbox
    choice: int  # index of its first choice
    first_of_prompt: bool  # prompt tokens count once, however many choices
    siblings: range  # all engine requests of the same client request
    track: Track


class DeltaStream:
    """The answer to one request. The first delta is its admission; the last says so."""

    __slots__ = ("_client", "_ids", "_mailbox")

    def __init__(self, client: EngineClient, ids: range, mailbox: Mailbox) -> None:
        self._client = client
        self._ids = ids
        self._mailbox = mailbox

    async def next(self) -> Delta:
        """Raises what ended the request: a kind from the engine, or EngineDead."""
        return await self._mailbox.take()

    def fail(self, error: OvserveError) -> None:
        """End it with this error, after the text that has arrived; no effect once it is complete."""
        self._mailbox.fail(error)
        self._client._abort(self._ids)

    def abort_if_running(self) -> None:
        """Any number of times, at any moment; text that has arrived can still be read."""
        self._client._abort(self._ids)


class EngineClient:
    def __init__(
        self,
        spec: EngineSpec,
        *,
        ready_timeout: float = 600.0,
        restart_wait: float = 30.0,
        stop_grace: float = 10.0,
        restarts: RestartPolicy = DEFAULT_RESTARTS,
        grammar_limits: GrammarLimits | None = None,
    ) -> None:
        """Not started: use `await EngineClient.start(spec)`."""
        self.spec = spec
        self.facts = EngineFacts()
        self.state = EngineState("starting")
        self._ready_timeout = ready_timeout
        self._restart_wait = restart_wait
        self._stop_grace = stop_grace
        self._restart_policy = restarts
        self._process: EngineProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # set and replaced at every change of state
        self._routes: dict[int, Route] = {}
        self._questions = Questions()
        self._compiled = CompiledGrammars(grammar_limits or GrammarLimits())
        self.grammars = GrammarProver(spec, ready_timeout=ready_timeout, limits=grammar_limits)
        self._last_id = 0
        self._finished = self._failed = self._aborted = self._restarts = 0
        self._prompt_tokens = self._generated_tokens = 0
        self._drafted_tokens = self._accepted_tokens = 0
        self.usage = Usage()  # as the engine last told
        self.reserved = 0  # choices of requests that are about to be sent; kept by those who send
        self.on_room: set[Callable[[], None]] = set()  # called when there may be room for more

    @classmethod
    async def start(
        cls,
        spec: EngineSpec,
        *,
        ready_timeout: float = 600.0,
        restart_wait: float = 30.0,
        stop_grace: float = 10.0,
        restarts: RestartPolicy = DEFAULT_RESTARTS,
        grammar_limits: GrammarLimits | None = None,
    ) -> EngineClient:
        """Ready when it returns. LoadError when the first engine does not load: no retries behind it."""
        client = cls(
            spec,
            ready_timeout=ready_timeout,
            restart_wait=restart_wait,
            stop_grace=stop_grace,
            restarts=restarts,
            grammar_limits=grammar_limits,
        )
        await client._launch()
        client._supervisor = asyncio.create_task(client._supervise(), name="engine supervisor")
        client._supervisor.add_done_callback(client._supervisor_done)
        return client

    @property
    def pid(self) -> int:
        """Of the current process; 0 between two."""
        return self._process.pid if self._process else 0

    @property
    def in_flight(self) -> int:
        """Choices that the engine holds or is about to get."""
        return len(self._routes) + self.reserved

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._routes),
            requests=self._last_id,
            finished=self._finished,
            failed=self._failed,
            aborted=self._aborted,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            restarts=self._restarts,
            drafted_tokens=self._drafted_tokens,
            accepted_tokens=self._accepted_tokens,
        )

    async def generate(
        self, request: GenerateRequest, meter: Meter | None = None, arrived: float | None = None
    ) -> DeltaStream:
        """What it takes is counted in `meter`, from `arrived` on (`time.monotonic()`; now if not given)."""
        meter = meter or Meter()
        arrived = time.monotonic() if arrived is None else arrived
        constraint = request.sampling.constraint
        if constraint is not None:
            refuse_combination(self.spec.decoding, request.sampling)
            await self.grammars.prove(constraint)
        process = await self._ready_process(constraint)
        adds = engine_requests(request, self._last_id + 1)
        try:
            for add in adds:
                process.send(add)
        except UNSENDABLE as error:
            raise InvalidArgument(f"the request cannot be sent to the engine: {error}") from error
        ids = range(adds[0].id, adds[-1].id + 1)
        self._last_id = adds[-1].id
        mailbox = Mailbox(len(request.prompts), request.choices)
        width = request.sampling.n if request.sampling.beams > 1 else 1  # choices per engine request
        for i, id_ in enumerate(ids):
            choice = i * width
            first_of_prompt = choice % request.sampling.n == 0
            self._routes[id_] = Route(mailbox, choice, first_of_prompt, ids, Track(meter, arrived))
        return DeltaStream(self, ids, mailbox)

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Raises EngineDead when the process ends under it, InvalidArgument for what is no text."""
        process, all_ = await self._ready_process(), tuple(texts)
        ids: list[list[int]] = await self._questions.ask(
            process.send, lambda id_: Tokenize(id_, all_, add_special_tokens)
        )
        return ids

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        """Raises as `tokenize`; InvalidArgument for ids outside of the vocabulary."""
        process, all_ = await self._ready_process(), tuple(map(tuple, rows))
        texts: list[str] = await self._questions.ask(
            process.send, lambda id_: Detokenize(id_, all_, skip_special_tokens)
        )
        return texts

    def kill(self) -> None:
        """Have the next `stop` not wait for an engine that does not listen."""
        self._become(EngineState("stopped", "the engine has been killed"))
        self._end_all(Unavailable("the engine is stopping"))
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """Running requests end with Unavailable. Any number of times; also while restarting."""
        self._become(EngineState("stopped", "the engine has been stopped"))
        self._end_all(Unavailable("the engine is stopping"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        await self.grammars.stop()
        if self._process is not None:
            await self._process.stop(self._stop_grace)

    # ---- the process and its successors

    async def _launch(self) -> None:
        process = EngineProcess(self._on_word, self._on_end)
        self.facts = await process.start(self.spec, ready_timeout=self._ready_timeout)
        self._process = process
        self._compiled.renew()
        self._become(EngineState("ready"))
        log.info("engine[%d] is ready after %.1f s", process.pid, self.facts.load_seconds)

    async def _supervise(self) -> None:
        short_lives = 0
        while True:
            began = time.monotonic()
            await self._until_death()
            lasted = time.monotonic() - began >= self._restart_policy.lasted
            short_lives = 0 if lasted else short_lives + 1
            await asyncio.sleep(self._restart_policy.pause(short_lives))
            load_failures = 0
            while True:
                try:
                    await self._launch()
                    break
                except (LoadError, OSError) as error:
                    load_failures += 1
                    log.error("the engine does not load again (%d): %s", load_failures, error)
                    given_up = load_failures >= self._restart_policy.max_load_failures
                    self._become(EngineState("failed" if given_up else "restarting", str(error)))
                    await asyncio.sleep(self._restart_policy.pause(short_lives + load_failures))
            self._restarts += 1

    async def _until_death(self) -> None:
        process = self._process
        if process is None:
            raise RuntimeError("supervising an engine that was not launched")
        await process.ended.wait()
        await process.stop(self._stop_grace)
        self._process = None
        reason = f"the engine process ended ({process.how_it_ended()})"
        log.error("engine[%d]: %s; starting another", process.pid, reason)
        self._become(EngineState("restarting", reason))

    def _supervisor_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the engine supervisor failed", exc_info=error)
            self._become(EngineState("failed", f"a fault in the server: {error!r}"))

    async def _ready_process(self, constraint: Constraint | None = None) -> EngineProcess:
        """At once in the usual case. With a constraint: one that has compiled it."""
        while True:
            process = self._process
            if process is None or self.state.name != "ready":
                process = await self._next_process()
            if constraint is None or constraint in self._compiled:
                return process
            await self._compiled.add(process.send, self._questions, constraint)

    async def _next_process(self) -> EngineProcess:
        try:
            async with asyncio.timeout(self._restart_wait):
                while True:
                    if self.state.name in ("failed", "stopped"):
                        # The reason may hold paths; it is the operator's, in the log and the status.
                        raise Unavailable(
                            f"the engine has {self.state.name}",
                            retry_after=self._restart_policy.longest_pause,
                        )
                    if self.state.name == "ready" and self._process is not None:
                        return self._process
                    await self._changed.wait()
        except TimeoutError:
            raise Unavailable("the engine is restarting", retry_after=self._restart_wait) from None

    def _become(self, state: EngineState) -> None:
        if self.state.name != "stopped":
            self.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- words from the process, in its protocol's data_received()

    def _on_word(self, word: Word) -> None:
        routes = self._routes
        if isinstance(word, Steps):
            now = time.monotonic()
            for item in word.items:
                # An id may be unknown: its words crossed our Abort.
                if (route := routes.get(item.id)) is not None:
                    self._generated_tokens += item.tokens
                    self._drafted_tokens += item.drafted
                    self._accepted_tokens += item.accepted
                    route.track.gained(item, now)
                    route.mailbox.add(route.choice + item.index, item)
                    if item.last:
                        del routes[item.id]
                        self._finished += 1
                        route.track.finish(now)
            if word.usage is not None:
                self.usage = word.usage
            self._tell_of_room()
        elif isinstance(word, Accepted):
            if (route := routes.get(word.id)) is not None:
                counted = word.prompt_tokens if route.first_of_prompt else 0
                route.track.admitted(counted, time.monotonic())
                if counted:
                    self._prompt_tokens += counted
                    route.mailbox.admit(counted, word.max_tokens)
        elif isinstance(word, Failed):
            if word.id < 0:
                self._questions.refuse(word)
                return
            if word.kind == LAST_WORDS and self.state.name == "ready":
                # End of file follows; a request sent until then would die with this process.
                self._become(EngineState("restarting", word.message))
            if (route := routes.pop(word.id, None)) is not None:
                self._failed += 1
                route.track.drop()
                route.mailbox.fail(_error(word))
                self._abort(route.siblings)  # the client gets one answer; half of it is none
                self._tell_of_room()
        else:
            self._questions.answer(word)

    def _on_end(self) -> None:
        if self.state.name == "ready":
            self._become(EngineState("restarting", "the engine process ended"))
        self._end_all(EngineDead("the engine process ended under this request", retry_after=1.0))

    def _end_all(self, error: OvserveError) -> None:
        routes, self._routes = self._routes, {}
        self._failed += len(routes)
        self.usage = Usage()
        for route in routes.values():
            route.track.drop()
            route.mailbox.fail(error)
        self._questions.fail_all(error)
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        for tell in tuple(self.on_room):
            tell()

    def _abort(self, ids: range) -> None:
        for id_ in ids:
            route = self._routes.pop(id_, None)
            if route is not None:
                self._aborted += 1
                route.track.drop()
                route.mailbox.fail(Unavailable("the request was aborted"))
                if self._process is not None:
                    self._process.send(Abort(id_))
        self._tell_of_room()


def _error(failed: Failed) -> OvserveError:
    if failed.kind == LAST_WORDS:
        return EngineDead(failed.message, retry_after=1.0)
    return from_kind(failed.kind, failed.message, failed.param)

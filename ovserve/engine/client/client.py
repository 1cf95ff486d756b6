"""EngineClient: the server's handle on one engine, across the deaths of its process.

Built by `serving/`, used by the executor calculator: `stream = await client.generate(request)`, then
`await stream.next()` until a delta has a finish_reason, and `stream.abort_if_running()` on the way out.
`tokenize` and `detokenize` ask it between two steps.

One supervisor task owns the process: it waits for its end and starts the next, with growing pauses. One that
makes no progress (`health.py`) tells where it stands, in the log, and is killed. A request under a dead
engine is sent to the next one if nothing of its answer has been read (`requests.py`), else it ends with
EngineDead, after the text that had arrived; those that come meanwhile wait for the next engine up to
`restart_wait` seconds. After `max_load_failures` loads or `max_short_lives` engines in a row the state is
"failed" and requests are refused at once, but tries go on at the longest pause: what broke it (memory taken
by a neighbour, a disk not mounted yet) often mends without us, and a server that needs a human to notice that
is worse than a process started every half minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from ovserve.engine.client.calls import UNSENDABLE, PendingCalls
from ovserve.engine.client.grammars.compiled import CompiledGrammars
from ovserve.engine.client.grammars.prover import GrammarLimits, GrammarProver
from ovserve.engine.client.health.health import Health
from ovserve.engine.client.prewarm import PrewarmedProcess
from ovserve.engine.client.process import EngineMessage, EngineProcess
from ovserve.engine.client.requests import DeltaStream, Requests
from ovserve.engine.client.state import DEFAULT_RESTARTS, EngineState, EngineStats, RestartPolicy
from ovserve.engine.client.tokenizer.texts import Texts
from ovserve.engine.protocol.messages import (
    ENGINE_FAILED,
    Accepted,
    EngineFacts,
    EngineSpec,
    Failed,
    Pong,
    Steps,
    ToEngine,
    Usage,
)
from ovserve.errors import EngineDead, InvalidArgument, LoadError, OvserveError, Unavailable
from ovserve.llm.decoding import refuse_combination
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.request import GenerateRequest
from ovserve.telemetry.requests import RequestMetrics

log = logging.getLogger(__name__)


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
        self._requests = Requests(self._send, self._tell_of_room)
        self._questions = PendingCalls()
        self._compiled = CompiledGrammars(grammar_limits or GrammarLimits())
        self._health: Health  # of the current process, or the last one
        self.grammars = GrammarProver(spec, ready_timeout=ready_timeout, limits=grammar_limits)
        self.texts = Texts(spec, self._questions, self._ready_process, lambda: self.facts, ready_timeout)
        self._restarts = self._stalls = 0
        self.usage = Usage()  # as the engine last told
        self.last_word = time.monotonic()  # when the engine last said anything
        self.reserved = 0  # choices of requests that are about to be sent; kept by those who send
        self.expected = 0  # requests in hand that it has got or may get; kept by its servables
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
        prewarmed: PrewarmedProcess | None = None,
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
        await client._launch(prewarmed)
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
        return len(self._requests) + self.reserved

    @property
    def short_of_memory(self) -> str:
        """Why it should get no more requests now; empty: it may."""
        return self._health.ceiling.shortage

    @property
    def memory_held(self) -> int:
        """Bytes, as of the last look."""
        return self._health.ceiling.held

    @property
    def reading(self) -> bool:
        return self._requests.unread_tokens() > 0

    def stats(self) -> EngineStats:
        return self._requests.stats(restarts=self._restarts, stalls=self._stalls)

    async def generate(
        self,
        request: GenerateRequest,
        meter: RequestMetrics | None = None,
        arrived: float | None = None,
        *,
        repeated: bool = False,
        stall_timeout: float | None = None,
    ) -> DeltaStream:
        """What it takes is counted in `meter`, from `arrived` on (`time.monotonic()`; now if not given).
        `repeated`: an engine has ended under it before, and this is its second and last chance.
        `stall_timeout`: instead of the policy's, as long as the engine holds it."""
        meter = meter or RequestMetrics()
        arrived = time.monotonic() if arrived is None else arrived
        if (constraint := request.sampling.constraint) is not None:
            refuse_combination(self.spec.decoding, request.sampling)
        ids = await self.texts.ids_of(request)
        await self._ready_process(constraint)
        last = self.expected <= len(self._requests) + 1
        try:
            ongoing = self._requests.begin(
                request, meter, arrived, repeated=repeated, stall_timeout=stall_timeout, last=last, ids=ids
            )
        except UNSENDABLE as error:
            raise InvalidArgument(f"the request cannot be sent to the engine: {error}") from error
        return DeltaStream(self._requests, ongoing)

    async def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Raises EngineDead when the process ends under it, InvalidArgument for what is no text."""
        return await self.texts.tokenize(texts, add_special_tokens)

    async def detokenize(
        self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        """Raises as `tokenize`; InvalidArgument for ids outside of the vocabulary."""
        return await self.texts.detokenize(rows, skip_special_tokens)

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
        await self.texts.stop()
        if self._process is not None:
            await self._process.stop(self._stop_grace)

    # ---- the process and its successors

    async def _launch(self, prewarmed: PrewarmedProcess | None = None) -> None:
        process = (prewarmed or PrewarmedProcess()).take(self._on_word, self._on_end)
        self.facts = await process.start(self.spec, ready_timeout=self._ready_timeout)
        health = Health(process, self.spec, self._restart_policy)
        if (fault := health.ceiling.fault()) is not None:
            process.mute()
            await process.stop(self._stop_grace)
            raise LoadError(fault, file=self.spec.model_path)
        self._process = process
        self._compiled.renew()
        self._health = health
        self._become(EngineState("ready"))
        log.info("engine[%d] is ready after %.1f s", process.pid, self.facts.load_seconds)

    async def _supervise(self) -> None:
        policy = self._restart_policy
        short_lives = 0
        while True:
            began = time.monotonic()
            await self._until_death()
            lasted = time.monotonic() - began >= policy.lasted
            short_lives = 0 if lasted else short_lives + 1
            if short_lives > policy.max_short_lives:
                reason = f"{short_lives} engines in a row ended soon after their start; {self.state.reason}"
                self._give_up(reason)
            await asyncio.sleep(policy.pause(short_lives))
            load_failures = 0
            while True:
                try:
                    await self._launch()
                    break
                except (LoadError, OSError) as error:
                    load_failures += 1
                    log.error("the engine does not load again (%d): %s", load_failures, error)
                    if load_failures >= policy.max_load_failures:
                        self._give_up(str(error))
                    else:
                        self._become(EngineState("restarting", str(error)))
                    await asyncio.sleep(policy.pause(short_lives + load_failures))
            self._restarts += 1

    def _give_up(self, reason: str) -> None:
        """For now: requests are refused, and tries go on."""
        self._become(EngineState("failed", reason))
        self._requests.end_waiting(EngineDead("the engine has failed", retry_after=1.0))

    async def _until_death(self) -> None:
        process = self._process
        if process is None:
            raise RuntimeError("supervising an engine that was not launched")
        looking_on = asyncio.create_task(self._look_on(process), name="engine watchdog")
        try:
            await process.ended.wait()
        finally:
            looking_on.cancel()
            await asyncio.wait([looking_on])
        if not looking_on.cancelled() and (error := looking_on.exception()) is not None:
            raise error
        await process.stop(self._stop_grace)
        self._process = None
        self._requests.suspects.ended(by_itself=process.ended_by_itself)
        self._become(EngineState("restarting", f"the engine process ended ({process.how_it_ended()})"))
        log.error("engine[%d]: %s; starting another", process.pid, self.state.reason)

    async def _look_on(self, process: EngineProcess) -> None:
        """Send it what the one before left, then see to it that it makes progress."""
        repeating = asyncio.create_task(self._repeat(process), name="requests of the engine before")
        try:
            while True:
                await asyncio.sleep(self._health.watchdog.interval)
                if (stalled := self._health.look(self._requests, self._questions)) is not None:
                    await self._replace(process, stalled)
                    return
                if self._health.ceiling.outgrown and not (self.in_flight or len(self._questions)):
                    await self._renew(process)
                    return
        finally:
            repeating.cancel()

    async def _replace(self, process: EngineProcess, reason: str) -> None:
        """An engine that is stalled: nobody waits for it while it tells where it stands."""
        process.mute()
        self._stalls += 1
        self._become(EngineState("restarting", reason))
        log.error("engine[%d]: %s; it is replaced", process.pid, reason)
        report = [*self._requests.report(), *process.threads()]
        self._lost(reason)
        for line in report:
            log.error("engine[%d]: %s", process.pid, line)
        await process.dump_stacks()
        process.kill(reason)

    async def _renew(self, process: EngineProcess) -> None:
        """An engine that has taken too much memory and has nothing to do."""
        self._become(EngineState("restarting", self._health.ceiling.shortage))
        log.warning("engine[%d]: %s; it is replaced", process.pid, self._health.ceiling.shortage)
        await process.stop(self._stop_grace)

    async def _repeat(self, process: EngineProcess) -> None:
        if process.ended.is_set():
            return  # they wait on
        for ongoing in self._requests.waiting():
            try:
                if ongoing.constraint is not None:
                    await self._compiled.add(process.send, self._questions, ongoing.constraint)
                self._requests.resend(ongoing)
            except OvserveError as error:
                self._requests.end(ongoing, error)

    def _supervisor_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the engine supervisor failed", exc_info=error)
            self._become(EngineState("failed", f"a fault in the server: {error!r}"))

    async def _ready_process(self, constraint: Constraint | None = None) -> EngineProcess:
        """At once in the usual case. With a constraint: one that has compiled it."""
        while True:
            process = await self._next_process()
            if constraint is None or constraint in self._compiled:
                return process
            memory = await self.grammars.prove(constraint, beside=self.facts.compiles_grammars)
            if process is self._process and self.state.name == "ready":
                await self._compiled.add(process.send, self._questions, constraint, memory)

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

    def _on_word(self, word: EngineMessage) -> None:
        heard = self._health.watchdog.on_message
        self.last_word = time.monotonic()
        if isinstance(word, Pong):
            self._health.watchdog.answered()
            return
        if isinstance(word, Steps):
            self._requests.on_tokens(word.items)
            heard(progress=bool(word.items), usage=word.usage)
            if word.usage is not None:
                self.usage = word.usage
            return
        heard(progress=True)
        if isinstance(word, Accepted):
            self._requests.accepted(word)
        elif isinstance(word, Failed):
            if word.id < 0:
                self._questions.refuse(word)
            elif word.kind != ENGINE_FAILED:
                self._requests.failed(word)
            elif self.state.name == "ready":
                # End of file follows; a request sent until then would die with this process.
                self._become(EngineState("restarting", word.message))
                self._lost(word.message)
        else:
            self._questions.answer(word)

    def _on_end(self) -> None:
        ended = "the engine process ended"
        if self._process is not None and self._process.killed_by_kernel:
            ended = "the engine process was killed by the kernel, out of memory,"
        if self.state.name == "ready":
            self._become(EngineState("restarting", ended.rstrip(",")))
        self._lost(f"{ended} under this request")

    def _lost(self, reason: str) -> None:
        """Once per process, at the first sign: what waits for the next one is not to be taken for its."""
        self.usage = Usage()
        self._questions.fail_all(EngineDead(reason, retry_after=1.0))
        self._requests.lost(reason)

    def _end_all(self, error: OvserveError) -> None:
        self.usage = Usage()
        self._questions.fail_all(error)
        self._requests.end_all(error)

    def _send(self, message: ToEngine) -> None:
        if self._process is not None:
            self._process.send(message)

    def _tell_of_room(self) -> None:
        for tell in tuple(self.on_room):
            tell()

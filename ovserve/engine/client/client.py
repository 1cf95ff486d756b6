"""EngineClient: the server's handle on one engine, across the deaths of its process.

A subclass adds the requests of a kind of engine: text generation in `text.py`, calls in `calls.py`.
This class has what is the same for every kind. One supervisor task owns the process, waits for its end and
starts the next, with growing pauses. A process that makes no progress (`health.py`) logs its
state and is killed. A request of a dead engine is sent to the next one if nothing of its answer has been
read. Otherwise it ends with EngineDead, after the text that had arrived. Requests that come meanwhile wait
for the next engine up to `restart_wait` seconds. After `max_load_failures` loads or `max_short_lives`
engines in a row the state is "failed" and requests are rejected at once. Restarts continue at the longest
pause, because the cause often goes away by itself: memory taken by a neighbour, a disk not mounted yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from ovserve.engine.client.grammars import GrammarProver, HelperProcess
from ovserve.engine.client.health import Health
from ovserve.engine.client.host import ModelProcess
from ovserve.engine.client.mailbox import PendingCalls
from ovserve.engine.client.process import EngineMessage, EngineProcess
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.spare import Spare
from ovserve.engine.client.state import CurrentState, Dormancy, EngineState, EngineStats, InFlight, Listeners
from ovserve.engine.protocol.messages import Pong, ToEngine, Usage
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import EngineDead, LoadError, Overloaded, OvserveError, Unavailable

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Spec)
F = TypeVar("F", bound=Facts)


class EngineClient(ABC, Generic[S, F]):
    _requests: InFlight[Any]  # what it holds for clients, each of which must make progress
    _helpers: Sequence[GrammarProver | HelperProcess] = ()
    reserved = 0  # choices of requests about to be sent; the senders count it
    batch_lines = 0  # choices of lines of batches among those that it holds or is about to get, likewise

    def __init__(
        self,
        spec: S,
        settings: EngineSettings | None = None,
    ) -> None:
        """One engine, not started: `await client.launch()` is to follow."""
        self.spec: S = spec
        self.facts: F = spec.facts_type()  # type: ignore[assignment]  # of the spec's type
        self._settings = settings or EngineSettings()
        self._process: ModelProcess | None = None
        self._spare: Spare | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._current = CurrentState()
        self.dormancy = Dormancy()
        self._pending = PendingCalls()
        self._restarts = self._stalls = 0
        self.usage = Usage()  # as the engine last reported
        self.last_message = time.monotonic()  # when the engine last sent anything
        self.expected = 0  # requests that it has or may get; its servables count it
        self.on_room = Listeners()  # called when there may be room for more

    @classmethod
    async def start(cls, spec: S, settings: EngineSettings | None = None, spare: Spare | None = None) -> Self:
        """Return a client that is ready. Raises as `launch`."""
        client = cls(spec, settings)
        await client.launch(spare)
        return client

    async def launch(self, spare: Spare | None = None) -> None:
        """Start it, in the process of `spare` if that has one for it; ready on return.

        Raises LoadError when the first engine does not load; it is not retried.
        """
        self._spare = spare
        await self._launch()
        self._begin_supervision()

    def rest(self, facts: F) -> None:
        """Begin without a process, in the place of `launch`, because the facts are known."""
        self.facts = facts
        self.dormancy.begin()
        self._become(EngineState("unloaded"))
        self._begin_supervision()

    def _begin_supervision(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise(), name="engine supervisor")
        self._supervisor.add_done_callback(self._supervisor_done)

    # ---- state, and the rest of an engine without requests

    @property
    def state(self) -> EngineState:
        return self._current.state

    def _become(self, state: EngineState) -> None:
        if not (self.dormancy.asleep and state.name in ("restarting", "failed")):  # whatever its process does
            self._current.become(state)

    async def _ready_process(self) -> ModelProcess:
        """Return the ready process, usually at once."""
        self.dormancy.last_used = time.monotonic()
        if not self._takes_requests():
            wait, again, why = (
                self._settings.restart_wait,
                self._settings.restarts.longest_pause,
                "is restarting",
            )
            if self.dormancy.managed:
                wait, why = self._settings.ready_timeout, "is being loaded"
            with self.dormancy.request():
                await self._current.until_ready(self._takes_requests, wait, again=again, why=why)
        return self._process  # type: ignore[return-value]  # ready

    def _takes_requests(self) -> bool:
        return self._process is not None and self.state.name == "ready" and not self.dormancy.refuses()

    @property
    def load_allowance(self) -> float:
        """Return the seconds that a request may wait longer because the engine has to be loaded for it."""
        return self._settings.ready_timeout if self.dormancy.managed and not self._takes_requests() else 0.0

    def refuse_impatient(self, remaining: float | None) -> None:
        """Raise Overloaded for a client that does not wait long enough, `remaining` seconds, for the load.

        The engine is loaded nonetheless, so that the client finds it when it comes back.
        """
        if remaining is None or self._takes_requests() or not self.dormancy.managed:
            return
        if (seconds := self.dormancy.estimate()) > remaining:
            self.dormancy.expect_retry(seconds)
            raise Overloaded(
                f"the model is not loaded, which takes about {seconds:.0f} s; this client waits "
                f"{remaining:.1f} s",
                cause="unloaded",
                retry_after=max(1.0, seconds),
            )

    @property
    def busy(self) -> bool:
        """Return whether its process has work for clients, without requests that are about to be sent."""
        return len(self._requests) > 0 or len(self._pending) > 0

    async def sleep(self) -> bool:
        """End the process until `wake`; False, with nothing done, if it has work or has not been loaded."""
        if self.busy or self.state.name not in ("ready", "failed"):
            return False
        process = self._process
        self.dormancy.begin()
        self._become(EngineState("unloaded"))
        for helper in self._helpers:
            await helper.rest()
        if process is not None:
            await process.stop(self._settings.stop_grace)
        return True

    def wake(self, spare: Spare | None = None) -> None:
        """Load it again, as `launch` does; `state` says when it is ready."""
        if self.state.name == "unloaded":
            self._become(EngineState("waking"))
            self._spare = spare
            self.dormancy.end()

    async def settled(self) -> None:
        """Return when a load or a restart has come to an end, whichever it is."""
        await self._current.until(lambda: self.state.name not in ("starting", "waking", "restarting"))

    def hold(self, held: bool) -> None:
        """Take no new requests, or take them again."""
        if self.dormancy.held != held:
            self.dormancy.held = held
            self._become(self.state)

    @property
    def pid(self) -> int:
        """Return the PID of the engine process; 0 while it restarts."""
        return self._process.pid if self._process else 0

    @property
    def shared_process(self) -> str:
        """Return the name of the process that it shares with other models; empty: it has one of its own."""
        return self._process.name if self._process else ""

    @property
    def in_flight(self) -> int:
        """Return the choices that the engine holds for clients, or is about to get."""
        return len(self._requests) + self.reserved

    def stats(self) -> EngineStats:
        return replace(
            self._requests.stats,
            running=len(self._requests),
            restarts=self._restarts,
            stalls=self._stalls,
        )

    @property
    def short_of_memory(self) -> str:
        """Return why it should get no more requests now; empty: it may."""
        return "" if self._process is None else self._health.memory_limit.shortage

    @property
    def memory_held(self) -> int:
        """Return the bytes of memory, as of the last check; 0 while it has no process."""
        return 0 if self._process is None else self._health.memory_limit.held

    def kill(self) -> None:
        """Make the next `stop` not wait for an engine that does not respond."""
        self._become(EngineState("stopped", "the engine has been killed"))
        self._end_all(Unavailable("the engine is stopping"))
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """Stop it; running requests end with Unavailable. Any number of times; also while restarting."""
        self._become(EngineState("stopped", "the engine has been stopped"))
        self._end_all(Unavailable("the engine is stopping"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        for helper in self._helpers:
            await helper.stop()
        if self._process is not None:
            await self._process.stop(self._settings.stop_grace)

    # ---- the process and its successors

    async def _launch(self) -> None:
        process, facts = await self._start_process()
        self.facts = facts  # type: ignore[assignment]  # of the spec's type
        health = Health(process, self.spec, self._settings.restarts)
        if (fault := health.memory_limit.fault()) is not None:
            process.mute()
            await process.stop(self._settings.stop_grace)
            raise LoadError(fault, file=self.spec.model_path)
        self._process = process
        self._on_launched()
        self._health = health
        self.dormancy.loaded()
        self._become(EngineState("ready"))
        log.info("engine[%d] is ready after %.1f s", process.pid, self.facts.load_seconds)

    async def _start_process(self) -> tuple[ModelProcess, Facts]:
        process = self._spare.take(self.spec) if self._spare is not None else None
        if process is not None:
            try:
                return process, await self._start_in(process)
            except LoadError:
                if not process.was_killed:
                    raise
                # Its memory was wanted while it was idle, or is now: a process of its own decides which.
                log.warning("engine[%d], started in advance, was killed; starting another", process.pid)
        process = EngineProcess()
        return process, await self._start_in(process)

    async def _start_in(self, process: EngineProcess) -> Facts:
        process.serve(self._on_message, self._on_end)
        return await process.start(self.spec, ready_timeout=self._settings.ready_timeout)

    async def _supervise(self) -> None:
        policy = self._settings.restarts
        short_lives = 0
        while True:
            began = time.monotonic()
            to_blame = self._process is not None and await self._until_death()
            lasted = time.monotonic() - began >= policy.lasted
            short_lives = 0 if lasted else short_lives + to_blame
            if short_lives > policy.max_short_lives:
                reason = f"{short_lives} engines in a row ended soon after their start; {self.state.reason}"
                self._give_up(reason)
            # Its host has paused for a model that is not to blame.
            await asyncio.sleep(policy.pause(short_lives) if to_blame else 0)
            load_failures, woken = 0, self.dormancy.asleep
            while True:
                await self.dormancy.until_awake()
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
            self._restarts += not woken

    def _give_up(self, reason: str) -> None:
        """Mark the engine as failed: requests are rejected, and restarts continue."""
        self._become(EngineState("failed", reason))
        self._requests.end_waiting(EngineDead("the engine has failed", retry_after=1.0))

    async def _until_death(self) -> bool:
        """Wait until the process has ended; return whether this engine is to blame for that."""
        process = self._process
        if process is None:
            raise RuntimeError("supervising an engine that was not launched")
        watching = asyncio.create_task(self._watch(process), name="engine watchdog")
        try:
            await process.ended.wait()
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        if not watching.cancelled() and (error := watching.exception()) is not None:
            raise error
        await process.stop(self._settings.stop_grace)
        self._process = None
        self._on_death(process)
        if self.dormancy.asleep:
            log.info("engine[%d] is unloaded", process.pid)
            return False
        self._become(EngineState("restarting", f"the engine process ended ({process.how_it_ended()})"))
        if process.to_blame:
            log.error("engine[%d]: %s; starting another", process.pid, self.state.reason)
        return process.to_blame

    def _supervisor_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the engine supervisor failed", exc_info=error)
            self._become(EngineState("failed", f"a fault in the server: {error!r}"))

    # ---- the health of a process

    async def _watch(self, process: ModelProcess) -> None:
        """Send it the requests of the previous process, then watch its progress."""
        repeating = asyncio.create_task(self._resume(process), name="requests of the previous engine")
        try:
            while True:
                await asyncio.sleep(self._health.watchdog.interval)
                if (stalled := self._check_health()) is not None:
                    await self._replace(process, stalled)
                    return
                limit = self._health.memory_limit
                grown = process.memory_limit is None and limit.outgrown  # a shared one is its host's matter
                reason = process.retiring or (limit.shortage if grown else "")
                if reason and await self._idle(process):
                    await self._renew(process, reason)
                    return
        finally:
            repeating.cancel()

    async def _replace(self, process: ModelProcess, reason: str) -> None:
        """Replace a stalled engine; requests do not wait while it logs its state."""
        process.mute()
        self._stalls += 1
        self._become(EngineState("restarting", reason))
        log.error("engine[%d]: %s; replacing it", process.pid, reason)
        report = [*self._requests.report(), *process.threads()]
        self._lost(reason)
        for line in report:
            log.error("engine[%d]: %s", process.pid, line)
        await process.dump_stacks()
        process.kill(reason)

    async def _renew(self, process: ModelProcess, reason: str) -> None:
        """Replace an idle engine that has grown too large, or whose process it has to leave."""
        self._become(EngineState("restarting", reason))
        log.warning("engine[%d]: %s; replacing it", process.pid, reason)
        await process.stop(self._settings.stop_grace)

    def _check_health(self) -> str | None:
        patient, requests = self.spec.patient, self._requests
        return self._health.check(
            requests=0 if patient else len(requests),
            pending=len(self._pending),
            busy=patient and len(requests) > 0,  # it answers pings while it works
            timeout=requests.patience(self._settings.restarts.stall_timeout),
            prefill_tokens=requests.prefill_tokens,
        )

    async def _resume(self, process: ModelProcess) -> None:
        if not process.ended.is_set():  # otherwise they keep waiting
            await self._requests_resume(process)

    # ---- messages of the process, in its protocol's data_received()

    def _on_message(self, message: EngineMessage) -> None:
        watchdog = self._health.watchdog
        self.last_message = time.monotonic()
        if isinstance(message, Pong):
            watchdog.answered()
            return
        progress, usage = self._on_kind_message(message)
        watchdog.on_message(progress=progress, usage=usage)
        if usage is not None:
            self.usage = usage

    def _failed_in_step(self, reason: str) -> None:
        """Handle the announcement that the engine is about to end; a request sent from now on would be
        lost."""
        if self.state.name == "ready":
            self._become(EngineState("restarting", reason))
            self._lost(reason)

    def _on_end(self) -> None:
        ended = "the engine process ended"
        if self._process is not None and self._process.killed_by_kernel:
            ended = "the engine process was killed by the kernel, out of memory,"
        if self.state.name == "ready":
            self._become(EngineState("restarting", ended.rstrip(",")))
        self._lost(f"{ended} under this request")

    def _lost(self, reason: str) -> None:
        """Handle the loss once per process, at the first sign: requests that wait for the next one must not
        count as its."""
        self.usage = Usage()
        self._pending.fail_all(EngineDead(reason, retry_after=1.0))
        self._requests.lost(reason)

    def _end_all(self, error: OvserveError) -> None:
        self.usage = Usage()
        self._pending.fail_all(error)
        self._requests.end_all(error)

    def _send(self, message: ToEngine) -> None:
        if self._process is not None:
            self._process.send(message)

    # ---- the requests of a kind of engine

    async def _idle(self, process: ModelProcess) -> bool:
        """Return whether the process can be replaced without a loss."""
        return not (self.busy or self.reserved)

    @abstractmethod
    def _on_kind_message(self, message: EngineMessage) -> tuple[bool, Usage | None]:
        """Handle a message; return whether a request gained something by it, and the engine's usage."""

    @abstractmethod
    async def _requests_resume(self, process: ModelProcess) -> None:
        """Send the requests of the previous process to the one that is ready now."""

    def _on_launched(self) -> None:
        """Handle a new process that is ready."""

    def _on_death(self, process: ModelProcess) -> None:
        """Handle the end of a process, when its cause is known."""

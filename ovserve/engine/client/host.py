"""EngineHost: one process that holds many small models; HostedModel: one of them, with the surface that
`EngineClient` knows of a process.

So restarts, health, state and counters of a hosted model are those of any engine. Its end is the end of the
shared process, or its own unload.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from ovserve.engine.client.blame import Blame, Trial
from ovserve.engine.client.process import EngineMessage, EngineProcess, ignore, ignore_end
from ovserve.engine.client.settings import SHARED_CHECK_SECONDS, EngineSettings, MemoryLimit
from ovserve.engine.protocol import messages
from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.specs import Facts, HostSpec, Spec
from ovserve.errors import LoadError

log = logging.getLogger(__name__)

MAX_PARALLEL_LOADS = 4  # at a time; more would only share the processors
LOAD_SECONDS = 10.0  # a load that takes longer does not hold up others
EXIT_WAIT = 5.0  # seconds, for a process whose socket is closed
JUDGE_SECONDS = 0.5  # for more models to stall together with the first, and for its unload
PROBE_SECONDS = 5.0  # for a sign of life of the process, once one of its models has stalled


class HostEnded(Exception):
    """The shared process ended before the model was loaded."""


class HostedModel:
    def __init__(self, host: EngineHost, number: int, spec: Spec) -> None:
        self.host = host
        self.number = number
        self.spec = spec
        self.to_blame = False  # it ended the shared process
        self.loading = self.died_loading = self.loaded = False
        self.ended = asyncio.Event()
        self.sent = 0  # messages
        self._unloading = False
        self._judged: asyncio.Task[None] | None = None  # whether it alone has stalled
        self._calls: set[int] = set()  # running in the shared process
        self._first: asyncio.Future[messages.Ready | messages.LoadFailed | None] = (
            asyncio.get_running_loop().create_future()
        )
        self.mute()

    async def load(self, ready_timeout: float) -> Facts:
        """Return when it is loaded. Raises LoadError, or HostEnded."""
        self.loading = True
        try:
            self.host.send(self.number, messages.Load.of(self.spec))
            async with asyncio.timeout(ready_timeout):
                first = await self._first
        except TimeoutError:
            self.kill(f"{self.spec.model_path} was not loaded after {ready_timeout:g} s")
            raise LoadError(
                f"the engine was not ready after {ready_timeout:g} s", file=self.spec.model_path
            ) from None
        except BaseException:
            self._leave()
            raise
        finally:
            self.loading = False
        if first is None:
            raise HostEnded
        if isinstance(first, messages.LoadFailed):
            self._end()
            raise LoadError(first.message, field=first.field, transient=first.transient)
        self.loaded = True
        facts: Facts = msgspec.msgpack.decode(first.facts, type=self.spec.facts_type)
        return facts

    # ---- what EngineClient asks of a process

    @property
    def pid(self) -> int:
        return self.host.process.pid

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def segments(self) -> Segments:
        return self.host.process.segments

    @property
    def memory_limit(self) -> MemoryLimit:
        return self.host.memory_limit

    @property
    def retiring(self) -> str:
        """Return why it has to move to another process; empty: it may stay."""
        return self.host.must_move()

    @property
    def killed_by_kernel(self) -> bool:
        return self.host.process.killed_by_kernel

    @property
    def ended_by_itself(self) -> bool:
        return self.host.process.ended_by_itself

    def serve(self, on_message: Callable[[EngineMessage], None], on_end: Callable[[], None]) -> None:
        self._on_message, self._on_end = on_message, on_end

    def mute(self) -> None:
        self.serve(ignore, ignore_end)

    def send(self, message: messages.ToEngine) -> None:
        """Send a message; dropped if the model is gone. Raises FrameError for one that is too large."""
        self.sent += 1
        if self.ended.is_set():
            if isinstance(message, messages.Call):
                self.segments.free(message.blobs)
            return
        if isinstance(message, messages.Ping):
            self.host.ping(self)
        elif isinstance(message, messages.Call | messages.Cancel):
            self.host.send(self.number, message)
            if isinstance(message, messages.Call):
                self._calls.add(message.id)
        else:
            raise TypeError(f"{type(message).__name__} is not a message for a hosted model")

    def how_it_ended(self) -> str:
        if self.host.ended:
            return f"the process shared with other models ended: {self.host.process.how_it_ended()}"
        return self.host.retiring or "it was unloaded"

    def check_kills(self) -> None:
        self.host.process.check_kills()

    def threads(self) -> list[str]:
        return self.host.process.threads() if self.host.first_report(self) else []

    async def dump_stacks(self) -> None:
        self._stalled()  # before the stacks are written, which lets a stopped process go on
        if self.host.first_report(self):
            await self.host.process.dump_stacks()

    def kill(self, reason: str = "") -> None:
        """Give it up. Without a reason the server ends, and the shared process is killed with it. Else the
        model has stalled, and the others are moved away from what it has left running."""
        if not reason:
            self.host.process.kill()
            return
        if not self.ended.is_set():
            self._stalled()
            self._leave()

    def _stalled(self) -> None:
        if self._judged is None:
            self._judged = self.host.stalled(self)

    async def stop(self, grace: float) -> None:
        """Unload it, and wait until it is gone. For an ended process, wait until its end is understood."""
        if self._judged is not None and self.ended.is_set():
            await asyncio.wait([self._judged])
        if self.host.ended:
            await self.host.gone.wait()
        elif not self.ended.is_set():
            self._leave_soon()
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if self.host.closing else grace):
                    await self.ended.wait()
            if not self.ended.is_set():
                if not self.host.closing:
                    log.warning("engine[%d]: %s is not unloaded after %g s", self.pid, self.label, grace)
                    self.host.retire(f"{self.label} does not end its calls")
                self._end()

    @property
    def label(self) -> str:
        return f"{self.spec.kind} {self.spec.model_path}"

    # ---- for its host

    @property
    def busy(self) -> bool:
        """Return whether the process does anything for it."""
        return bool(self._calls) or self.loading or self._unloading

    def receive(self, message: messages.FromModel) -> None:
        inner = message.message
        if isinstance(inner, messages.Ready | messages.LoadFailed):
            if not self._first.done():
                self._first.set_result(inner)
            return
        if isinstance(inner, messages.Unloaded):
            self._end()
            return
        if isinstance(inner, messages.Done | messages.Failed) or (
            isinstance(inner, messages.Item) and inner.last
        ):
            self._calls.discard(inner.id)
        if isinstance(inner, messages.Item | messages.Done | messages.Failed | messages.Pong):
            self._on_message(inner)

    def pong(self) -> None:
        self._on_message(messages.Pong())

    def host_ended(self) -> None:
        """Handle the end of the process, at its first sign."""
        if not self._first.done():
            self._first.set_result(None)
        self.ended.set()
        self._on_end()

    def _leave_soon(self) -> None:
        if not self._unloading:
            self._unloading = True
            self.host.send(self.number, messages.Stop())

    def _leave(self) -> None:
        """Unload it without waiting for that."""
        if not self.ended.is_set():
            self._leave_soon()
            self._end()

    def _end(self) -> None:
        self.ended.set()
        self.host.remove(self)
        self._on_end()


class EngineHost:
    def __init__(
        self, name: str, settings: EngineSettings, blame: Blame, on_end: Callable[[EngineHost], None]
    ) -> None:
        """A process, not started. `on_end` is called once, when the cause of its end is known."""
        self.name = name
        self.process = EngineProcess(self._on_message, self._on_end)
        self.memory_limit: MemoryLimit
        self.models: dict[int, HostedModel] = {}
        self.began = time.monotonic()
        self.retiring = ""  # why it gets no more models, and its own are to leave
        self.closing = False  # it is stopped together with all of its models
        self.wanted = True  # no one has ended it on purpose
        self.ended = False
        self.gone = asyncio.Event()  # it has ended, and it is known why
        self.suspects: list[HostedModel] = []  # that were busy at its end
        self.full = False
        self._settings = settings
        self._blame = blame
        self._told = on_end
        self._numbers = itertools.count(1)
        self._pinged: list[HostedModel] = []
        self._slots = asyncio.Semaphore(MAX_PARALLEL_LOADS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = asyncio.Event()
        self._stalled: list[HostedModel] = []
        self._unloaded: set[int] = set()  # of the models that were not waited for
        self._probing: asyncio.Task[None] | None = None
        self._reported: HostedModel | None = None
        self._trial: tuple[Trial, HostedModel] | None = None

    async def start(self) -> None:
        """Raises LoadError, or OSError."""
        await self.process.start(HostSpec(""), ready_timeout=self._settings.ready_timeout)
        self.memory_limit = MemoryLimit(
            self._settings.restarts.memory_limit, self.process.pid, check_seconds=SHARED_CHECK_SECONDS
        )
        log.info("engine[%d] (%s) is ready for small models", self.process.pid, self.name)

    async def load(self, spec: Spec, trial: Trial) -> tuple[HostedModel, Facts]:
        """Load a model; return it and its facts. Raises LoadError, or HostEnded."""
        hosted = HostedModel(self, next(self._numbers), spec)
        self.models[hosted.number] = hosted
        trial.of(hosted.ended, lambda: hosted.loaded and not hosted.busy)
        if trial.open:
            self._trial = trial, hosted
        try:
            async with self._slot():
                facts = await hosted.load(self._settings.ready_timeout)
        except BaseException:
            self.remove(hosted)
            raise
        self.memory_limit.loaded()
        return hosted, facts

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Hold one of the places of loads, for LOAD_SECONDS at most."""
        await self._slots.acquire()
        timer = asyncio.get_running_loop().call_later(LOAD_SECONDS, self._slots.release)
        try:
            yield
        finally:
            if timer.when() > asyncio.get_running_loop().time():
                timer.cancel()
                self._slots.release()

    @property
    def open(self) -> bool:
        """Return whether it may get another model."""
        shut = self.ended or self.full or self.closing or not self.wanted or self.retiring
        return not shut and not self.memory_limit.full

    def must_move(self) -> str:
        """Return why its models have to move; empty: they need not. An idle process that has grown over its
        limit is ended on the way: its models come back in another."""
        limit = self.memory_limit
        if limit.outgrown and self.wanted and not self._busy():
            log.warning("engine[%d] (%s): %s; replacing it", self.process.pid, self.name, limit.shortage)
            self.wanted = False
            self._later(self.process.stop(self._settings.stop_grace))
        return self.retiring

    def send(
        self, number: int, message: messages.Load | messages.Call | messages.Cancel | messages.Stop
    ) -> None:
        """Send a message to a model. Raises FrameError for one that is too large."""
        self.process.send(messages.ToModel(number, message))

    def ping(self, hosted: HostedModel) -> None:
        """Ask for a sign of life, once for all models that want one."""
        if not self._pinged:
            self.process.send(messages.Ping())
        self._pinged.append(hosted)

    def remove(self, hosted: HostedModel) -> None:
        self.models.pop(hosted.number, None)
        keep = self._settings.keep_shared and not self.retiring
        if not self.models and self.wanted and not (self.ended or keep):
            self.wanted = False
            self._later(self._stop_empty())

    def retire(self, reason: str) -> None:
        """Give it no more models; its own move to another process, each when it has no call."""
        if not self.retiring:
            self.retiring = reason
            log.warning(
                "engine[%d] (%s): %s; its models move to another", self.process.pid, self.name, reason
            )

    def stalled(self, hosted: HostedModel) -> asyncio.Task[None]:
        """Handle a model that makes no progress: move the others away from it, or, if the process does not
        even read its messages, kill it. The task ends when that is known."""
        self.retire(f"{hosted.label} makes no progress")
        if hosted.busy:
            self._stalled.append(hosted)
        if self._probing is None:
            self._probing = self._later(self._probe())
        return self._probing

    def first_report(self, hosted: HostedModel) -> bool:
        """Return whether this model is the first whose client reports on the process, for the log."""
        self._reported = self._reported or hosted
        return self._reported is hosted

    def accuse(self) -> None:
        """Record that the process ended by itself."""
        self._blame.ended([hosted.spec for hosted in self.suspects])
        if len(self.suspects) == 1:
            (culprit,) = self.suspects
            culprit.to_blame = True
            if culprit.died_loading:
                self._blame.convict(culprit.spec)

    async def stop(self) -> None:
        """Stop the process and all of its models."""
        self.closing, self.wanted = True, False
        await self.process.stop(self._settings.stop_grace)
        if self._probing is not None:
            self._probing.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ---- inside

    async def _stop_empty(self) -> None:
        if self._probing is not None:  # the answer to the last unload is part of it
            await asyncio.wait([self._probing])
        await self.process.stop(self._settings.stop_grace)

    async def _probe(self) -> None:
        self._heard.clear()
        self.process.send(messages.Ping())
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._heard.wait()
        except TimeoutError:
            if not self.ended:
                self.wanted = False
                log.error("engine[%d] (%s) does not answer; killing it", self.process.pid, self.name)
                self.suspects = list(dict.fromkeys([*self._stalled, *self._busy()]))
                self.accuse()
                self.process.kill(self.retiring)
            return
        await asyncio.sleep(JUDGE_SECONDS)
        # A stopped process goes on when its stacks are written; what then ends was not stuck.
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_SECONDS):
                for hosted in self._stalled:
                    await hosted.ended.wait()
        await asyncio.sleep(JUDGE_SECONDS)
        stuck = [hosted for hosted in self._stalled if hosted.number not in self._unloaded]
        if len(stuck) == 1:
            (culprit,) = stuck
            culprit.to_blame = True
            self._blame.convict(culprit.spec)
        else:  # the whole process has stood still
            self._blame.ended([hosted.spec for hosted in self._stalled])

    def _on_message(self, message: EngineMessage) -> None:
        self._heard.set()
        if isinstance(message, messages.FromModel):
            if (hosted := self.models.get(message.model)) is not None:
                hosted.receive(message)
            elif isinstance(message.message, messages.Unloaded):
                self._unloaded.add(message.model)
        elif isinstance(message, messages.Pong):
            pinged, self._pinged = self._pinged, []
            for hosted in pinged:
                hosted.pong()

    def _on_end(self) -> None:
        self.ended = True
        self.suspects = self._busy()
        models, self.models = list(self.models.values()), {}
        for hosted in self.suspects:
            hosted.died_loading = hosted.loading
        for hosted in models:
            hosted.host_ended()
        self._later(self._understand(len(models)))

    def _busy(self) -> list[HostedModel]:
        """Return the models that the process works for; only the one on trial, if it does for that."""
        busy = [hosted for hosted in self.models.values() if hosted.busy]
        if self._trial is not None:
            trial, tried = self._trial
            if trial.open and tried in busy:
                return [tried]
        return busy

    async def _understand(self, models: int) -> None:
        """Collect the exit status, which says why it ended."""
        await self.process.stop(EXIT_WAIT)
        if self.wanted:
            how = self.process.how_it_ended()
            log.error("engine[%d] (%s) with %d models: %s", self.process.pid, self.name, models, how)
        self._told(self)
        self.gone.set()

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=self.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


ModelProcess = EngineProcess | HostedModel

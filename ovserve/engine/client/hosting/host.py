"""EngineHost: one process that holds many small models."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from ovserve.engine.client.health.memory_limit import SharedMemoryLimit
from ovserve.engine.client.hosting.blame import Blame
from ovserve.engine.client.hosting.hosted import HostedModel
from ovserve.engine.client.process import EngineMessage, EngineProcess
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.protocol.messages import Call, Cancel, FromModel, Load, Ping, Pong, Stop, ToModel
from ovserve.engine.protocol.specs import Facts, HostSpec, Spec

log = logging.getLogger(__name__)

LOADS = 4  # at a time; more would only share the processors
LOAD_SECONDS = 10.0  # a load that takes longer does not hold up others
EXIT_WAIT = 5.0  # seconds, for a process whose socket is closed
PROBE_SECONDS = 5.0  # for a sign of life of the process, once one of its models has stalled


class EngineHost:
    def __init__(
        self, name: str, settings: EngineSettings, blame: Blame, on_end: Callable[[EngineHost], None]
    ) -> None:
        """A process, not started. `on_end` is called once, when the cause of its end is known."""
        self.name = name
        self.process = EngineProcess(self._on_message, self._on_end)
        self.memory_limit: SharedMemoryLimit
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
        self._slots = asyncio.Semaphore(LOADS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = 0  # messages of the process

    async def start(self) -> None:
        """Raises LoadError, or OSError."""
        await self.process.start(HostSpec(""), ready_timeout=self._settings.ready_timeout)
        self.memory_limit = SharedMemoryLimit(self._settings.restarts.memory_limit, self.process.pid)
        log.info("engine[%d] (%s) is ready for small models", self.process.pid, self.name)

    async def load(self, spec: Spec) -> tuple[HostedModel, Facts]:
        """Load a model; return it and its facts. Raises LoadError, or HostEnded."""
        hosted = HostedModel(self, next(self._numbers), spec)
        self.models[hosted.number] = hosted
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
        if limit.process_outgrown and self.wanted and not any(hosted.busy for hosted in self.models.values()):
            log.warning("engine[%d] (%s): %s; replacing it", self.process.pid, self.name, limit.shortage)
            self.wanted = False
            self._later(self.process.stop(self._settings.stop_grace))
        return self.retiring

    def send(self, number: int, message: Load | Call | Cancel | Stop) -> None:
        """Send a message to a model. Raises FrameError for one that is too large."""
        self.process.send(ToModel(number, message))

    def ping(self, hosted: HostedModel) -> None:
        """Ask for a sign of life, once for all models that want one."""
        if not self._pinged:
            self.process.send(Ping())
        self._pinged.append(hosted)

    def remove(self, hosted: HostedModel) -> None:
        self.models.pop(hosted.number, None)
        if not self.models and self.wanted and not self.ended:
            self.wanted = False
            self._later(self.process.stop(self._settings.stop_grace))

    def retire(self, reason: str) -> None:
        """Give it no more models; its own move to another process, each when it has no call."""
        if not self.retiring:
            self.retiring = reason
            log.warning(
                "engine[%d] (%s): %s; its models move to another", self.process.pid, self.name, reason
            )

    def stalled(self, hosted: HostedModel, reason: str) -> None:
        """A model makes no progress: move the others away from it, or, if none can, kill the process."""
        self._blame.convict(hosted.spec)
        self.retire(reason)
        self._later(self._probe(reason))

    async def stop(self) -> None:
        """Stop the process and all of its models."""
        self.closing, self.wanted = True, False
        await self.process.stop(self._settings.stop_grace)
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ---- inside

    async def _probe(self, reason: str) -> None:
        """Kill the process unless it reads its messages: all of its models stand still then."""
        sent = self._heard
        self.process.send(Ping())
        await asyncio.sleep(PROBE_SECONDS)
        if self._heard == sent and not self.ended:
            self.wanted = False
            log.error("engine[%d] (%s) does not answer; killing it", self.process.pid, self.name)
            await self.process.dump_stacks()
            self.process.kill(reason)

    def _on_message(self, message: EngineMessage) -> None:
        self._heard += 1
        if isinstance(message, FromModel):
            if (hosted := self.models.get(message.model)) is not None:
                hosted.receive(message)
        elif isinstance(message, Pong):
            pinged, self._pinged = self._pinged, []
            for hosted in pinged:
                hosted.pong()

    def _on_end(self) -> None:
        self.ended = True
        models, self.models = list(self.models.values()), {}
        self.suspects = [hosted for hosted in models if hosted.busy]
        for hosted in self.suspects:
            hosted.died_loading = hosted.loading
        for hosted in models:
            hosted.host_ended()
        self._later(self._understand(len(models)))

    async def _understand(self, models: int) -> None:
        """Collect the exit status, which says why it ended."""
        await self.process.stop(EXIT_WAIT)
        if self.wanted:
            how = self.process.how_it_ended()
            log.error("engine[%d] (%s) with %d models: %s", self.process.pid, self.name, models, how)
        self._told(self)
        self.gone.set()

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=self.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

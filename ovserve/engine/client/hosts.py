"""Hosts: which shared process a model is loaded into, and which models are not let into one again.

There is one such process as a rule. Another is started when the first has reached its memory limit, or when a
model in it has stalled; the models of the first then move. A process ends with its last model.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from ovserve.engine.client.blame import Blame, Trial
from ovserve.engine.client.host import EngineHost, HostedModel, HostEnded
from ovserve.engine.client.process import EngineMessage
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import LoadError

MAX_LOAD_ATTEMPTS = 5  # loads of one model that ended with the process, through no fault of its own


class NotShared(Exception):
    """The model gets a process of its own; the text says why."""


class Hosts:
    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._hosts: set[EngineHost] = set()
        self._starting: asyncio.Task[EngineHost] | None = None
        self.blame = Blame()
        self._short_lives = 0  # in a row
        self._trials = asyncio.Lock()
        self._pausing = False
        self._paused = False  # the last process ended by itself: a pause comes before the next

    async def start(
        self, spec: Spec, on_message: Callable[[EngineMessage], None], on_end: Callable[[], None]
    ) -> tuple[HostedModel, Facts]:
        """Load a model into a shared process. Raises LoadError, OSError, or NotShared."""
        for _ in range(MAX_LOAD_ATTEMPTS):
            if self.blame.quarantined(spec):
                raise NotShared("it has stopped the shared process; it gets one of its own")
            trial = await self._trial(spec)
            try:
                host = await self._open()
                hosted, facts = await host.load(spec, trial)
            except HostEnded:
                await host.gone.wait()
                continue
            finally:
                trial.loaded()
            if host.memory_limit.fault() is not None and len(host.models) > 1:
                host.full = True
                await hosted.stop(self._settings.stop_grace)
                continue
            hosted.serve(on_message, on_end)
            return hosted, facts
        raise NotShared(f"the shared process ended {MAX_LOAD_ATTEMPTS} times; it gets one of its own")

    def kill(self) -> None:
        for host in self._hosts:
            host.process.kill()

    async def close(self) -> None:
        """Stop the processes and all models in them."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await asyncio.gather(*(host.stop() for host in self._hosts))

    def closing(self) -> None:
        """Stop unloading models one by one."""
        for host in self._hosts:
            host.closing = True

    async def _trial(self, spec: Spec) -> Trial:
        """Wait until no other suspect is on trial, if this one is suspected."""
        trial = Trial(self.blame, spec)
        if self.blame.suspected(spec):
            await trial.begin(self._trials)
        return trial

    async def _open(self) -> EngineHost:
        """Return the process that gets models now, started if there is none."""
        for host in self._hosts:
            if host.open:
                return host
        if self._starting is None:
            self._pausing = self._paused
            self._starting = asyncio.create_task(self._start(), name="shared engine process")
            self._starting.add_done_callback(self._started)
        if self._pausing and self._short_lives > self._settings.restarts.max_short_lives:
            raise LoadError(
                f"the shared process ended {self._short_lives} times in a row soon after its start"
            )
        return await asyncio.shield(self._starting)

    async def _start(self) -> EngineHost:
        if self._pausing:
            await asyncio.sleep(self._settings.restarts.pause(self._short_lives))
            self._pausing = False
        names = {host.name for host in self._hosts}
        name = next(name for n in range(1, len(names) + 2) if (name := f"shared-{n}") not in names)
        host = EngineHost(name, self._settings, self.blame, self._on_end)
        await host.start()
        self._paused = False
        self._hosts.add(host)
        return host

    def _started(self, task: asyncio.Task[EngineHost]) -> None:
        self._starting = None
        self._pausing = False
        if not task.cancelled():
            task.exception()  # it was raised to those that wait for the process

    def _on_end(self, host: EngineHost) -> None:
        self._hosts.discard(host)
        if not host.wanted:
            return
        lasted = time.monotonic() - host.began >= self._settings.restarts.lasted
        self._short_lives = 0 if lasted else self._short_lives + 1
        self._paused = True
        if host.process.exit_status == -signal.SIGKILL:
            return
        host.accuse()

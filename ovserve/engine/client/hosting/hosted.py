"""HostedModel: one model in a shared process, with the surface that `EngineClient` knows of a process.

So restarts, health, state and counters of a hosted model are those of any engine. Its end is the end of the
shared process, or its own unload.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ovserve.engine.client.memory_limit import MemoryLimit
from ovserve.engine.client.process import EngineMessage, EngineProcess, ignore, ignore_end
from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.messages import (
    Call,
    Cancel,
    Done,
    Failed,
    FromModel,
    Item,
    Load,
    LoadFailed,
    Ping,
    Pong,
    Ready,
    Stop,
    ToEngine,
    Unloaded,
)
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import LoadError

if TYPE_CHECKING:
    from ovserve.engine.client.hosting.host import EngineHost

log = logging.getLogger(__name__)


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
        self._first: asyncio.Future[Ready | LoadFailed | None] = asyncio.get_running_loop().create_future()
        self.mute()

    async def load(self, ready_timeout: float) -> Facts:
        """Return when it is loaded. Raises LoadError, or HostEnded."""
        self.loading = True
        try:
            self.host.send(self.number, Load.of(self.spec))
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
        if isinstance(first, LoadFailed):
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

    def send(self, message: ToEngine) -> None:
        """Send a message; dropped if the model is gone. Raises FrameError for one that is too large."""
        self.sent += 1
        if self.ended.is_set():
            if isinstance(message, Call):
                self.segments.free(message.blobs)
            return
        if isinstance(message, Ping):
            self.host.ping(self)
        elif isinstance(message, Call | Cancel):
            self.host.send(self.number, message)
            if isinstance(message, Call):
                self._calls.add(message.id)
        else:
            raise TypeError(f"{type(message).__name__} is not a message for a hosted model")

    def how_it_ended(self) -> str:
        if self.host.ended:
            return f"the process shared with other models was {self.host.process.how_it_ended()}"
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

    def receive(self, message: FromModel) -> None:
        inner = message.message
        if isinstance(inner, Ready | LoadFailed):
            if not self._first.done():
                self._first.set_result(inner)
            return
        if isinstance(inner, Unloaded):
            self._end()
            return
        if isinstance(inner, Done | Failed) or (isinstance(inner, Item) and inner.last):
            self._calls.discard(inner.id)
        if isinstance(inner, Item | Done | Failed | Pong):
            self._on_message(inner)

    def pong(self) -> None:
        self._on_message(Pong())

    def host_ended(self) -> None:
        """Handle the end of the process, at its first sign."""
        if not self._first.done():
            self._first.set_result(None)
        self.ended.set()
        self._on_end()

    def _leave_soon(self) -> None:
        if not self._unloading:
            self._unloading = True
            self.host.send(self.number, Stop())

    def _leave(self) -> None:
        """Unload it without waiting for that."""
        if not self.ended.is_set():
            self._leave_soon()
            self._end()

    def _end(self) -> None:
        self.ended.set()
        self.host.remove(self)
        self._on_end()


ModelProcess = EngineProcess | HostedModel

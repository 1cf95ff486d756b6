"""RestingEngine: the part of an engine client that lets its process end until a request needs it again."""

from __future__ import annotations

import time
from collections.abc import Callable

from ovserve.engine.client.dormancy import Dormancy
from ovserve.engine.client.hosting.hosted import ModelProcess
from ovserve.engine.client.prewarm import PrewarmedProcess
from ovserve.engine.client.state import CurrentState, EngineState
from ovserve.engine.client.watched import WatchedEngine
from ovserve.errors import Overloaded


class RestingEngine(WatchedEngine):
    dormancy: Dormancy
    _current: CurrentState
    _process: ModelProcess | None

    @property
    def state(self) -> EngineState:
        return self._current.state

    def _become(self, state: EngineState) -> None:
        if not (self.dormancy.asleep and state.name in ("restarting", "failed")):  # whatever its process does
            self._current.become(state)

    async def _ready_process(self) -> ModelProcess:
        """Return the ready process, usually at once."""
        self.dormancy.used = time.monotonic()
        if not self._takes_requests():
            wait, again, why = (
                self._settings.restart_wait,
                self._settings.restarts.longest_pause,
                "is restarting",
            )
            if self.dormancy.managed:
                wait, why = self._settings.ready_timeout, "is being loaded"
            with self.dormancy.wanted():
                await self._current.until_ready(self._takes_requests, wait, again=again, why=why)
        return self._process  # type: ignore[return-value]  # ready

    def _takes_requests(self) -> bool:
        return self._process is not None and self.state.name == "ready" and not self.dormancy.refuses()

    @property
    def load_allowance(self) -> float:
        """Return the seconds that a request may wait longer because the engine has to be loaded for it."""
        return self._settings.ready_timeout if self.dormancy.managed and not self._takes_requests() else 0.0

    def refuse_impatient(self, left: float | None) -> None:
        """Raise Overloaded for a client that does not wait long enough, `left` seconds, for the load.

        The engine is loaded nonetheless, so that the client finds it when it comes back.
        """
        if left is None or self._takes_requests() or not self.dormancy.managed:
            return
        if (seconds := self.dormancy.estimate()) > left:
            self.dormancy.keep_wanted(seconds)
            raise Overloaded(
                f"the model is not loaded, which takes about {seconds:.0f} s; this client waits {left:.1f} s",
                cause="unloaded",
                retry_after=max(1.0, seconds),
            )

    @property
    def busy(self) -> bool:
        """Return whether its process has work for clients, without requests that are about to be sent."""
        return self._holds() > self._background() or self._open_calls() > 0

    async def sleep(self) -> bool:
        """End the process until `wake`; False, with nothing done, if it has work or has not been loaded."""
        if self.busy or self.state.name not in ("ready", "failed"):
            return False
        process = self._process
        self.dormancy.begin()
        self._become(EngineState("unloaded"))
        await self._rest_helpers()
        if process is not None:
            await process.stop(self._settings.stop_grace)
        return True

    def wake(self, prepared: Callable[[], PrewarmedProcess | None] = lambda: None) -> None:
        """Load it again, in the process that `prepared` returns, if any; `state` says when it is ready."""
        if self.state.name == "unloaded":
            self._become(EngineState("waking"))
            self.dormancy.end(prepared())

    async def settled(self) -> None:
        """Return when a load or a restart has come to an end, whichever it is."""
        await self._current.until(lambda: self.state.name not in ("starting", "waking", "restarting"))

    def hold(self, held: bool) -> None:
        """Take no new requests, or take them again."""
        if self.dormancy.held != held:
            self.dormancy.held = held
            self._become(self.state)

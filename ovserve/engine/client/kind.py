"""EngineKind: the requests of one kind of engine, and the messages about them, for `EngineClient`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ovserve.engine.client.hosting.hosted import ModelProcess
from ovserve.engine.client.process import EngineMessage
from ovserve.engine.client.state import EngineStats
from ovserve.engine.protocol.messages import Usage
from ovserve.errors import OvserveError


class EngineKind(ABC):
    reserved = 0  # choices of requests about to be sent; the senders count it
    batch_lines = 0  # choices of lines of batches among those that it holds or is about to get, likewise

    @abstractmethod
    def _holds(self) -> int:
        """Return the number of requests that the engine has, each of which must make progress."""

    def _background(self) -> int:
        """Return how many of these no client waits for: they make way for anything else."""
        return 0

    async def _idle(self, process: ModelProcess) -> bool:
        """Return whether the process can be replaced without a loss."""
        return not (self._holds() + self.reserved or self._open_calls())

    def _open_calls(self) -> int:
        """Return the number of short calls that the engine answers between two steps."""
        return 0

    @abstractmethod
    def _on_kind_message(self, message: EngineMessage) -> tuple[bool, Usage | None]:
        """Handle a message; return whether a request gained something by it, and the engine's usage."""

    @abstractmethod
    def _requests_lost(self, reason: str) -> None:
        """End the requests of a process that has gone, or keep them for the next one."""

    @abstractmethod
    def _requests_end(self, error: OvserveError, *, waiting_only: bool = False) -> None:
        """End all requests, or those that wait for the next process."""

    @abstractmethod
    async def _requests_resume(self, process: ModelProcess) -> None:
        """Send the requests of the previous process to the one that is ready now."""

    def _on_launched(self) -> None:  # noqa: B027  a kind may do without it
        """Handle a new process that is ready."""

    def _on_death(self, process: ModelProcess) -> None:  # noqa: B027  a kind may do without it
        """Handle the end of a process, when its cause is known."""

    def _patience(self, default: float) -> float:
        """Return the seconds that all requests allow a step to take; 0: no limit."""
        return default

    def _unread_tokens(self) -> int:
        """Return the prompt tokens of requests that have no token yet."""
        return 0

    @abstractmethod
    def _report(self) -> list[str]:
        """Return a line for each request that it holds, for the log of a stalled engine."""

    @abstractmethod
    def stats(self) -> EngineStats: ...

    async def _stop_helpers(self) -> None:  # noqa: B027  a kind may do without it
        """End helper processes."""

    async def _rest_helpers(self) -> None:  # noqa: B027  a kind may do without it
        """End helper processes until they are needed again."""

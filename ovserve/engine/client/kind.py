"""What a kind of engine adds to `EngineClient`: its requests, and the messages about them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from ovserve.engine.client.process import EngineMessage, EngineProcess
from ovserve.engine.client.state import EngineStats
from ovserve.engine.protocol.messages import Usage
from ovserve.errors import OvserveError


class EngineKind(ABC):
    @abstractmethod
    def _holds(self) -> int:
        """Requests that the engine has, each of which is to make progress."""

    def _questions_open(self) -> int:
        """Short questions that the engine has, which are answered between two steps."""
        return 0

    @abstractmethod
    def _on_kind_message(self, message: EngineMessage) -> tuple[bool, Usage | None]:
        """Handle a message; whether some request gained something by it, and how full the engine is."""

    @abstractmethod
    def _requests_lost(self, reason: str) -> None:
        """The process is gone: end its requests, or keep them for the next one."""

    @abstractmethod
    def _requests_end(self, error: OvserveError, *, waiting_only: bool = False) -> None:
        """End all requests, or those that wait for the next process."""

    @abstractmethod
    async def _requests_resume(self, process: EngineProcess) -> None:
        """Send what the process before left to the one that is ready now."""

    def _on_launched(self) -> None:  # noqa: B027  a kind may do without it
        """A new process is ready."""

    def _on_death(self, process: EngineProcess) -> None:  # noqa: B027  a kind may do without it
        """A process has ended, and it is known how."""

    def _patience(self, default: float) -> float:
        """Seconds that all requests allow a step to take; 0: for ever."""
        return default

    def _unread_tokens(self) -> int:
        """Prompt tokens of requests that have no token yet."""
        return 0

    @abstractmethod
    def _report(self) -> list[str]:
        """A line for each request that it holds, for the log when the engine has stalled."""

    @abstractmethod
    def stats(self) -> EngineStats: ...

    async def _stop_helpers(self) -> None:  # noqa: B027  a kind may do without it
        """End what runs beside the process."""

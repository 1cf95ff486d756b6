"""Bodies: what a request's body may hold, and where it is decoded. Built by `server.py`, kept by the manager.

Most bodies are decoded at once, in the event loop. A body with many JSON values or much text goes to a
process of its own, for every step whose time grows with it; what comes back is small or flat. A
step that reads schemas begins in the loop and moves to such a process when it has taken some milliseconds. So
no body holds the loop for long, whatever a client sends.

Decoding a million values takes a second and holds Python's global lock inside a few C calls. On a thread it
would stop every stream as well.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ovserve.api.openai.body import (
    DEFAULT_BOUNDS,
    UNREAD,
    BodyBounds,
    Head,
    check_bounds,
    is_light,
    read_head,
)
from ovserve.errors import PayloadTooLarge, Unavailable
from ovserve.llm.grammar.rules import Budget, Costly, in_loop
from ovserve.sandbox.messages import OutOfMemory
from ovserve.sandbox.pool import RETRY_AFTER, CallTimeout, Pool, ProcessEnded

CALL_SECONDS = 30.0  # for one call; the largest body within the default limits takes 3
MAX_MEMORY = 2 << 30  # bytes of a process's address space
BODY_NICENESS = 5  # below the engine and the event loop

T = TypeVar("T")


def initialize() -> None:
    os.nice(BODY_NICENESS)
    gc.disable()  # a call's objects die with it, without cycles worth a scan of a million values


def within_budget(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a body process."""
    with Budget():
        return function(*arguments)


def examine(body: bytes, bounds: BodyBounds) -> Head:
    """Check a large body, in a body process. A body that is not JSON is rejected by its decoder."""
    check_bounds(body, bounds)
    return read_head(body, large=True)


class Bodies:
    """Checks and decodes bodies. Times in seconds, memory in bytes."""

    def __init__(
        self, bounds: BodyBounds = DEFAULT_BOUNDS, *, seconds: float = CALL_SECONDS, memory: int = MAX_MEMORY
    ) -> None:
        self.bounds, self._smallest = bounds, bounds.smallest
        self._pool = Pool(
            f"{__name__}:initialize", seconds=seconds, memory=memory, purpose=" to decode large bodies"
        )

    async def admit(self, body: bytes) -> Head:
        """Check a JSON body against the bounds, and read its head: the one time that this is done.

        Raises InvalidArgument that names the bound.
        """
        if len(body) <= self._smallest or self._is_checked_here(body):
            return read_head(body)
        return await self._call(examine, body, self.bounds)

    async def check(self, body: bytes) -> bool:
        """Check a JSON body that has no head; whether it is large. Raises as `admit`."""
        if self._is_checked_here(body):
            return False
        await self._call(check_bounds, body, self.bounds)
        return True

    def _is_checked_here(self, body: bytes) -> bool:
        if not is_light(body):
            return False
        check_bounds(body, self.bounds)
        return True

    async def run(self, large: bool, function: Callable[..., T], *arguments: Any) -> T:
        """Return or raise what `function` does.

        It is called here, or in a separate process for a large body and for schemas that take long. That
        process finds it by its module and name, so it must not be a method.
        """
        if "." in function.__qualname__:
            raise TypeError(f"{function.__qualname__} cannot be called in another process")
        if not large:
            with suppress(Costly), in_loop():
                return function(*arguments)
        return await self._call(function, *arguments)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Raises Unavailable when no process is free or time is over, PayloadTooLarge if memory runs out."""
        label = f"{function.__module__}:{function.__qualname__}"
        try:
            return await self._pool.call(within_budget, function, *arguments, label=label)
        except CallTimeout:
            raise Unavailable(
                f"the body was not decoded within {self._pool.seconds:g} s", retry_after=RETRY_AFTER
            ) from None
        except (OutOfMemory, ProcessEnded) as error:
            raise PayloadTooLarge(f"the body cannot be decoded: {error}") from None

    async def stop(self) -> None:
        await self._pool.stop()


__all__ = ["UNREAD", "Bodies", "Head"]

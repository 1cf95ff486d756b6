"""Changes of what is served, each a task of its own that outlives the client that asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from ovserve.access import as_system
from ovserve.errors import Unavailable

RETRY_AFTER = 1.0  # seconds a client is asked to wait for a servable that is loading

T = TypeVar("T")


class Changes:
    def __init__(self, stopping: Callable[[], bool]) -> None:
        """`stopping`: whether the server stops, which ends changes under way."""
        self._stopping = stopping
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a change as the server, in a context of its own.

        Half a change would remain if its caller, a client, went away; and what it starts, such as engines,
        outlives the request that asked for it."""
        task = asyncio.create_task(_by_the_server(work), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def result(self, task: asyncio.Task[T]) -> T:
        """Return the result of a change. Raises Unavailable if the server was stopped over it."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._stopping():
                raise Unavailable("the server is stopping", retry_after=RETRY_AFTER) from None
            raise

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _by_the_server(work: Coroutine[Any, Any, T]) -> T:
    with as_system():
        return await work

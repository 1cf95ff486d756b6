"""Bodies: what a request's body may hold, and where it is decoded. Built by `server.py`, kept by the manager.

Most bodies are decoded at once, in the event loop. A body with many JSON values or much text goes to a
process of its own (`pool.py`), for every step whose time grows with it; what comes back is small or flat. A
step that reads schemas begins in the loop and moves to such a process when it has taken some milliseconds. So
no body holds the loop for long, whatever a client sends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ovserve.api.openai.body import Head, is_light, read_head
from ovserve.api.openai.bounds import DEFAULT_BOUNDS, BodyBounds, check_bounds
from ovserve.llm.grammar.budget import Costly, in_loop
from ovserve.sandbox.bodies.pool import BodyPool

T = TypeVar("T")


class Bodies:
    def __init__(self, bounds: BodyBounds = DEFAULT_BOUNDS, pool: BodyPool | None = None) -> None:
        self.bounds = bounds
        self.pool = pool or BodyPool()

    async def admit(self, body: bytes) -> Head:
        """Check a JSON body against the bounds, and read its head: the one time that this is done.

        Raises InvalidArgument that names the bound.
        """
        if self._is_checked_here(body):
            return read_head(body)
        return await self.pool.call(examine, body, self.bounds)

    async def check(self, body: bytes) -> bool:
        """Check a JSON body that has no head; whether it is large. Raises as `admit`."""
        if self._is_checked_here(body):
            return False
        await self.pool.call(check_bounds, body, self.bounds)
        return True

    def _is_checked_here(self, body: bytes) -> bool:
        if len(body) > self.bounds.smallest:
            if not is_light(body):
                return False
            check_bounds(body, self.bounds)
        return True

    async def run(self, large: bool, function: Callable[..., T], *arguments: Any) -> T:
        """Return or raise what `function` does.

        It is called here, or in a separate process for a large body and for schemas that take long.
        """
        if not large:
            with suppress(Costly), in_loop():
                return function(*arguments)
        return await self.pool.call(function, *arguments)

    async def stop(self) -> None:
        await self.pool.stop()


def examine(body: bytes, bounds: BodyBounds) -> Head:
    """Check a large body, in a body process. A body that is not JSON is rejected by its decoder."""
    check_bounds(body, bounds)
    return read_head(body, large=True)

"""Bodies: what a request's body may hold, and where it is decoded. Built by `server.py`, kept by the manager.

Most bodies are decoded at once, in the event loop. A body with many JSON values or much text goes to a
process of its own (`pool.py`), for every step whose time grows with it; what comes back is small or flat. A
step that reads schemas begins in the loop and moves to such a process when it has taken some milliseconds. So
no body holds the loop for long, whatever a client sends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ovserve.api.openai.body import is_light, peek_head
from ovserve.api.openai.bounds import DEFAULT_BOUNDS, BodyBounds, check_bounds
from ovserve.llm.grammar.budget import Costly, in_loop
from ovserve.sandbox.bodies.pool import BodyPool

T = TypeVar("T")


class Head(NamedTuple):
    """What is known of a body that was admitted. `large`: it is decoded in another process."""

    large: bool = False
    model: str | None = None  # of a large body; None also where the field is missing or not a string
    stream: bool = False  # of a large body


HERE = Head()  # of a body that is decoded where it is read


class Bodies:
    def __init__(self, bounds: BodyBounds = DEFAULT_BOUNDS, pool: BodyPool | None = None) -> None:
        self.bounds = bounds
        self.pool = pool or BodyPool()

    async def admit(self, body: bytes) -> Head:
        """Check a JSON body against the bounds. Raises InvalidArgument that names the bound."""
        if len(body) <= self.bounds.smallest:
            return HERE
        if is_light(body):
            check_bounds(body, self.bounds)
            return HERE
        return await self.pool.call(examine, body, self.bounds)

    async def run(self, large: bool, function: Callable[..., T], *arguments: Any) -> T:
        """What `function` returns or raises: called here, or in a process of its own for a large body and
        for schemas that take long."""
        if not large:
            with suppress(Costly), in_loop():
                return function(*arguments)
        return await self.pool.call(function, *arguments)

    async def stop(self) -> None:
        await self.pool.stop()


def examine(body: bytes, bounds: BodyBounds) -> Head:
    """Check a large body, in a body process. A body that is not JSON is for its decoder to refuse."""
    check_bounds(body, bounds)
    model, stream = peek_head(body)
    return Head(True, model, stream)

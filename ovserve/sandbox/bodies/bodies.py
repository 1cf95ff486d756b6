"""Bodies: what a request's body may hold, and where it is decoded. Built by `server.py`, kept by the manager.

Most bodies are decoded at once, in the event loop. A body with many JSON values or much text goes to a
process of its own, for every step whose time grows with it; what comes back is small or flat. A
step that reads schemas begins in the loop and moves to such a process when it has taken some milliseconds. So
no body holds the loop for long, whatever a client sends.

Decoding a million values takes a second and holds Python's global lock inside a few C calls. On a thread it
would stop every stream as well.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from ovserve.api.openai.body import Head, is_light, read_head
from ovserve.api.openai.bounds import DEFAULT_BOUNDS, BodyBounds, check_bounds
from ovserve.engine.protocol.frames import frame_head
from ovserve.errors import INTERNAL_MESSAGE, Internal, OvserveError, PayloadTooLarge, Unavailable
from ovserve.llm.grammar.budget import Costly, in_loop
from ovserve.sandbox.bodies.messages import Answer, Body, Broken, Call, Raised, Returned
from ovserve.sandbox.children import RETRY_AFTER, ChildEnded, ChildPool, ChildTimeout

MOST = 2  # processes
SECONDS = 30.0  # for one call; the largest body within the default limits takes 3
MEMORY = 2 << 30  # bytes of a process's address space
WORKER = "ovserve.sandbox.bodies.worker"


log = logging.getLogger(__name__)

_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class BodyPool:
    """Processes that decode bodies. Times in seconds, memory in bytes."""

    def __init__(self, *, seconds: float = SECONDS, memory: int = MEMORY, most: int = MOST) -> None:
        self._seconds = seconds
        self._pool = ChildPool(WORKER, "large bodies", seconds=seconds, memory=memory, most=most)

    @property
    def pids(self) -> list[int]:
        """Return the PIDs of idle processes."""
        return self._pool.pids

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a module's function in a process and return its result; raise the OvserveError that it raises.

        Raises Unavailable when no process is free or the time is over, PayloadTooLarge when memory runs out.
        """
        name = f"{function.__module__}:{function.__qualname__}"
        async with self._pool.slot():
            frames = _frames(name, arguments)
            await asyncio.sleep(0)  # each copy of a large body in a turn of the loop of its own
            answer = await self._answer_to(name, frames)
        await asyncio.sleep(0)
        if isinstance(answer, Returned):
            value: T = pickle.loads(answer.value)
            return value
        if isinstance(answer, Raised):
            error: OvserveError = pickle.loads(answer.error)
            raise error
        if answer.memory:
            raise PayloadTooLarge(f"the body cannot be decoded: {answer.why}")
        log.error("%s failed in a body process:\n%s", name, answer.why)
        raise Internal(INTERNAL_MESSAGE)

    async def _answer_to(self, name: str, frames: Sequence[bytes]) -> Answer:
        try:
            answer = await self._pool.ask(frames, name)
            await asyncio.sleep(0)
            return _answer.decode(answer)
        except ChildTimeout:
            raise Unavailable(
                f"the body was not decoded within {self._seconds:g} s", retry_after=RETRY_AFTER
            ) from None
        except ChildEnded as ended:
            return Broken(True, f"it ended its process twice, with {ended.code}")

    async def stop(self) -> None:
        """End the idle processes; busy ones end with their requests."""
        await self._pool.stop()


def _frames(name: str, arguments: tuple[Any, ...]) -> tuple[bytes, bytes]:
    """Return the two parts of a call's frame: the second is the request's body, if it is an argument."""
    body = next((a for a in arguments if type(a) is bytes), b"")
    rest = tuple(Body.HERE if body and a is body else a for a in arguments)
    call = Call(name, pickle.dumps(rest, pickle.HIGHEST_PROTOCOL))
    return frame_head(call, len(body)), body


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

        It is called here, or in a separate process for a large body and for schemas that take long. That
        process finds it by its module and name, so it must not be a method.
        """
        if "." in function.__qualname__:
            raise TypeError(f"{function.__qualname__} cannot be called in another process")
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

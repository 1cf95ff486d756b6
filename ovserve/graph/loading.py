"""The state a node keeps for as long as its graph is loaded: the result of its `load()`, and its counters.

A calculator lives for one request. The class method `load` makes what is expensive and the same for all of
them: an index, a database, a client session. It runs once per node and loaded graph; `unload` releases it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ovserve.errors import LoadError, described
from ovserve.graph.authors import innermost
from ovserve.telemetry.node_events import NodeEvents

if TYPE_CHECKING:
    import msgspec
    from google.protobuf.message import Message

    from ovserve.graph.calculator import SidePacket
    from ovserve.graph.plan import NodePlan

    S = TypeVar("S", bound=msgspec.Struct)
    M = TypeVar("M", bound=Message)

T = TypeVar("T")

log = logging.getLogger(__name__)


MAX_FOLLOW_UPS = 1000  # that wait at a node; each holds a request and its answer
UNLOAD_SECONDS = 10.0  # that an unload waits for them


class FollowUps:
    """Work that a node does after its requests: in their order, one at a time; no request waits for it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Awaitable[None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Return False if MAX_FOLLOW_UPS wait already. `work` must not raise."""
        if len(self._waiting) >= MAX_FOLLOW_UPS:
            return False
        self._waiting.append(work)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="follow-ups of a node")
        return True

    async def drain(self) -> int:
        """Wait until all are done, for UNLOAD_SECONDS at most. Return how many are not."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=UNLOAD_SECONDS)
            if not self._task.done():
                self._task.cancel()
                return len(self._waiting) + 1
        return 0

    async def _run(self) -> None:
        while self._waiting:
            await self._waiting.popleft()()


@dataclass
class NodeState:
    """One node of a loaded graph. `value` is what its `load()` returned."""

    value: Any = None
    seconds: float = 0.0  # that load() took
    counts: NodeEvents = field(default_factory=NodeEvents)
    follow_ups: FollowUps = field(default_factory=FollowUps)

    def facts(self) -> Mapping[str, object]:
        """Return what the value says of itself, if it has a method `facts()`."""
        told = getattr(self.value, "facts", None)
        return dict(told()) if callable(told) else {}


class LoadContext:
    """A calculator's view of its node while the graph is loaded: options, side packets, directory."""

    def __init__(self, plan: NodePlan, side: Mapping[str, Any]) -> None:
        self._plan = plan
        self._side = {port: side[name] for port, name in plan.side_packets if name in side}
        self.name = plan.node.name

    @property
    def directory(self) -> Path:
        """The directory of the graph, which relative paths start from."""
        return self._plan.node.config.base

    def path(self, text: str) -> Path:
        """Return a path of the options: absolute, or relative to the directory of the graph."""
        return self.directory / text

    @overload
    def options(self, type_: type[S]) -> S: ...
    @overload
    def options(self, type_: type[M]) -> M | None: ...
    def options(self, type_: Any) -> Any:
        return self._plan.options(type_)

    def __getitem__(self, port: SidePacket[T]) -> T:
        """Return a side packet that the server gives. One that another node sets exists in requests only."""
        return self._side[port]  # type: ignore[no-any-return]

    def error(self, message: str, field: str = "") -> LoadError:
        """Return a LoadError at the node, at the line of the option `field` if it is given."""
        return self._plan.node.error(message, field)


async def load_node(plan: NodePlan, side: Mapping[str, Any], state: NodeState) -> None:
    """Call the node's `load()`: on the event loop if it is a coroutine, else on a thread.

    Raises LoadError.
    """
    began = time.monotonic()
    cls, context = plan.cls, LoadContext(plan, side)
    try:
        if inspect.iscoroutinefunction(cls.load):
            state.value = await cls.load(context)
        else:
            state.value = await on_thread(cls.load, context)
    except (LoadError, GeneratorExit):
        raise
    except BaseException as exc:
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        place = f" ({at})" if (at := innermost(exc, context.directory)) else ""
        fault = f"{plan.node.calculator}: load() raised {described(exc)}{place}"
        raise plan.node.error(fault, "calculator") from exc
    state.seconds = time.monotonic() - began


async def on_thread(call: Callable[[Any], T], argument: Any, name: str = "load") -> T:
    """Call it on a thread of its own, which does not keep a stopping server alive if it hangs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if isinstance(error, StopIteration):  # a future cannot carry one
            error = RuntimeError("StopIteration")
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = call(argument)
        except BaseException as exc:  # noqa: BLE001  authors' code: raised in the caller
            error = exc
        with suppress(RuntimeError):  # the loop has ended without waiting
            loop.call_soon_threadsafe(settle, result, error)

    Thread(target=copy_context().run, args=(run,), daemon=True, name=f"{name} {call.__qualname__}").start()
    return await done


async def unload_node(plan: NodePlan, state: NodeState) -> None:
    """Call the node's `unload()`. Its failure is logged, because no caller is left."""
    if lost := await state.follow_ups.drain():
        log.warning("node %r: %d follow-ups of requests are lost with the unload", plan.node.name, lost)
    if not plan.cls.loads:
        return
    try:
        if inspect.iscoroutinefunction(plan.cls.unload):
            await plan.cls.unload(state.value)
        else:
            await on_thread(plan.cls.unload, state.value)
    except (GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as exc:  # code of graph authors
        log.warning("node %r failed in unload(): %s", plan.node.name, exc, exc_info=exc)

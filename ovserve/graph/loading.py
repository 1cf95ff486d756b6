"""Load and unload a node: what it keeps for as long as its graph is loaded.

A calculator lives for one request. The class method `load` makes what is expensive and the same for all of
them: an index, a database, a client session. It runs once per node and loaded graph; `unload` releases it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, TypeVar

from ovserve.errors import LoadError, described
from ovserve.graph.calculator import LoadContext, NodeState
from ovserve.graph.imports import innermost
from ovserve.graph.plan import NodePlan

T = TypeVar("T")

log = logging.getLogger(__name__)


async def load_node(plan: NodePlan, side: Mapping[str, Any], state: NodeState) -> None:
    """Call the node's `load()`: on the event loop if it is a coroutine, else on a thread.

    Raises LoadError.
    """
    began = time.monotonic()
    packets = {port: side[name] for port, name in plan.side_packets if name in side}
    cls, context = plan.cls, LoadContext(plan.node, plan.contract, packets)
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

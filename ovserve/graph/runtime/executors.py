"""Executors of a graph: named thread pools for calculators whose `process` blocks.

The pools live as long as the graph. In MediaPipe the default executor runs every node. Here the event loop
does, and the default pool ("" here, sized by num_threads) runs only calculators declared `runs_on =
"thread"`. A calculator on a thread blocks; it has no event loop to await, and trying to is an error.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ovserve.errors import LoadError
from ovserve.graph.config import GraphConfig
from ovserve.protos import calculator_pb2

RESERVED = ("default", "gpu")
TYPES = ("", "ThreadPoolExecutor", "ApplicationThreadExecutor")


@dataclass(frozen=True)
class ExecutorPlan:
    num_threads: int
    prefix: str


def plan_executors(config: GraphConfig) -> dict[str, ExecutorPlan]:
    """Return the graph's executors by name; "" is the default pool and always present."""
    message = config.message
    plans: dict[str, ExecutorPlan] = {}
    for executor in message.executor:
        problem = None
        if executor.name in RESERVED:
            problem = f"the name {executor.name!r} is reserved"
        elif executor.name in plans:
            problem = f"executor {executor.name!r} is declared twice"
        elif executor.type not in TYPES:
            problem = f"type {executor.type!r} is not one of {', '.join(TYPES[1:])}"
        elif not executor.name and message.num_threads:
            problem = "a default executor and num_threads exclude each other"
        options = executor.options.Extensions[calculator_pb2.ThreadPoolExecutorOptions.ext]
        if problem is None and options.num_threads < 0:
            problem = f"num_threads {options.num_threads} is negative"
        if problem:
            raise LoadError(problem, file=config.file, field="executor")
        plans[executor.name] = ExecutorPlan(
            options.num_threads or _automatic(),
            options.thread_name_prefix or f"graph-{executor.name or 'default'}",
        )
    if message.num_threads < 0:
        raise LoadError(f"{message.num_threads} is negative", file=config.file, field="num_threads")
    plans.setdefault("", ExecutorPlan(message.num_threads or _automatic(), "graph-default"))
    return plans


def _automatic() -> int:
    return os.cpu_count() or 1


class Pools:
    """The thread pools of one graph, started when first used."""

    def __init__(self, plans: Mapping[str, ExecutorPlan]) -> None:
        self._plans = plans
        self._pools: dict[str, ThreadPoolExecutor] = {}

    async def run(self, name: str, call: Callable[[], Awaitable[None] | None]) -> None:
        """Run one call of a calculator to its end on a thread of the pool.

        A cancelled caller still waits for the thread: a thread cannot be stopped, and the node's `close`
        must not run at the same time as its `process`.
        """
        pool = self._pools.get(name)
        if pool is None:
            plan = self._plans[name]
            pool = self._pools[name] = ThreadPoolExecutor(plan.num_threads, plan.prefix)
        future = asyncio.get_running_loop().run_in_executor(pool, _drive, call)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise

    def close(self) -> None:
        """Stop accepting work; threads end when their current call returns."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)
        self._pools.clear()


def _drive(call: Callable[[], Awaitable[None] | None]) -> None:
    try:
        coro = call()
    except StopIteration as exc:  # a future cannot carry one: its waiter would wait forever
        raise RuntimeError("a calculator raised StopIteration") from exc
    if coro is None:
        return
    assert isinstance(coro, Coroutine)
    try:
        coro.send(None)
    except StopIteration:
        return
    coro.close()
    raise RuntimeError("a calculator on an executor blocks its thread; it cannot await the event loop")

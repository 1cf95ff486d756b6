"""A Servable: one graph under a name, its engine, its state. Built by `loader.py`, held by `manager.py`.

`start` is the whole of what a front needs: a payload in, the packets of the answer out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from ovserve.calculators.library.mcp_servers import McpServers
from ovserve.engine.admission.limits import Limits
from ovserve.engine.client.dormancy import RESTING
from ovserve.errors import InvalidArgument, NotFound
from ovserve.graph.graph import Graph
from ovserve.kinds.payload import HttpPayload
from ovserve.kinds.resource import NamedVariants, Resource
from ovserve.kinds.tensors.resource import PlainModel
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.model import ModelContext
from ovserve.sandbox.bodies import Bodies
from ovserve.serving.endpoints import matches
from ovserve.serving.engines import AnyEngine
from ovserve.serving.graph_response import GraphResponse
from ovserve.serving.interface import Interface, http_streams
from ovserve.serving.status import GRAPH_VERSION
from ovserve.telemetry.counters import REST, Front, ModelMetrics


class State(Enum):
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    FAILED = "FAILED"
    END = "END"


@dataclass
class Servable:
    """`engines` are those of the graph's LLM nodes, by the name of the side packet that carries them; they
    are given back with `release`. A version that a reload has replaced still answers what it has begun, and
    what holds a `lease` on it.
    """

    name: str
    graph: Graph
    engines: Mapping[str, AnyEngine]
    side_packets: Mapping[str, Any]
    release: Callable[[AnyEngine], Awaitable[None]]
    interface: Interface = Interface.HTTP
    metrics: ModelMetrics = field(default_factory=ModelMetrics)
    endpoints: frozenset[str] = frozenset()  # that its nodes declare; none: it takes every HTTP request
    open_endpoints: frozenset[str] = frozenset()  # of these, those that take any method and any body
    bodies: Bodies = field(default_factory=Bodies)
    created: int = field(default_factory=lambda: int(time.time()))
    running: int = 0  # requests and leases
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # set while `running` is 0
    ended: bool = False  # it is about to stop, so sessions that are still open end
    limits: Limits = field(default_factory=Limits)  # the server's
    version: str = str(GRAPH_VERSION)
    parent: str = ""  # of a LoRA adapter: the servable whose model it changes
    model: PlainModel | None = None  # of a plain model, whose graph is one node around it

    def __post_init__(self) -> None:
        self.idle.set()

    @cached_property
    def http_streams(self) -> tuple[str, str]:
        """The names of the graph's streams that carry HTTP payloads."""
        return http_streams(self.graph.plan)

    @property
    def state(self) -> State:
        names = {e.state.name for e in self.engines.values()}
        if "failed" in names:
            return State.FAILED
        # A request wakes an engine that is unloaded until then.
        return State.AVAILABLE if names <= {"ready", *RESTING} else State.LOADING

    @property
    def residence(self) -> str:
        """Return "loaded", "loading" or "unloaded"; empty if it has no engines."""
        names = {e.state.name for e in self.engines.values()}
        if not names:
            return ""
        if "unloaded" in names:
            return "loading" if any(e.dormancy.waiting for e in self.engines.values()) else "unloaded"
        return "loading" if "waking" in names else "loaded"

    @property
    def reason(self) -> str:
        return "; ".join(e.state.reason for e in self.engines.values() if e.state.reason)

    @property
    def max_length(self) -> int | None:
        known = [n for e in self.engines.values() if (n := e.facts.max_length) is not None]
        return min(known, default=None)

    @property
    def contexts(self) -> list[ModelContext]:
        """The request parser's knowledge of each model of the graph; empty in a graph without an LLM node."""
        return [r.model for r in self.side_packets.values() if isinstance(r, LlmResources)]

    @property
    def resources(self) -> dict[str, Resource]:
        """The resources that nodes share with each engine, by side packet."""
        return {packet: self.side_packets[packet] for packet in self.engines}

    @property
    def variants(self) -> list[str]:
        """Return names of its own under which its model answers, such as those of LoRA adapters."""
        return [v for r in self.resources.values() if isinstance(r, NamedVariants) for v in r.variants]

    @property
    def base_name(self) -> bool:
        """Return whether it answers under its own name; one with fused adapters has only their names."""
        return all(r.base_name for r in self.resources.values() if isinstance(r, NamedVariants))

    @cached_property
    def _mcp(self) -> tuple[str, McpServers] | None:
        nodes = ((plan.node.name, state.value) for plan, state in self.graph.loaded)
        return next(((name, value) for name, value in nodes if isinstance(value, McpServers)), None)

    @property
    def mcp(self) -> McpServers | None:
        """The MCP servers that the graph lists."""
        return None if self._mcp is None else self._mcp[1]

    def count_mcp(self, event: str) -> None:
        """Count an event of their node."""
        if self._mcp is not None:
            self.metrics.node_events.add(self._mcp[0], event)

    @property
    def chats(self) -> bool:
        """A model of this graph has a chat template, and its nodes answer chats."""
        answers = not self.endpoints or matches("chat/completions", self.endpoints)
        return answers and any(model.template is not None for model in self.contexts)

    def start(self, payload: HttpPayload, front: Front = REST, *, open_ended: bool = False) -> GraphResponse:
        """`open_ended`: further payloads follow the first one, see `GraphResponse.send`.

        Raises InvalidArgument for a graph that does not take HTTP payloads.
        """
        if self.interface is not Interface.HTTP:
            raise InvalidArgument(
                f"model {self.name!r} takes {self.interface.value}: use /v2/models/{self.name}/infer",
                param="model",
            )
        if self.endpoints and not matches(payload.endpoint, self.endpoints):
            raise NotFound(
                f"{payload.endpoint!r} is not served by model {self.name!r}; it has "
                f"{', '.join(sorted(self.endpoints))}"
            )
        return GraphResponse(self, payload, front, open_ended=open_ended)

    def lease(self) -> Lease:
        """Inside, the servable is not stopped by a reload. Enter it before the first `await` after
        `Manager.get`, because a reload may happen there."""
        return Lease(self)

    def count(self, one: int) -> None:
        """Count one more request that runs, or one fewer."""
        self.running += one
        for engine in self.engines.values():
            engine.expected += one
            engine.dormancy.used = time.monotonic()
        if not self.running:
            self.idle.set()
        elif one > 0:
            self.idle.clear()

    async def stop(self) -> None:
        """Give the engines back. What still runs ends with an error if no one else uses them."""
        self.ended = True
        await self.graph.unload_nodes()
        self.graph.close()
        for engine in self.engines.values():
            await self.release(engine)


class Lease:
    __slots__ = ("_servable",)

    def __init__(self, servable: Servable) -> None:
        self._servable = servable

    def __enter__(self) -> None:
        self._servable.count(1)

    def __exit__(self, *_: object) -> None:
        self._servable.count(-1)

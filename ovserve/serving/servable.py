"""A Servable: one graph under a name, its engine, its state. Built by `loader.py`, held by `manager.py`.

`start` is the whole of what a front needs: a payload in, the packets of the answer out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import TracebackType
from typing import Any, NoReturn

from ovserve.access import Answering, current_request
from ovserve.api.openai.responses.objects import ResponseEvents
from ovserve.calculators.library.mcp_servers import McpServers
from ovserve.engine.admission.fair_queue import Limits
from ovserve.engine.client.state import RESTING
from ovserve.errors import EngineDead, Internal, InvalidArgument, NodeError, NotFound, OvserveError
from ovserve.graph.graph import Graph
from ovserve.graph.scheduler import GraphRun
from ovserve.kinds.payload import HttpPayload, HttpResponse
from ovserve.kinds.resource import NamedVariants, Resource
from ovserve.kinds.tensors.node import PlainModel
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.model import ModelContext
from ovserve.sandbox.bodies import Bodies
from ovserve.serving.engines import AnyEngine
from ovserve.serving.interface import Interface, http_streams, matches
from ovserve.serving.status import GRAPH_VERSION
from ovserve.telemetry.metrics import REST, Front, ModelMetrics, Outcome

log = logging.getLogger(__name__)


class GraphResponse:
    """One running request: `async with servable.start(payload) as answer`. Leaving the block ends it.

    `streams`: the client wants a stream. Every OvserveError it raises is one a front may show; what a
    calculator raised otherwise arrives as NodeError with the cause kept.
    """

    def __init__(
        self, servable: Servable, payload: HttpPayload, front: Front, *, open_ended: bool = False
    ) -> None:
        self._servable = servable
        self._payload = payload
        self._input, self._output = servable.http_streams
        self._front = front
        self._open_ended = open_ended
        self._run = self._new_run()
        self._call = current_request()
        self._metrics = servable.metrics.of_batches if self._call.batch else servable.metrics
        self._answering = Answering(self._call)

    async def __aenter__(self) -> GraphResponse:
        self._answering.__enter__()  # may raise; nothing has begun
        self._servable.count(1)
        self._call.ends.append(self._cancel)
        self.streams = self._payload.head.stream or self._open_ended
        self._outcome = Outcome(self._metrics, self._front, stream=self.streams)
        try:
            await self._begin()
        except BaseException as exc:
            await self.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._run.__aexit__(kind, error, trace)
        finally:
            self._answering.__exit__(None, None, None)
            if self._open_ended and (error is None or isinstance(error, asyncio.CancelledError)):
                self._outcome.finished()  # a session ends when its client leaves, or the server
            self._outcome.close(error)
            self._call.ends.remove(self._cancel)
            self._servable.count(-1)

    def _cancel(self, error: OvserveError) -> None:
        self._run.cancel(error)

    async def send(self, payload: HttpPayload) -> None:
        """Send one more payload to an open-ended run; wait while the graph has enough."""
        try:
            await self._run.send(self._input, payload)
        except NodeError as exc:
            self._fail(exc)

    async def first(self) -> HttpResponse:
        """Return how the answer begins. Raises what went wrong before that."""
        packet = await self._next(again=not self.streams)
        if packet is None:
            raise Internal("the graph ended without an answer")
        if not isinstance(packet, HttpResponse):
            return HttpResponse(_bytes(packet), more=True)
        if not packet.more:
            self._outcome.finished()
        return packet

    async def next(self) -> bytes | None:
        """Return the next chunk of the body; None at its end."""
        packet = await self._next()
        return None if packet is None else _bytes(packet)

    async def whole(self, first: HttpResponse) -> bytes:
        """Return the body of an answer that begins with `first`, to its end."""
        pieces = [first.body]
        while first.more and (piece := await self.next()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    async def next_events(self) -> ResponseEvents | None:
        """Return the next packet of an answer that began with `events`; None at its end."""
        packet = await self._next()
        if packet is None or isinstance(packet, ResponseEvents):
            return packet
        raise Internal(f"the graph went on with {type(packet).__name__}; expected ResponseEvents")

    async def pour(self, sink: Callable[[bytes], bool]) -> bool:
        """Call `sink` with each further chunk of the body as it arrives, until it returns False or the body
        ends; return whether there may be more. `sink` must be short and must not raise."""
        outcome, wrong = self._outcome, list[OvserveError]()

        def take(value: Any) -> bool:
            outcome.record_response()
            try:
                return sink(value if type(value) is bytes else _bytes(value))
            except OvserveError as exc:
                wrong.append(exc)
                return False

        try:
            more = await self._run.pour(self._output, take)
        except NodeError as exc:
            self._fail(exc)
        if wrong:
            raise wrong.pop()  # else it, its traceback and `wrong` would refer to each other
        if not more:
            outcome.finished()
        return more

    def _new_run(self) -> GraphRun:
        whole = not self._open_ended
        return self._servable.graph.start(self._servable.side_packets, [self._output], whole=whole)

    async def _begin(self) -> None:
        await self._run.__aenter__()
        await self._run.send(self._input, self._payload)
        if not self._open_ended:
            self._run.close_inputs()

    async def _next(self, *, again: bool = False) -> Any:
        """`again`: nothing was sent, so if the engine ends, the request is repeated once."""
        try:
            packet = await self._run.read(self._output)
        except NodeError as exc:
            if again and isinstance(exc.public_error, EngineDead) and not exc.public_error.repeated:
                log.info("the engine ended before the answer began; the request is repeated")
                current_request().repeated = True
                await self._run.__aexit__(None, None, None)
                self._run = self._new_run()
                await self._begin()
                return await self._next()
            self._fail(exc)
        if packet is None:
            self._outcome.finished()
            return None
        self._outcome.record_response()
        return packet.value

    def _fail(self, error: NodeError) -> NoReturn:
        self._outcome.failed(error.public_error)
        if error.public_error is error:
            raise error
        raise error.public_error from error


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, HttpResponse):
        return value.body
    raise Internal(f"the graph answered with {type(value).__name__}; expected HttpResponse, bytes or str")


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
        lengths = [n for e in self.engines.values() if (n := e.facts.max_length) is not None]
        return min(lengths, default=None)

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
        endpoint, endpoints = payload.endpoint, self.endpoints
        if endpoints and endpoint not in endpoints and not matches(endpoint, endpoints):
            raise NotFound(
                f"{endpoint!r} is not served by model {self.name!r}; it has {', '.join(sorted(endpoints))}"
            )
        return GraphResponse(self, payload, front, open_ended=open_ended)

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Inside, the servable is not stopped by a reload. Enter it before the first `await` after
        `Manager.get`, because a reload may happen there."""
        self.count(1)
        try:
            yield
        finally:
            self.count(-1)

    def count(self, one: int) -> None:
        """Count one more request that runs, or one fewer."""
        self.running += one
        for engine in self.engines.values():
            engine.expected += one
            engine.dormancy.last_used = time.monotonic()
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

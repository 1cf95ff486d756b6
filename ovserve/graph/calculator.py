"""The API of calculator authors: ports, Contract, LoadContext, Context, Calculator.

A calculator is built for one graph run and dropped after it; anything expensive is made by `load`, once for
as long as the graph is loaded, or is a side packet. The run
calls, never two at a time: `open` once; `process` whenever the input stream handler says so; `close` once
after a successful `open`, also when the run failed or was cancelled. Ports are class attributes, so a type
checker knows that `cc[self.request]` is `GenerateRequest | None` and rejects a wrong `cc.send`.

The three are coroutines where they wait for something, and plain functions where they do not. A calculator
that never waits needs no task: it is called right where its input arrives, and then costs a call instead of
a turn of the event loop (see docs/performance.md).
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, overload

import msgspec

from ovserve.errors import LoadError
from ovserve.graph.node import label_of
from ovserve.telemetry.metrics import NodeEvents

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ovserve.graph.node import Node

T = TypeVar("T")
M = TypeVar("M", bound="Message")
S = TypeVar("S", bound=msgspec.Struct)

MAX_FOLLOW_UPS = 1000  # that wait at a node; each holds a request and its answer
UNLOAD_SECONDS = 10.0  # that an unload waits for them


class Packet(NamedTuple):
    """A value with a timestamp, immutable; timestamps strictly increase within a stream."""

    timestamp: int
    value: Any


class Port(Generic[T]):
    """One endpoint of a calculator, named `TAG`, `TAG:index`, or `:index` when untagged."""

    def __init__(
        self,
        tag: str,
        # A type checker cannot infer T from a union; annotate then: `x: Output[A | B] = Output("X", A | B)`.
        type_: type[T] | UnionType = object,  # type: ignore[assignment]
        *,
        optional: bool = False,
    ) -> None:
        name, _, index = tag.partition(":")
        self.tag = name
        self.index = int(index or 0)
        self.type = type_
        self.optional = optional

    @property
    def key(self) -> tuple[str, int]:
        return self.tag, self.index

    @property
    def label(self) -> str:
        return label_of(self.tag, self.index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tag}:{self.index})"


class Input(Port[T]):
    """A stream read by the calculator; `cc[port]` is None when this call has no packet on it."""


class Output(Port[T]):
    """A stream written by the calculator with `cc.send`."""


class SidePacket(Port[T]):
    """A constant given when the run starts, or set by another node in its `open`."""


class SideOutput(Port[T]):
    """A constant that this node sets in `open`, for other nodes to read as a side packet."""


@dataclass(frozen=True)
class Contract:
    """The ports of one node. Built once, when the graph is loaded."""

    inputs: tuple[Input[Any], ...] = ()
    outputs: tuple[Output[Any], ...] = ()
    side_packets: tuple[SidePacket[Any], ...] = ()
    side_outputs: tuple[SideOutput[Any], ...] = ()
    options: Any = None  # the result of `parse_options`, else the struct of `options_type`
    own_options: Any = None  # that struct, of a node that has `engine_options_type` too

    def options_of(self, type_: Any) -> Any:
        """Return the parsed options if they are of this type, else None."""
        return next((o for o in (self.options, self.own_options) if isinstance(o, type_)), None)

    def options_for(self, node: Node, type_: Any) -> Any:
        """Return the node's options of this type, a struct or a protobuf message."""
        parsed = self.options_of(type_)
        return node.options(type_) if parsed is None else parsed


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

    def __init__(self, node: Node, contract: Contract, side: Mapping[SidePacket[Any], Any]) -> None:
        self._node, self._contract, self._side = node, contract, side
        self.name = node.name

    @property
    def directory(self) -> Path:
        """The directory of the graph, which relative paths start from."""
        return self._node.config.base

    def path(self, text: str) -> Path:
        """Return a path of the options: absolute, or relative to the directory of the graph."""
        return self.directory / text

    @overload
    def options(self, type_: type[S]) -> S: ...
    @overload
    def options(self, type_: type[M]) -> M | None: ...
    def options(self, type_: Any) -> Any:
        return self._contract.options_for(self._node, type_)

    def __getitem__(self, port: SidePacket[T]) -> T:
        """Return a side packet that the server gives. One that another node sets exists in requests only."""
        return self._side[port]  # type: ignore[no-any-return]

    def error(self, message: str, field: str = "") -> LoadError:
        """Return a LoadError at the node, at the line of the option `field` if it is given."""
        return self._node.error(message, field)


class Context:
    """A calculator's view of one call; valid until the call returns."""

    __slots__ = (
        "_loaded", "_side", "contract", "emit", "finished", "node", "outbox", "side_outbox", "timestamp",
        "values",
    )  # fmt: skip

    def __init__(
        self,
        node: Node,
        contract: Contract,
        side: Mapping[Port[Any], Any],
        loaded: NodeState | None = None,
    ) -> None:
        self.node = node
        self._loaded = loaded or NodeState()
        self.contract = contract
        self.timestamp = -1
        self.values: dict[Port[Any], Any] = {}
        self.outbox: list[tuple[Output[Any], int, Any]] = []
        self.side_outbox: dict[Port[Any], Any] = {}
        self.finished = False
        self.emit: Callable[[Context], Awaitable[None]] | None = None  # set by a node that may wait
        self._side = side

    @overload
    def __getitem__(self, port: Input[T]) -> T | None: ...
    @overload
    def __getitem__(self, port: SidePacket[T]) -> T: ...
    def __getitem__(self, port: Port[Any]) -> Any:
        if isinstance(port, Input):
            return self.values.get(port)
        return self._side.get(port)

    def send(self, port: Output[T], value: T, timestamp: int | None = None) -> None:
        """Queue a packet. It is emitted when the current call returns, and dropped if the call raises.

        Without a timestamp it takes the call's own: the input's in `process`, one past the last input's in
        `close`. `open` has none, so a timestamp is required there.
        """
        if not isinstance(value, port.type):
            raise TypeError(f"{port!r} takes {port.type}, got {type(value).__name__}")
        at = self.timestamp if timestamp is None else timestamp
        if at < 0:
            raise ValueError(f"{port!r}: a packet sent from open() needs a timestamp of 0 or more")
        self.outbox.append((port, at, value))

    async def flush(self) -> None:
        """Emit the packets sent so far, in the middle of a call that goes on for long.

        Packets of one stream need timestamps of their own: `cc.send(port, value, cc.timestamp + n)`.
        """
        if self.emit is None:
            raise RuntimeError("flush() is for coroutines on the event loop")
        await self.emit(self)

    def set_side(self, port: SideOutput[T], value: T) -> None:
        """Publish a side packet; only in `open`."""
        if not isinstance(value, port.type):
            raise TypeError(f"{port!r} takes {port.type}, got {type(value).__name__}")
        self.side_outbox[port] = value

    @overload
    def options(self, type_: type[S]) -> S: ...
    @overload
    def options(self, type_: type[M]) -> M | None: ...
    def options(self, type_: Any) -> Any:
        """The node's options: a struct, or a protobuf message, which is None when the graph gives none."""
        return self.contract.options_for(self.node, type_)

    @property
    def state(self) -> Any:
        """The object that `load` returned, shared by all requests to the loaded graph."""
        return self._loaded.value

    def count(self, event: str, n: int = 1) -> None:
        """Add to the node's counter of `event`, shown in `/metrics` as `ovserve_node_events_total`.

        Names are the author's, at most 100 for a node: never a client's text. Raises ValueError beyond.
        """
        self._loaded.counts.add(self.node.name, event, n)

    def follow_up(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Run `work` after the request, which does not wait for it; what the node follows up runs in order.

        It must not raise, nor send. Return False if 1,000 wait already; then it is not run.
        """
        return self._loaded.follow_ups.add(work)

    def finish(self) -> None:
        """Ask to be closed after this call: the node needs no more input and will send no more output."""
        self.finished = True


Method = Callable[[Context], Awaitable[None] | None]  # of a calculator


class Calculator:
    """Base of all calculators: declare ports as class attributes and override what is needed.

    `runs_on`: "loop" must share the server's event loop (it awaits things that live there); "thread"
    blocks, so it always runs on a thread pool; "any" runs on the loop unless the node names an executor.
    `options_type` is what its node options must be: a msgspec struct (see `options.py`) or a protobuf
    message. None: it takes no options. A node that holds an engine takes `engine_options_type` too.
    `immediate`: where the graph names no input stream handler, inputs do not wait for one another.
    `answers_whole`: it answers one packet with at most one on each output, when `process` returns. Alone in
    a graph, such a node needs no task of its own.
    `waits` is derived: one of its three methods is a coroutine. `loads` is: it has a `load` of its own.
    """

    runs_on: ClassVar[Literal["any", "loop", "thread"]] = "any"
    options_type: ClassVar[type[Message] | type[msgspec.Struct] | None] = None
    engine_options_type: ClassVar[type[Message] | None] = None
    immediate: ClassVar[bool] = False
    answers_whole: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    loads: ClassVar[bool] = False

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        """Return the ports of `node`; by default those of the class. Override when they depend on the graph.

        It runs once, at load.
        """
        found: dict[type[Port[Any]], dict[tuple[str, int], Any]] = {}
        for klass in reversed(cls.__mro__):
            for value in vars(klass).values():
                if isinstance(value, Port):
                    found.setdefault(type(value), {})[value.key] = value
        return Contract(
            tuple(found.get(Input, {}).values()),
            tuple(found.get(Output, {}).values()),
            tuple(found.get(SidePacket, {}).values()),
            tuple(found.get(SideOutput, {}).values()),
            cls.parse_options(node),
        )

    @classmethod
    def parse_options(cls, node: Node) -> Any:
        """Parse the options of `node` into the form the calculator works with, kept as `contract.options`.

        It runs once, at load, so it is the place to check them: raise `node.error(...)`.
        """
        return None

    @classmethod
    def load(cls, lc: LoadContext) -> Any:
        """Make what all requests share; it is `cc.state` in them. Called once when the graph is loaded.

        It may be a coroutine; a plain function runs on a thread. What it raises is a load error.
        """
        return None

    @classmethod
    def unload(cls, state: Any) -> Any:
        """Release what `load` returned, after the last request to the loaded graph. May be a coroutine."""
        return None

    def open(self, cc: Context) -> Awaitable[None] | None:
        """Prepare the calculator; inputs are not available yet, side packets are."""
        return None

    def process(self, cc: Context) -> Awaitable[None] | None:
        """Handle the packets at `cc.timestamp`."""
        raise NotImplementedError(f"{type(self).__name__} has no process()")

    def close(self, cc: Context) -> Awaitable[None] | None:
        """Release what `open` took. May still send, unless the run has failed."""
        return None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        methods = [getattr(cls, name) for name in ("open", "process", "close")]
        for method in methods:
            if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
                raise TypeError(f"{cls.__name__}.{method.__name__} is a generator; packets go by cc.send()")
        for name in ("load", "unload"):
            if not inspect.ismethod(getattr(cls, name)):
                raise TypeError(f"{cls.__name__}.{name} must be a class method: no calculator exists then")
        cls.loads = cls.load.__func__ is not Calculator.load.__func__  # type: ignore[attr-defined]
        cls.waits = any(map(inspect.iscoroutinefunction, methods))

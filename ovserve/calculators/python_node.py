"""PythonExecutorCalculator: a handler file of the user's, called in a process of the graph's own.

OVMS's handler files run unchanged: a class `OvmsPythonModel` with `initialize`, `execute`, which returns a
list of tensors or a generator of such lists, and `finalize`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ovserve.api.kserve import Tensor
from ovserve.calculators.python_handler import check_handler, handler_path
from ovserve.calculators.resource import Caller, EngineCalculator, Host, ItemStream, ResourceKind
from ovserve.engine.client.call_client import CallClient, CallItem
from ovserve.engine.protocol.python_nodes import (
    CALL_SECONDS,
    EXECUTE,
    THREADS,
    ExecuteArguments,
    Outputs,
    PythonFacts,
    PythonNode,
    PythonSpec,
    TensorValue,
)
from ovserve.errors import Internal, ResourceExhausted
from ovserve.graph import Context, Contract, Input, Node, Output, SidePacket, calculator
from ovserve.graph.node import Endpoint
from ovserve.log import request_id
from ovserve.protos.options_pb2 import PythonExecutorCalculatorOptions
from ovserve.telemetry.python_nodes import PythonMetrics

TAG = "PYTHON_NODE_RESOURCES"
LOOPBACK = "LOOPBACK"
AHEAD = 2  # items that a generator may be ahead of the graph
MAX_THREADS = 256
BUSY = "Node is already processing data. Create new stream for another request."  # OVMS's text


@dataclass(frozen=True)
class NamedTensor(Tensor):
    """A tensor whose name in a handler is not that of its stream."""

    name: str = ""

    @classmethod
    def of_tensor(cls, name: str, tensor: Tensor) -> NamedTensor:
        made = cls.unchecked(tensor.datatype, tensor.shape, tensor.data)
        object.__setattr__(made, "name", name)
        assert isinstance(made, NamedTensor), "made by this class"
        return made


@dataclass(frozen=True)
class PythonOptions:
    """The options of one node, with its streams in the order of tags, and the spec of its process."""

    spec: PythonSpec
    inputs: tuple[tuple[Input[Tensor], str], ...] = ()
    outputs: Mapping[str, Output[Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class PythonResource:
    """The side packet of a graph's Python nodes: the process of their handlers."""

    engine: Caller
    model: PythonFacts
    spec: PythonSpec
    metrics: PythonMetrics

    def facts(self) -> Mapping[str, object]:
        return {
            "python": self.model.python,
            "executable": self.model.executable,
            "max_parallel_calls": self.model.max_calls,
            "nodes": [node.name for node in self.spec.nodes],
        }


def parse(node: Node) -> PythonOptions:
    options = node.options(PythonExecutorCalculatorOptions)
    if options is None:
        raise node.error(
            "required: node_options with mediapipe.PythonExecutorCalculatorOptions", "node_options"
        )
    if not node.config.message.node[node.position].name:
        raise node.error("required for a Python node", "name")
    path = handler_path(node, options.handler_path)
    threads = options.max_parallel_calls if options.HasField("max_parallel_calls") else THREADS
    if not 1 <= threads <= MAX_THREADS:
        raise node.error(f"expected 1 to {MAX_THREADS}, got {threads}", "max_parallel_calls")
    seconds = options.call_timeout if options.HasField("call_timeout") else CALL_SECONDS
    if not 0 <= seconds < float("inf"):
        raise node.error(f"expected seconds, 0 for no timeout, got {seconds:g}", "call_timeout")
    inputs, outputs = _data(node, "input_stream"), _data(node, "output_stream")
    loopback = _loopback(node)
    made = PythonNode(
        node.name,
        str(path),
        tuple(end.name for end in inputs),
        tuple(end.name for end in outputs),
        loopback,
        round(seconds, 6),
    )
    return PythonOptions(
        PythonSpec(str(path), nodes=(made,), threads=threads),
        tuple((Input(f"{end.tag}:{end.index}", Tensor), end.name) for end in inputs),
        {end.name: Output(f"{end.tag}:{end.index}", Tensor) for end in outputs},
    )


def _data(node: Node, side: str) -> list[Endpoint]:
    """Return the streams of data, in the alphabetical order of their tags."""
    ends = node.inputs if side == "input_stream" else node.outputs
    found = sorted((end for end in ends if end.tag != LOOPBACK), key=lambda end: end.key)
    if not found:
        raise node.error(f"at least one is required besides {LOOPBACK}", side)
    return found


def _loopback(node: Node) -> tuple[str, ...]:
    into, out_of = ([e.name for e in ends if e.tag == LOOPBACK] for ends in (node.inputs, node.outputs))
    if bool(into) != bool(out_of):
        side = "input_stream" if out_of else "output_stream"
        raise node.error(f"{LOOPBACK} is on one side of the node; it is needed on both, or on none", side)
    return (*into[:1], *out_of[:1])


def join(nodes: Sequence[tuple[Node, PythonOptions]]) -> PythonOptions:
    """Return the options of one process for all nodes. Raises LoadError for two nodes of one name."""
    names: set[str] = set()
    for node, _ in nodes:
        name = node.config.message.node[node.position].name
        if name in names:
            raise node.error(f"{name!r} is the name of another Python node of this graph", "name")
        names.add(name)
    specs = [options.spec for _, options in nodes]
    own = {spec.threads for spec in specs} - {THREADS}
    return PythonOptions(
        msgspec.structs.replace(
            specs[0],
            nodes=tuple(node for spec in specs for node in spec.nodes),
            threads=max(own, default=THREADS),
        )
    )


async def make(node: Node, options: PythonOptions, engine: CallClient, host: Host) -> PythonResource:
    facts = engine.facts
    assert isinstance(facts, PythonFacts), "the facts of PythonSpec"
    return PythonResource(host.admit_calls(engine, {}), facts, options.spec, host.python)


PYTHON = ResourceKind(
    tag=TAG,
    packet_type=PythonResource,
    options_type=PythonExecutorCalculatorOptions,
    parse=parse,
    spec=lambda options: options.spec,
    make=make,
    check=lambda node, options: check_handler(node, options.spec.nodes),
    join=join,
)


@calculator("PythonExecutorCalculator")
class PythonExecutor(EngineCalculator):
    """Calls `execute` at each timestamp. While a generator lasts, LOOPBACK asks for its next item."""

    runs_on = "loop"
    resource = PYTHON

    python = SidePacket(TAG, PythonResource)
    tick_in = Input(LOOPBACK, bool)
    tick_out = Output(LOOPBACK, bool)

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        options = parse(node)
        loops = bool(options.spec.nodes[0].loopback)
        return Contract(
            (*(port for port, _ in options.inputs), *((cls.tick_in,) if loops else ())),
            (*options.outputs.values(), *((cls.tick_out,) if loops else ())),
            (cls.python,),
            options=options,
        )

    def open(self, cc: Context) -> None:
        self.stream: ItemStream | None = None
        self.last = -1  # timestamp of the last output

    async def process(self, cc: Context) -> None:
        options: PythonOptions = cc.contract.options
        given = [(name, tensor) for port, name in options.inputs if (tensor := cc[port]) is not None]
        if not given:
            await self._next(cc)
            return
        if self.stream is not None:
            raise ResourceExhausted(BUSY)
        values = [TensorValue(_name(tensor, name), tensor.datatype, tensor.shape) for name, tensor in given]
        arguments = ExecuteArguments(cc.node.name, tuple(values), request_id.get())
        blobs = [tensor.data for _, tensor in given]
        self.stream = await cc[self.python].engine.call(EXECUTE, arguments, blobs, window=AHEAD)
        await self._next(cc)

    async def _next(self, cc: Context) -> None:
        """Send the next outputs of the handler, or end its generator."""
        stream = self.stream
        assert stream is not None, "LOOPBACK only ticks while a generator lasts"
        with cc[self.python].metrics.call(cc.node.name):
            item = await stream.next()
        if item is None:
            self.stream = None
            return
        outputs = item.decode(Outputs)
        self._send(cc, outputs, item)
        if outputs.generated:
            cc.send(self.tick_out, True, self.last)
        else:
            await stream.next()  # the end, so that the call counts as finished
            self.stream = None

    def _send(self, cc: Context, outputs: Outputs, item: CallItem) -> None:
        ports: Mapping[str, Output[Any]] = cc.contract.options.outputs
        self.last = max(cc.timestamp, self.last + 1)
        for value, blob in zip(outputs.values, item.blobs, strict=True):
            if value.name not in ports:
                raise Internal(f"the process of the handlers sent an unknown output {value.name!r}")
            cc.send(ports[value.name], Tensor.made(value.datatype, value.shape, blob), self.last)

    def close(self, cc: Context) -> None:
        if self.stream is not None:
            self.stream.cancel()


def _name(tensor: Tensor, stream: str) -> str:
    return tensor.name if isinstance(tensor, NamedTensor) else stream

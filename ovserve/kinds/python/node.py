"""PythonExecutorCalculator: a handler file of the user's, called in a process of the graph's own.

OVMS's handler files run unchanged: a class `OvmsPythonModel` with `initialize`, `execute`, which returns a
list of tensors or a generator of such lists, and `finalize`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ovserve.api.kserve import Tensor
from ovserve.api.kserve.tensor import BYTES, DATATYPES
from ovserve.engine.client.call_client import CallClient
from ovserve.engine.client.calls import CallItem
from ovserve.errors import Internal, InvalidArgument, ResourceExhausted
from ovserve.graph import Calculator, Context, Contract, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.payload import HttpCalculator, HttpPayload, HttpResponse
from ovserve.kinds.python.metrics import PythonMetrics
from ovserve.kinds.python.options import (
    LOOPBACK,
    PythonOptions,
    check_handler,
    join,
    notes,
    parse,
)
from ovserve.kinds.python.spec import (
    EXECUTE,
    ExecuteArguments,
    Given,
    Made,
    Outputs,
    PythonFacts,
    PythonSpec,
    RequestValue,
    TensorValue,
)
from ovserve.kinds.resource import Caller, EngineCalculator, Host, ItemStream, ResourceKind
from ovserve.log import request_id
from ovserve.protos.options_pb2 import (
    PyTensorOvTensorConverterCalculatorOptions,
    PythonExecutorCalculatorOptions,
)

TAG = "PYTHON_NODE_RESOURCES"
ITEMS_AHEAD = 2  # items that a generator may be ahead of the graph
BUSY = "Node is already processing data. Create new stream for another request."  # OVMS's text


@dataclass(frozen=True)
class NamedTensor(Tensor):
    """A tensor whose name in a handler is not that of its stream."""

    name: str = ""

    @classmethod
    def of_tensor(cls, name: str, tensor: Tensor) -> NamedTensor:
        named_tensor = cls.unchecked(tensor.datatype, tensor.shape, tensor.data)
        object.__setattr__(named_tensor, "name", name)
        assert isinstance(named_tensor, NamedTensor), "made by this class"
        return named_tensor


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


async def make(node: Node, options: PythonOptions, engine: CallClient, host: Host) -> PythonResource:
    facts = engine.facts
    assert isinstance(facts, PythonFacts), "the facts of PythonSpec"
    return PythonResource(host.admit_calls(engine, {}), facts, options.spec, host.metrics.of(PythonMetrics))


PYTHON = ResourceKind(
    tag=TAG,
    packet_type=PythonResource,
    options_type=PythonExecutorCalculatorOptions,
    parse=parse,
    spec=lambda options: options.spec,
    make=make,
    check=lambda node, options: check_handler(node, options.spec.nodes),
    notes=lambda options: notes(options.spec),
    join=join,
)


@calculator("PythonExecutorCalculator")
class PythonExecutor(EngineCalculator, HttpCalculator):
    """Calls `execute` at each timestamp. While a generator lasts, LOOPBACK asks for its next item."""

    runs_on = "loop"
    resource = PYTHON
    open_endpoints = True

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

    @classmethod
    def endpoints_of(cls, options: PythonOptions, servable: str) -> Iterable[str]:
        """Return the paths of a node with HTTP requests: by default the graph's name, and all below it."""
        if not options.spec.nodes[0].request:
            return ()
        return options.endpoints or (servable, f"{servable}/*")

    def open(self, cc: Context) -> None:
        self.stream: ItemStream | None = None
        self.last = -1  # timestamp of the last output

    async def process(self, cc: Context) -> None:
        options: PythonOptions = cc.contract.options
        inputs = [(name, packet) for port, name in options.inputs if (packet := cc[port]) is not None]
        if not inputs:
            await self._next(cc)
            return
        if self.stream is not None:
            raise ResourceExhausted(BUSY)
        values = tuple(_value(name, packet) for name, packet in inputs)
        arguments = ExecuteArguments(cc.node.name, values, request_id.get())
        blobs = [packet.body if isinstance(packet, HttpPayload) else packet.data for _, packet in inputs]
        self.stream = await cc[self.python].engine.call(EXECUTE, arguments, blobs, window=ITEMS_AHEAD)
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
            cc.send(ports[value.name], _packet(value, blob, more=outputs.generated), self.last)

    def close(self, cc: Context) -> None:
        if self.stream is not None:
            self.stream.cancel()


def _value(stream: str, packet: HttpPayload | Tensor) -> Given:
    if isinstance(packet, HttpPayload):
        headers = {name: _sendable(value) for name, value in packet.headers.items()}
        return RequestValue(stream, packet.method, _sendable(packet.path), _sendable(packet.query), headers)
    name = packet.name if isinstance(packet, NamedTensor) else stream
    return TensorValue(name, packet.datatype, packet.shape)


def _sendable(text: str) -> str:
    """Return text without bytes that are not UTF-8; HTTP calls them Latin-1."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    return text


def _packet(value: Made, blob: memoryview, *, more: bool) -> Tensor | HttpResponse | bytes:
    if isinstance(value, TensorValue):
        return Tensor.from_handler(value.datatype, value.shape, blob)
    if not value.begins:
        return bytes(blob)
    return HttpResponse(bytes(blob), value.content_type, value.headers, more=more, status=value.status)


PY, OV = "OVMS_PY_TENSOR", "OVTENSOR"


@dataclass(frozen=True)
class ConverterOptions:
    """`name` is that of the made Python tensor; empty: from Python to OpenVINO."""

    source: Input[Tensor]
    target: Output[Tensor]
    name: str


def parse_converter(node: Node) -> ConverterOptions:
    for option, ends in (("input_stream", node.inputs), ("output_stream", node.outputs)):
        if len(ends) != 1:
            raise node.error(f"expected exactly one, got {len(ends)}", option)
    into, out_of = node.inputs[0].tag, node.outputs[0].tag
    if {into, out_of} != {PY, OV}:
        raise node.error(
            f"expected {PY} on one side and {OV} on the other, got {into or 'none'} and {out_of or 'none'}",
            "input_stream",
            node.inputs[0].text,
        )
    options = node.options(PyTensorOvTensorConverterCalculatorOptions)
    names = dict(options.tag_to_output_tensor_names) if options is not None else {}
    name = names.get(PY, "") if out_of == PY else ""
    if out_of == PY and not name:
        raise node.error(
            f"required with the key {PY!r}: the name of the tensor", "tag_to_output_tensor_names"
        )
    return ConverterOptions(Input(into, Tensor), Output(out_of, Tensor), name)


@calculator("PyTensorOvTensorConverterCalculator")
class PyTensorOvTensorConverter(Calculator):
    """Between Python nodes and nodes of models.

    Both kinds of streams carry one type here, so it gives a tensor its name in the handler, or checks that a
    handler's tensor is one that models take.
    """

    runs_on = "loop"
    options_type = PyTensorOvTensorConverterCalculatorOptions

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        options = parse_converter(node)
        return Contract((options.source,), (options.target,), options=options)

    def process(self, cc: Context) -> None:
        options: ConverterOptions = cc.contract.options
        tensor = cc[options.source]
        if tensor is None:
            return
        if options.name:
            cc.send(options.target, NamedTensor.of_tensor(options.name, tensor))
            return
        stream = cc.node.inputs[0].name
        if tensor.datatype not in DATATYPES or tensor.datatype == BYTES:
            numbers = ", ".join(name for name in DATATYPES if name != BYTES)
            raise InvalidArgument(
                f"stream {stream!r}: expected one of {numbers}, got datatype {tensor.datatype[:64]!r}"
            )
        if tensor.fault is not None:
            raise InvalidArgument(f"stream {stream!r}: {tensor.fault}")
        cc.send(options.target, tensor)

"""PythonExecutorCalculator: a handler file of the user's, called in a process of the graph's own.

OVMS's handler files run unchanged: a class `OvmsPythonModel` with `initialize`, `execute`, which returns a
list of tensors or a generator of such lists, and `finalize`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ovserve.api.kserve import Tensor
from ovserve.api.kserve.tensor import BYTES, DATATYPES
from ovserve.engine.client.calls import CallClient, CallItem
from ovserve.errors import Internal, InvalidArgument, ResourceExhausted
from ovserve.graph import Calculator, Context, Contract, Input, Node, Output, SidePacket, calculator
from ovserve.graph.node import Endpoint
from ovserve.kinds.payload import AnswerPacket, HttpCalculator, HttpPayload, HttpResponse
from ovserve.kinds.python.metrics import PythonMetrics
from ovserve.kinds.python.spec import (
    CALL_SECONDS,
    EXECUTE,
    MAX_CALLS,
    MODEL_CLASS,
    ExecuteArguments,
    Given,
    Made,
    Outputs,
    PythonFacts,
    PythonNode,
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

# The options of a Python node, and what its streams are. And the file of its handler, as far as it can be
# checked without running it. Raises LoadError naming the field.


LOOPBACK, REQUEST, RESPONSE = "LOOPBACK", "HTTP_REQUEST_PAYLOAD", "HTTP_RESPONSE_PAYLOAD"
ENDPOINT = re.compile(r"[^/?#*\s]+(/[^/?#*\s]+)*(/\*)?")
MAX_THREADS = 256


@dataclass(frozen=True)
class PythonOptions:
    """The options of one node, with its streams in the order of tags, and the spec of its process."""

    spec: PythonSpec
    inputs: tuple[tuple[Input[Any], str], ...] = ()
    outputs: Mapping[str, Output[Any]] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ()  # as the graph declares them


def parse(node: Node) -> PythonOptions:
    options = node.required_options(PythonExecutorCalculatorOptions)
    if not node.config.message.node[node.position].name:
        raise node.error("required for a Python node", "name")
    path = handler_path(node, options.handler_path)
    threads = options.max_parallel_calls if options.HasField("max_parallel_calls") else MAX_CALLS
    if not 1 <= threads <= MAX_THREADS:
        raise node.error(f"expected 1 to {MAX_THREADS}, got {threads}", "max_parallel_calls")
    seconds = options.call_timeout if options.HasField("call_timeout") else CALL_SECONDS
    if not 0 <= seconds < float("inf"):
        raise node.error(f"expected seconds, 0 for no timeout, got {seconds:g}", "call_timeout")
    inputs, outputs = _data(node, "input_stream"), _data(node, "output_stream")
    wiring = PythonNode(
        node.name,
        str(path),
        tuple(end.name for end in inputs),
        tuple(end.name for end in outputs),
        _loopback(node),
        request=_http(node, inputs, REQUEST),
        response=_http(node, outputs, RESPONSE),
        call_timeout=round(seconds, 6),
    )
    interpreter = _interpreter(node, options.interpreter)
    in_type, out_type = {wiring.request: HttpPayload}, {wiring.response: AnswerPacket}
    return PythonOptions(
        PythonSpec(str(path), nodes=(wiring,), threads=threads, interpreter=interpreter),
        tuple((Input(end.label, in_type.get(end.name, Tensor)), end.name) for end in inputs),
        {end.name: Output(end.label, out_type.get(end.name, Tensor)) for end in outputs},
        _endpoints(node, options.endpoints, wiring),
    )


def _interpreter(node: Node, text: str) -> str:
    if not text:
        return ""
    path = (node.config.base / text).absolute()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise node.error(f"{path} is not a program", "interpreter", text)
    return str(path)


def _http(node: Node, ends: Sequence[Endpoint], tag: str) -> str:
    """Return the name of the stream with this tag, or nothing."""
    names = [end.name for end in ends if end.tag == tag]
    if len(names) > 1:
        raise node.error(f"{tag} may be given once, got {', '.join(names)}")
    return names[0] if names else ""


def _endpoints(node: Node, endpoints: Iterable[str], wiring: PythonNode) -> tuple[str, ...]:
    for endpoint in endpoints:
        if not wiring.request:
            raise node.error(f"only a node with the input {REQUEST} has endpoints", "endpoints", endpoint)
        if not ENDPOINT.fullmatch(endpoint):
            raise node.error(
                f"expected a path behind /v3/, such as 'tools/search' or 'tools/*', got {endpoint!r}",
                "endpoints",
                endpoint,
            )
    return tuple(endpoints)


def _data(node: Node, side: str) -> list[Endpoint]:
    """Return the streams of data, in the alphabetical order of their tags."""
    ends = node.inputs if side == "input_stream" else node.outputs
    data_ends = sorted((end for end in ends if end.tag != LOOPBACK), key=lambda end: end.key)
    if not data_ends:
        raise node.error(f"at least one is required besides {LOOPBACK}", side)
    return data_ends


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
    own = {spec.threads for spec in specs} - {MAX_CALLS}
    pythons = dict.fromkeys(spec.interpreter for spec in specs if spec.interpreter)
    if len(pythons) > 1:
        raise nodes[-1][0].error(
            f"the nodes of a graph share one process, and two interpreters are named: {', '.join(pythons)}",
            "interpreter",
        )
    return PythonOptions(
        msgspec.structs.replace(
            specs[0],
            nodes=tuple(node for spec in specs for node in spec.nodes),
            threads=max(own, default=MAX_CALLS),
            interpreter=next(iter(pythons), ""),
        )
    )


def handler_path(node: Node, text: str) -> Path:
    """Return the file that the option names, relative to the graph's directory. Raises LoadError."""
    field = "handler_path"
    if not text:
        raise node.error("required, but missing", field)
    if "\0" in text:
        raise node.error("holds a NUL character", field)
    path = (node.config.base / text).absolute()
    if path.suffix != ".py":
        raise node.error(f"expected the path of a .py file, got {text!r}", field, text)
    if not path.is_file():
        raise node.error(f"{path} does not exist", field, text)
    return path


def check_handler(node: Node, handlers: Iterable[PythonNode]) -> None:
    """Compile the files and look for their class. Raises LoadError naming the first that is wrong."""
    for handler in handlers:
        fault = _fault(Path(handler.handler))
        if fault:
            names = [each.name for each in node.config.message.node]
            raise replace(node, name=handler.name, position=names.index(handler.name)).error(
                fault, "handler_path"
            )


def notes(spec: PythonSpec) -> list[str]:
    """Return a line for each node, for `ovserve check`."""
    return [
        f"Python node {node.name!r} calls {node.handler}, "
        + (f"{node.call_timeout:g} s at most" if node.call_timeout else "without a time limit")
        for node in spec.nodes
    ]


def _fault(path: Path) -> str:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else 0
        return f"{path}:{line or 1}: {error.msg if isinstance(error, SyntaxError) else error}"
    defined: set[str] = set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ClassDef):
            defined.add(statement.name)
            if statement.name == MODEL_CLASS and not statement.bases and not _has_execute(statement):
                return f"{path}:{statement.lineno}: {MODEL_CLASS} has no method execute"
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name) for alias in statement.names}
        elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
            defined.add(statement.id)
    return "" if {MODEL_CLASS, "*"} & defined else f"{path} defines no class {MODEL_CLASS}"


def _has_execute(statement: ast.ClassDef) -> bool:
    """Return whether a class without bases has the attribute; a decorator may add it."""
    if statement.decorator_list:
        return True
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return "execute" in names or any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "execute"
        for node in statement.body
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


class PythonResource(msgspec.Struct, frozen=True):
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

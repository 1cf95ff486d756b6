"""OpenVINOInferenceCalculator: tensors of the graph's streams through a plain model, once per timestamp.

A tag says which tensor of the model a stream is: by the maps of the options, or by its own name. A tag that
begins with a plural word, such as OVTENSORS, carries several tensors at a time, in the order of an order
list. MediaPipe's, TensorFlow's and OpenVINO's tensors are one type here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import msgspec

from ovserve.api.kserve import Tensor
from ovserve.engine.client.calls import CallClient
from ovserve.errors import Internal, InvalidArgument, LoadError
from ovserve.graph import (
    Calculator,
    Context,
    Contract,
    Input,
    Node,
    Output,
    SideOutput,
    SidePacket,
    calculator,
)
from ovserve.graph.node import Endpoint
from ovserve.kinds.resource import Host, ResourceKind
from ovserve.kinds.tensors.node import PlainModel, listed
from ovserve.kinds.tensors.node import make as make_plain
from ovserve.kinds.tensors.spec import TensorFacts, TensorInfo, TensorSpec, model_file, read_mapping
from ovserve.protos.options_pb2 import (
    OpenVINOInferenceAdapterCalculatorOptions,
    OpenVINOInferenceCalculatorOptions,
    OpenVINOModelServerSessionCalculatorOptions,
    OVMSCalculatorOptions,
)

# Sessions: how a graph's nodes find a plain model of the same server, by name, at each inference; or have a
# model file of their own, which is not a servable.
#
# A session node only names the model. The version that answers is looked up when a node runs, so a graph
# follows its model through reloads and new versions without being loaded again.


log = logging.getLogger(__name__)

NUMBER = re.compile("[1-9][0-9]{0,17}")


class Models(Protocol):
    """The plain models of the server, for the nodes of its graphs."""

    @property
    def names(self) -> Sequence[str]:
        """The plain models that are served, or meant to be."""

    def lease(self, name: str, version: str) -> AbstractContextManager[PlainModel]:
        """Raises Unavailable while it does not answer, ModelNotFound for a version that is not there."""

    def facts(self, name: str, version: str) -> TensorFacts | None:
        """None while it is not loaded."""


class Session:
    """The side packet SESSION. The loader binds it to the server's models before the graph is served."""

    def __init__(self, name: str, version: str = "") -> None:
        self.name = name
        self.version = version
        self._models: Models | None = None

    def bind(self, models: Models) -> None:
        self._models = models

    def lease(self) -> AbstractContextManager[PlainModel]:
        """Raises as `Models.lease`."""
        return self._bound.lease(self.name, self.version)

    @property
    def facts(self) -> TensorFacts | None:
        return None if self._models is None else self._models.facts(self.name, self.version)

    @property
    def _bound(self) -> Models:
        if self._models is None:
            raise Internal(f"the session of {self.name!r} is not bound to a server")
        return self._models


@dataclass(frozen=True)
class SessionOptions:
    session: Session
    field: str = "servable_name"  # where the name is written
    own: bool = False  # the node has a model of its own


class SessionCalculator(Calculator):
    """A node that names a plain model. Its parsed options are, or hold, a SessionOptions."""

    @classmethod
    def session_of(cls, options: object) -> SessionOptions:
        assert isinstance(options, SessionOptions), "this class has parsed them"
        return options


def session_options(node: Node, name: str, version: str) -> SessionOptions:
    """Parse name and version. Raises LoadError. A version that is not a number means the default one."""
    if not name:
        raise node.error("required, but empty", "servable_name")
    return SessionOptions(Session(name, version if NUMBER.fullmatch(version) else ""))


@calculator("OpenVINOModelServerSessionCalculator")
class OpenVINOModelServerSession(SessionCalculator):
    runs_on = "loop"
    options_type = OpenVINOModelServerSessionCalculatorOptions

    session = SideOutput("SESSION", Session)

    @classmethod
    def parse_options(cls, node: Node) -> SessionOptions:
        options = node.options(OpenVINOModelServerSessionCalculatorOptions)
        if options is None:
            raise node.error("required, but missing", "servable_name")
        for field in ("service_url", "server_config"):
            if options.HasField(field):
                log.warning("%s", node.error("has no effect: the model is served by this server", field))
        return session_options(node, options.servable_name, options.servable_version)

    def open(self, cc: Context) -> None:
        cc.set_side(self.session, cc.contract.options.session)
        cc.finish()


@dataclass(frozen=True)
class AdapterOptions:
    session: Session
    spec: TensorSpec


class OwnModel:
    """A `kinds.tensors.session.Models` with the one model of an adapter."""

    def __init__(self, model: PlainModel) -> None:
        self._model = model

    @property
    def names(self) -> Sequence[str]:
        return (self._model.name,)

    @contextmanager
    def lease(self, name: str, version: str) -> Iterator[PlainModel]:
        yield self._model  # the graph's own lease keeps its engine

    def facts(self, name: str, version: str) -> TensorFacts:
        return self._model.model


def parse_adapter(node: Node) -> AdapterOptions:
    options = node.options(OpenVINOInferenceAdapterCalculatorOptions)
    if options is None or not options.model_path:
        raise node.error("required, but missing", "model_path")
    path = (node.config.base / options.model_path).resolve()
    try:
        model_file(path)
        read_mapping(path)
    except LoadError as error:
        raise node.error(error.reason, "model_path", options.model_path) from error
    return AdapterOptions(Session(node.name), TensorSpec(str(path), device=options.device or "CPU"))


async def make_adapter(node: Node, options: AdapterOptions, engine: CallClient, host: Host) -> PlainModel:
    model = await make_plain(node, options.spec, engine, host)
    options.session.bind(OwnModel(model))
    return model


@calculator("OpenVINOInferenceAdapterCalculator")
class OpenVINOInferenceAdapter(SessionCalculator):
    """Its engine is acquired by the loader, like that of an engine node."""

    runs_on = "loop"
    options_type = OpenVINOInferenceAdapterCalculatorOptions
    kind: ClassVar[ResourceKind[AdapterOptions]] = ResourceKind(
        tag="",
        packet_type=PlainModel,
        options_type=OpenVINOInferenceAdapterCalculatorOptions,
        parse=parse_adapter,
        spec=lambda options: options.spec,
        make=make_adapter,
    )

    session = SideOutput("SESSION", Session)

    @classmethod
    def parse_options(cls, node: Node) -> AdapterOptions:
        return parse_adapter(node)

    @classmethod
    def session_of(cls, options: object) -> SessionOptions:
        assert isinstance(options, AdapterOptions), "this class has parsed them"
        return SessionOptions(options.session, "model_path", own=True)

    def open(self, cc: Context) -> None:
        cc.set_side(self.session, cc.contract.options.session)
        cc.finish()


PLURAL = ("OVTENSORS", "TENSORS", "TFTENSORS", "TFLITE_TENSORS")
WORDS = (*PLURAL, *(word.removesuffix("S") for word in PLURAL))
Tensors: type[Any] = tuple  # of Tensor: what a stream with a plural tag carries


class Wire(msgspec.Struct, frozen=True):
    """One stream: the names of its tensors in the model. No names: that at the stream's own index."""

    port: Any
    names: tuple[str, ...]
    plural: bool
    endpoint: Endpoint
    field: str  # of the graph file

    def infos(self, among: Sequence[TensorInfo]) -> list[TensorInfo | None]:
        """Return what the model says of each of its tensors; None for one that it lacks."""
        if not self.names:
            at = self.endpoint.index
            return [among[at] if at < len(among) else None]
        return [next((info for info in among if name in info.names), None) for name in self.names]


class Wiring(msgspec.Struct, frozen=True):
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    session: SessionOptions | None = None  # of a node that names its model itself


class InferenceCalculator(Calculator):
    """Base of the nodes that run a plain model; `contract.options` is a Wiring."""

    runs_on = "loop"

    def session(self, cc: Context) -> Session:
        raise NotImplementedError

    async def process(self, cc: Context) -> None:
        wiring: Wiring = cc.contract.options
        session = self.session(cc)
        with session.lease() as model:
            inputs: dict[str, Tensor] = {}
            for wire in wiring.inputs:
                names = _names(wire, model.model.inputs, session)
                inputs |= zip(names, _values(wire, names, cc[wire.port]), strict=True)
            outputs = [(wire, _names(wire, model.model.outputs, session)) for wire in wiring.outputs]
            inferred = await model.infer(inputs, [name for _, names in outputs for name in names])
        for wire, names in outputs:
            tensors = tuple(inferred.outputs[name] for name in names)
            cc.send(wire.port, tensors if wire.plural else tensors[0])


@calculator("OpenVINOInferenceCalculator")
class OpenVINOInference(InferenceCalculator):
    options_type = OpenVINOInferenceCalculatorOptions
    packet = SidePacket("SESSION", Session)

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        options = node.options(OpenVINOInferenceCalculatorOptions) or OpenVINOInferenceCalculatorOptions()
        lists = list(options.input_order_list), list(options.output_order_list)
        wiring = plan_wiring(
            node, options.tag_to_input_tensor_names, options.tag_to_output_tensor_names, lists
        )
        return _contract(wiring, (cls.packet,))

    def session(self, cc: Context) -> Session:
        return cc[self.packet]


@calculator("OVMSOVCalculator")
class OVMSOV(InferenceCalculator, SessionCalculator):
    """A session and an inference in one node, as in OVMS's tests."""

    options_type = OVMSCalculatorOptions

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        options = node.options(OVMSCalculatorOptions)
        if options is None:
            raise node.error("required, but missing", "servable_name")
        session = session_options(node, options.servable_name, options.servable_version)
        maps = options.tag_to_input_tensor_names, options.tag_to_output_tensor_names
        return _contract(plan_wiring(node, *maps, ([], []), session), ())

    @classmethod
    def session_of(cls, options: object) -> SessionOptions:
        assert isinstance(options, Wiring), "this class has parsed them"
        assert options.session is not None, "this class has parsed them"
        return options.session

    def session(self, cc: Context) -> Session:
        return self.session_of(cc.contract.options).session


def plan_wiring(
    node: Node,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    order: tuple[list[str], list[str]],
    session: SessionOptions | None = None,
) -> Wiring:
    """Return which stream is which tensor. Raises LoadError."""
    for field, ends in (("input_stream", node.inputs), ("output_stream", node.outputs)):
        if not ends:
            raise node.error("at least one is required", field)
    return Wiring(
        _wires(node, "input", node.inputs, inputs, order[0]),
        _wires(node, "output", node.outputs, outputs, order[1]),
        session,
    )


def _wires(
    node: Node, side: str, ends: Sequence[Endpoint], tags: Mapping[str, str], order: list[str]
) -> tuple[Wire, ...]:
    field = f"tag_to_{side}_tensor_names"
    for tag in tags:
        if tag not in {end.tag for end in ends} and not tag.startswith(WORDS):
            own_tags = ", ".join(end.tag or "none" for end in ends)
            raise node.error(f"{tag!r} is not a tag of this node's {side} streams: {own_tags}", field)
    plurals = [end for end in ends if end.tag.startswith(PLURAL)]
    if order and not plurals:
        raise node.error(f"no {side} stream has a plural tag ({', '.join(PLURAL)})", f"{side}_order_list")
    if plurals and not order:
        text = f"required for {plurals[0].text!r}: the names of its tensors, in order"
        raise node.error(text, f"{side}_order_list")
    if len(plurals) > 1:
        raise node.error(
            f"one {side} stream may have a plural tag, got {len(plurals)}", f"{side}_stream", plurals[1].text
        )
    make: Any = Input if side == "input" else Output
    wires = []
    for end in ends:
        plural = end in plurals
        if end.tag and end.index:
            text = f"{end.text!r}: each tensor needs a tag of its own, such as OVTENSOR and OVTENSOR1"
            raise node.error(text, f"{side}_stream", end.text)
        names = (
            tuple(order) if plural else (tags.get(end.tag, end.tag),) if end.tag or end.tag in tags else ()
        )
        port = make(f"{end.tag}:{end.index}", Tensors if plural else Tensor)
        wires.append(Wire(port, names, plural, end, f"{side}_stream"))
    return tuple(wires)


def _contract(wiring: Wiring, side_packets: tuple[SidePacket[Any], ...]) -> Contract:
    return Contract(
        tuple(wire.port for wire in wiring.inputs),
        tuple(wire.port for wire in wiring.outputs),
        side_packets,
        options=wiring,
    )


def check_wiring(node: Node, wiring: Wiring, facts: TensorFacts, model: str) -> None:
    """Raise LoadError for a tensor that the model lacks, and for an input that the node does not give."""
    connected: set[str] = set()
    for wires, side, among in (
        (wiring.inputs, "input", facts.inputs),
        (wiring.outputs, "output", facts.outputs),
    ):
        for wire in wires:
            for name, info in zip(wire.names or (wire.endpoint.label,), wire.infos(among), strict=True):
                if info is None:
                    raise node.error(
                        f"{wire.endpoint.text!r} is {name!r}, and model {model!r} has no such {side}; it has "
                        f"{listed(among)}",
                        wire.field,
                        wire.endpoint.text,
                    )
                if side == "input":
                    connected.add(info.name)
    if missing := [info for info in facts.inputs if info.name not in connected]:
        raise node.error(f"model {model!r} also needs {listed(missing)}", "input_stream")


def _names(wire: Wire, among: Sequence[TensorInfo], session: Session) -> list[str]:
    infos = wire.infos(among)
    if None in infos:
        raise Internal(
            f"{wire.endpoint.text!r} names no tensor of model {session.name!r}, which has {listed(among)}"
        )
    return [info.name for info in infos if info is not None]


def _values(wire: Wire, names: Sequence[str], value: Any) -> Sequence[Tensor]:
    """Raises InvalidArgument for a stream without a packet, or with another number of tensors."""
    if value is None:
        raise InvalidArgument(f"inputs: stream {wire.endpoint.name!r} has no packet at this timestamp")
    tensors: Sequence[Tensor] = value if wire.plural else (value,)
    if len(tensors) != len(names):
        raise InvalidArgument(
            f"inputs: stream {wire.endpoint.name!r} carries {len(tensors)} tensors, expected {len(names)}: "
            f"{', '.join(names)}"
        )
    return tensors

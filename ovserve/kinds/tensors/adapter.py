"""OpenVINOInferenceAdapterCalculator: a session on a model file of the graph's own, not a servable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from ovserve.engine.client.call_client import CallClient
from ovserve.errors import LoadError
from ovserve.graph import Context, Node, SideOutput, calculator
from ovserve.kinds.resource import Host, ResourceKind
from ovserve.kinds.tensors.files import model_file, read_mapping
from ovserve.kinds.tensors.node import make as make_plain
from ovserve.kinds.tensors.resource import PlainModel
from ovserve.kinds.tensors.session import Session, SessionCalculator, SessionOptions
from ovserve.kinds.tensors.spec import TensorFacts, TensorSpec
from ovserve.protos.options_pb2 import OpenVINOInferenceAdapterCalculatorOptions


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


def parse(node: Node) -> AdapterOptions:
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


async def make(node: Node, options: AdapterOptions, engine: CallClient, host: Host) -> PlainModel:
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
        parse=parse,
        spec=lambda options: options.spec,
        make=make,
    )

    session = SideOutput("SESSION", Session)

    @classmethod
    def parse_options(cls, node: Node) -> AdapterOptions:
        return parse(node)

    @classmethod
    def session_of(cls, options: object) -> SessionOptions:
        assert isinstance(options, AdapterOptions), "this class has parsed them"
        return SessionOptions(options.session, "model_path", own=True)

    def open(self, cc: Context) -> None:
        cc.set_side(self.session, cc.contract.options.session)
        cc.finish()

"""Sessions: how a graph's nodes find a plain model of the same server, by name, at each inference; or have a
model file of their own, which is not a servable.

A session node only names the model. The version that answers is looked up when a node runs, so a graph
follows its model through reloads and new versions without being loaded again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ovserve.engine.client.call_client import CallClient
from ovserve.errors import Internal, LoadError
from ovserve.graph import Calculator, Context, Node, SideOutput, calculator
from ovserve.kinds.resource import Host, ResourceKind
from ovserve.kinds.tensors.files import model_file, read_mapping
from ovserve.kinds.tensors.node import make as make_plain
from ovserve.kinds.tensors.resource import PlainModel
from ovserve.kinds.tensors.spec import TensorFacts, TensorSpec
from ovserve.protos.options_pb2 import (
    OpenVINOInferenceAdapterCalculatorOptions,
    OpenVINOModelServerSessionCalculatorOptions,
)

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

"""Metadata calls of KServe and Triton about the server and a graph, for HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from ovserve import __version__
from ovserve.access import current_request
from ovserve.api.kserve.tensor import BYTES
from ovserve.errors import ModelNotFound, OvserveError, Unavailable
from ovserve.kinds.tensors.spec import TensorInfo
from ovserve.services.inference import http_infer
from ovserve.serving.interface import Interface
from ovserve.serving.manager import Manager
from ovserve.serving.servable import State
from ovserve.serving.sessions import input_info, output_info
from ovserve.serving.status import GRAPH_VERSION
from ovserve.telemetry.metrics import Call, Front

BACKEND = "ovserve"
UNTYPED = "INVALID"  # OVMS's name for the datatype of a stream that only the graph knows


class End(NamedTuple):
    """An input or output. `shape` is empty if the graph accepts any."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ServerMetadata:
    name: str = "ovserve"
    version: str = __version__
    extensions: tuple[str, ...] = (
        "binary_tensor_data",
        "parameters",
        "model_repository",
        "model_configuration",
        "statistics",
        "logging",
    )


@dataclass(frozen=True)
class ModelMetadata:
    name: str
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    decoupled: bool = True  # any graph may answer one request many times
    platform: str = "OpenVINO"
    versions: tuple[str, ...] = (str(GRAPH_VERSION),)
    rt_info: Mapping[str, object] = field(default_factory=dict)  # the model's own description, if it has one


class Description:
    server = ServerMetadata()

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    @property
    def ready(self) -> bool:
        return self._manager.ready

    @property
    def names(self) -> list[str]:
        """Return the names of servables that the caller may use."""
        may = current_request().caller.may_use
        return list(dict.fromkeys(s.name for s in self._manager.servables if may(s.name)))

    @contextmanager
    def counted(self, name: str, front: Front, method: str) -> Iterator[None]:
        """Count a call in OVMS's metrics. An unknown model name does not become a label."""
        call = Call(front.api, front.interface, method)
        try:
            yield
        except ModelNotFound:
            raise
        except OvserveError:
            self._manager.metrics.of(name).lookup_failures[call] += 1
            raise
        self._manager.metrics.of(name).lookups[call] += 1

    def model_ready(self, name: str, version: str = "") -> bool:
        """Return False while it cannot answer. Raises ModelNotFound."""
        try:
            return self._manager.get(name, version).state is State.AVAILABLE
        except Unavailable:
            return False

    def model(self, name: str, version: str = "") -> ModelMetadata:
        """Return the metadata of a model. Raises ModelNotFound or Unavailable."""
        servable = self._manager.get(name, version)
        if servable.model is not None:
            facts = servable.model.model
            return ModelMetadata(
                name,
                tuple(End(i.name, i.datatype, i.shape) for i in facts.inputs),
                tuple(End(o.name, o.datatype, o.shape) for o in facts.outputs),
                decoupled=False,
                versions=tuple(self._manager.versions(name)),
                rt_info=facts.rt_info,
            )
        if servable.interface is Interface.HTTP:
            source, target = http_infer.names(servable)
            return ModelMetadata(name, (End(source, BYTES, (1,)),), (End(target, BYTES, (1,)),))
        plan = servable.graph.plan
        return ModelMetadata(
            name,
            tuple(_end(e.name, input_info(plan, e.name)) for e in plan.inputs),
            tuple(_end(e.name, output_info(plan, e.name)) for e in plan.outputs),
        )


def _end(name: str, info: TensorInfo | None) -> End:
    return End(name, UNTYPED, ()) if info is None else End(name, info.datatype, info.shape)

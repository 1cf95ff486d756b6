"""Metadata calls of KServe and Triton about the server and a graph, for HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ovserve import __version__
from ovserve.access import current_request
from ovserve.api.kserve.tensor import BYTES
from ovserve.errors import ModelNotFound, OvserveError, Unavailable
from ovserve.inference import http_infer
from ovserve.inference.infer import VERSION, check_version
from ovserve.serving.interface import Interface
from ovserve.serving.manager import Manager
from ovserve.serving.servable import State
from ovserve.telemetry.counters import Call, Front

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
    versions: tuple[str, ...] = (VERSION,)


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
        return [servable.name for servable in self._manager.servables if may(servable.name)]

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
        check_version(name, version)
        try:
            return self._manager.get(name).state is State.AVAILABLE
        except Unavailable:
            return False

    def model(self, name: str, version: str = "") -> ModelMetadata:
        """Return the metadata of a model. Raises ModelNotFound or Unavailable."""
        check_version(name, version)
        servable = self._manager.get(name)
        if servable.interface is Interface.HTTP:
            source, target = http_infer.names(servable)
            return ModelMetadata(name, (End(source, BYTES, (1,)),), (End(target, BYTES, (1,)),))
        plan = servable.graph.plan
        return ModelMetadata(
            name,
            tuple(End(e.name, UNTYPED, ()) for e in plan.inputs),
            tuple(End(e.name, UNTYPED, ()) for e in plan.outputs),
        )

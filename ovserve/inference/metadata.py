"""What KServe's and Triton's metadata calls tell of the server and of a graph, for both wires. Called by
`http/routes/v2_models.py` and `grpc_api/inference.py`.
"""

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
UNTYPED = "INVALID"  # OVMS's word for an end whose datatype the graph alone knows


class End(NamedTuple):
    """An input or output. `shape` is empty where the graph takes any."""

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
        """Of what is served, as far as the caller may use it."""
        may = current_request().caller.may_use
        return [servable.name for servable in self._manager.servables if may(servable.name)]

    @contextmanager
    def counted(self, name: str, front: Front, method: str) -> Iterator[None]:
        """Around a call that OVMS counts of a graph. A name that is no model's is not made a label."""
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
        """False while it cannot answer. Raises ModelNotFound."""
        check_version(name, version)
        try:
            return self._manager.get(name).state is State.AVAILABLE
        except Unavailable:
            return False

    def model(self, name: str, version: str = "") -> ModelMetadata:
        """Raises ModelNotFound or Unavailable."""
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

"""The gRPC server: its services, addresses and limits."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from ovserve.access import AccessLog, Guard
from ovserve.errors import LoadError
from ovserve.grpc_api.health import Health
from ovserve.grpc_api.inference import InferenceService
from ovserve.grpc_api.model_service import ModelService
from ovserve.grpc_api.reflection import ALPHA, STABLE, Reflection
from ovserve.grpc_api.service import service_handler
from ovserve.inference.administration import Administration
from ovserve.inference.infer import Inference
from ovserve.inference.metadata import Description
from ovserve.protos import kserve_pb2, tensorflow_serving_pb2
from ovserve.serving.manager import Manager


def _service(module: Any, name: str) -> ServiceDescriptor:
    found: ServiceDescriptor = module.DESCRIPTOR.services_by_name[name]
    return found


INFERENCE = _service(kserve_pb2, "GRPCInferenceService")
MODELS = _service(tensorflow_serving_pb2, "ModelService")
HEALTH = _service(health_pb2, "Health")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RpcOptions:
    """Options. `addresses` are hosts without a port. `credentials`: of TLS; None is plain text."""

    addresses: Sequence[str]
    port: int  # 0 selects a free one
    message_bytes: int  # limit of a request; responses are as large as the graph makes them
    head_bytes: int = 16384  # limit of all metadata of a call
    calls: int = 1000  # limit of concurrent calls
    arguments: Sequence[tuple[str, str | int]] = ()
    credentials: grpc.ServerCredentials | None = None
    interceptors: Sequence[grpc.aio.ServerInterceptor] = field(default=())


class RpcServer:
    def __init__(
        self,
        manager: Manager,
        inference: Inference,
        options: RpcOptions,
        guard: Guard | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        """`guard` None: every client may call."""
        around = (guard or Guard(), access_log or AccessLog())
        description, administration = Description(manager), Administration(manager)
        self._options = options
        self._server = grpc.aio.server(
            interceptors=options.interceptors,
            options=_channel_options(options),
            maximum_concurrent_rpcs=options.calls,
        )
        servicers: dict[ServiceDescriptor, object] = {
            INFERENCE: InferenceService(description, inference, administration),
            MODELS: ModelService(administration),
        }
        names = [service.full_name for service in (*servicers, HEALTH, STABLE, ALPHA)]
        servicers[HEALTH] = Health(description, names)
        reflection = Reflection(names, {s.file for s in (*servicers, STABLE, ALPHA)})
        servicers |= {STABLE: reflection, ALPHA: reflection}
        self._server.add_generic_rpc_handlers([service_handler(*pair, *around) for pair in servicers.items()])

    async def start(self) -> int:
        """Listen; return the port. Raises LoadError for an address that is not available."""
        port = self._options.port
        for host in self._options.addresses:
            local = host.startswith("unix:")  # without port and TLS
            address = host if local else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            try:
                if local:
                    self._server.add_insecure_port(address)
                elif self._options.credentials is None:
                    port = self._server.add_insecure_port(address)
                else:
                    port = self._server.add_secure_port(address, self._options.credentials)
            except RuntimeError as exc:
                raise LoadError(f"cannot listen on {address} for gRPC: {exc}") from exc
        await self._server.start()
        return port

    async def stop(self, seconds: float) -> None:
        """Accept no more calls, and end those that still run after `seconds`."""
        await self._server.stop(seconds)


def parse_arguments(text: str) -> list[tuple[str, str | int]]:
    """Parse `key=value,key=value`, as in OVMS's --grpc_channel_arguments. Raises LoadError."""
    found: list[tuple[str, str | int]] = []
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise LoadError(f"--grpc_channel_arguments: expected key=value, got {item!r}")
        found.append((key, int(value) if value.lstrip("-").isdigit() else value))
    return found


def _channel_options(options: RpcOptions) -> list[tuple[str, Any]]:
    ours: dict[str, Any] = {
        "grpc.max_receive_message_length": options.message_bytes,
        "grpc.max_send_message_length": -1,
        # Between the two the library rejects at random; with equal values there is one limit.
        "grpc.max_metadata_size": options.head_bytes,
        "grpc.absolute_max_metadata_size": options.head_bytes,
        # By default a second server could listen on the same port, and take every other call.
        "grpc.so_reuseport": 0,
        # A client that waits for a long prompt may check the connection; by default the library disconnects
        # it.
        "grpc.http2.min_recv_ping_interval_without_data_ms": 10_000,
        "grpc.keepalive_permit_without_calls": 1,
        # A client whose machine is down sends nothing; by default its streams would run on for two hours.
        "grpc.keepalive_time_ms": 30_000,
        "grpc.http2.ping_timeout_ms": 20_000,
        "grpc.max_connection_idle_ms": 300_000,
    }
    return list((ours | dict(options.arguments)).items())

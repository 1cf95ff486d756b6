"""The gRPC server: its services, addresses and limits.

Health: grpc.health.v1.Health, which load balancers, Kubernetes and grpcurl call. It knows the services "" and
those of this server, which serve when the server is ready, and every model by its name. The state is read at
each call; watchers are notified within half a second of a change.

ModelService: tensorflow.serving.ModelService, the state of a model and the reload of the configuration. As in
TensorFlow Serving, the outcome of a reload is in the response's status, not in gRPC's. A caller without the
right to reload gets gRPC's. In OVMS HandleReloadConfigRequest does nothing and answers OK.

Reflection: with it grpcurl, Postman and similar tools read the services. The library looks descriptors up in
a pool. Ours are in a private one; those of health and of reflection itself are in protobuf's. So it gets a
third pool, which holds copies of both.

There are two versions of the service, v1 and the older v1alpha, with the same messages under other names.
Clients ask for v1 first. The library has only v1alpha, so v1 is built from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_health.v1 import health_pb2 as pb
from grpc_reflection.v1alpha import reflection_pb2 as reflection_pb
from grpc_reflection.v1alpha.reflection import aio

from ovserve.access import NOBODY, AccessLog, Guard, RequestContext, calling, current_request
from ovserve.access.keys import stamp
from ovserve.errors import (
    InvalidArgument,
    LoadError,
    NotFound,
    OvserveError,
    PermissionDenied,
    Unauthenticated,
)
from ovserve.grpc_api.errors import sentence, status_of
from ovserve.grpc_api.inference import InferenceService
from ovserve.grpc_api.service import Context, service_handler
from ovserve.protos import kserve_pb2, tensorflow_serving_pb2
from ovserve.protos import tensorflow_error_pb2 as error_pb
from ovserve.protos import tensorflow_serving_pb2 as tfs_pb
from ovserve.services.inference.administration import Administration, Entry
from ovserve.services.inference.infer import Inference
from ovserve.serving.manager import Manager

log = logging.getLogger(__name__)


def credentials(certificate: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """Read PEM files, whose content `http/sockets.py` has checked. Before each handshake the
    library asks for newer ones, from its own thread. Raises LoadError for an unreadable one."""
    files = [path for path in (certificate, key, client_ca) if path is not None]
    seen = [stamp(path) for path in files]

    def read() -> grpc.ServerCertificateConfiguration:
        pair = (key.read_bytes(), certificate.read_bytes())
        roots = client_ca.read_bytes() if client_ca is not None else None
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        try:
            now = [stamp(path) for path in files]
            if now == seen:
                return None
            seen = now
            return read()
        except OSError as exc:
            log.error("the certificate of gRPC is unchanged: %s", exc)
            return None

    try:
        # The stubs do not allow None, which the library takes for "unchanged".
        return grpc.dynamic_ssl_server_credentials(read(), newer, client_ca is not None)  # type: ignore[arg-type]
    except OSError as exc:
        raise LoadError(f"cannot be read: {exc.strerror}", file=str(exc.filename)) from exc


_FILE: Any = reflection_pb.DESCRIPTOR  # its stub has its own types
ALPHA: ServiceDescriptor = _FILE.services_by_name["ServerReflection"]


def _stable() -> ServiceDescriptor:
    """Return v1's descriptor, built from v1alpha's file: package and type names differ, numbers do not."""
    file = FileDescriptorProto.FromString(reflection_pb.DESCRIPTOR.serialized_pb)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = "grpc.reflection.v1"
    for message in file.message_type:
        for typed in (f for f in message.field if f.type_name):
            typed.type_name = typed.type_name.replace(".v1alpha.", ".v1.")
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(".v1alpha.", ".v1.")
        method.output_type = method.output_type.replace(".v1alpha.", ".v1.")
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor: ServiceDescriptor = pool.FindServiceByName("grpc.reflection.v1.ServerReflection")
    return descriptor


STABLE = _stable()


class Reflection:
    """Both versions of reflection. `names` are the services to list, `files` those that describe them."""

    def __init__(self, names: Iterable[str], files: Iterable[FileDescriptor]) -> None:
        pool = DescriptorPool()
        for file in files:
            _copy(file, pool)
        self._servicer = aio.ReflectionServicer(names, pool=pool)

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Context) -> None:
        # The library's answers contain the request, as v1alpha's message.
        known_requests = (
            reflection_pb.ServerReflectionRequest.FromString(r.SerializeToString()) async for r in requests
        )
        answers: Any = self._servicer.ServerReflectionInfo(known_requests, context)  # its stub is wrong
        async for response in answers:
            await context.write(response)


def _copy(file: FileDescriptor, pool: DescriptorPool) -> None:
    """Copy a file after its imports. Adding the same file twice is not an error."""
    for dependency in file.dependencies:
        _copy(dependency, pool)
    pool.AddSerializedFile(file.serialized_pb)


LABELS = "versions have no labels: a graph has one version"


class ModelService:
    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def GetModelStatus(self, request: tfs_pb.GetModelStatusRequest) -> tfs_pb.GetModelStatusResponse:
        spec = request.model_spec
        if spec.version_label:
            raise InvalidArgument.at("model_spec.version_label", LABELS)
        version = str(spec.version.value) if spec.HasField("version") else ""
        statuses = self._administration.status(spec.name, version)
        response = tfs_pb.GetModelStatusResponse()
        for one in statuses:
            row = response.model_version_status.add(version=one.version, state=one.state.value)
            row.status.error_code = error_pb.Code.Value(one.error_code)
            row.status.error_message = one.reason or "OK"
        return response

    async def HandleReloadConfigRequest(
        self, request: tfs_pb.ReloadConfigRequest
    ) -> tfs_pb.ReloadConfigResponse:
        response = tfs_pb.ReloadConfigResponse()
        try:
            await self._reload(request)
        except (Unauthenticated, PermissionDenied):
            raise
        except OvserveError as exc:
            response.status.error_code = error_pb.Code.Value(status_of(exc).name)
            response.status.error_message = sentence(exc)
        return response

    async def _reload(self, request: tfs_pb.ReloadConfigRequest) -> None:
        if request.metric_names:
            raise InvalidArgument.at("metric_names", "metrics are at /metrics")
        kind = request.config.WhichOneof("config")
        if kind is None:
            await self._administration.reload()
        elif kind == "model_config_list":
            rows = request.config.model_config_list.config
            await self._administration.replace(_entry(i, row) for i, row in enumerate(rows))
        else:
            raise InvalidArgument(
                "config.custom_model_config: unknown here; give a model_config_list",
                param=f"config.{kind}",
            )


def _entry(index: int, row: tfs_pb.ModelConfig) -> Entry:
    """Convert a row. model_platform is ignored, because TensorFlow's tools require "tensorflow" there."""
    if row.version_labels:
        raise InvalidArgument(f"config[{index}].version_labels: {LABELS}", param="version_labels")
    version_policy = row.model_version_policy
    kind = version_policy.WhichOneof("policy_choice")
    policy: dict[str, Any] = {}
    if kind == "specific":
        policy = {kind: {"versions": list(version_policy.specific.versions)}}
    elif kind == "latest":
        policy = {kind: {"num_versions": version_policy.latest.num_versions or 1}}
    elif kind == "all":
        policy = {kind: {}}
    return Entry(row.name, row.base_path, policy)


WATCH_SECONDS = 0.5  # the failure of an engine sends no notification


class Health:
    def __init__(self, administration: Administration, services: Sequence[str]) -> None:
        self._administration = administration
        self._services = services

    async def Check(self, request: pb.HealthCheckRequest) -> pb.HealthCheckResponse:
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: Any) -> Any:
        response = pb.HealthListResponse()  # type: ignore[attr-defined]  # newer than the stubs
        for service in ("", *self._services, *self._administration.names):
            response.statuses[service].status = self._status(service)
        return response

    async def Watch(self, request: pb.HealthCheckRequest, context: Context) -> None:
        """Stream the state until the client leaves. An unknown service may become known."""
        sent_status = None
        while True:
            try:
                status = self._status(request.service)
            except NotFound:
                status = pb.HealthCheckResponse.SERVICE_UNKNOWN
            if status != sent_status:
                await context.write(pb.HealthCheckResponse(status=status))
                sent_status = status
            await asyncio.sleep(WATCH_SECONDS)

    def _status(self, service: str) -> int:
        """Raises NotFound."""
        if service == "" or service in self._services:
            serving = self._administration.ready
        elif current_request().caller is NOBODY:
            with calling(RequestContext()):  # probes have no keys; they only see the name that they ask for
                serving = self._administration.model_ready(service)
        else:
            serving = self._administration.model_ready(service)
        return pb.HealthCheckResponse.SERVING if serving else pb.HealthCheckResponse.NOT_SERVING


def _service(module: Any, name: str) -> ServiceDescriptor:
    descriptor: ServiceDescriptor = module.DESCRIPTOR.services_by_name[name]
    return descriptor


INFERENCE = _service(kserve_pb2, "GRPCInferenceService")
MODELS = _service(tensorflow_serving_pb2, "ModelService")
HEALTH = _service(health_pb2, "Health")


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
        administration = Administration(manager)
        self._options = options
        self._server = grpc.aio.server(
            interceptors=options.interceptors,
            options=_channel_options(options),
            maximum_concurrent_rpcs=options.calls,
        )
        servicers: dict[ServiceDescriptor, object] = {
            INFERENCE: InferenceService(administration, inference),
            MODELS: ModelService(administration),
        }
        names = [service.full_name for service in (*servicers, HEALTH, STABLE, ALPHA)]
        servicers[HEALTH] = Health(administration, names)
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
    pairs: list[tuple[str, str | int]] = []
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise LoadError(f"--grpc_channel_arguments: expected key=value, got {item!r}")
        pairs.append((key, int(value) if value.lstrip("-").isdigit() else value))
    return pairs


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

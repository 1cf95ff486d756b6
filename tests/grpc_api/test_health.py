"""grpc.health.v1 and reflection, as Kubernetes and grpcurl use them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from ovserve.access import Guard
from tests.conftest import script_graph
from tests.grpc_api.conftest import TENSORS, running

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
    "tensorflow.serving.ModelService",
}


def ask(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def test_check_and_list() -> None:
    async with running(TENSORS) as server, server.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService", "m"):
            assert (await health.Check(ask(service))).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            await health.Check(ask("nobody"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        listed = await health.List(health_pb2.HealthListRequest())
        assert set(listed.statuses) == {"", "m", *SERVICES}
        server.manager.stopping = True
        assert (await health.Check(ask(""))).status == NOT_SERVING


async def test_watch_tells_each_change_once() -> None:
    async with running(TENSORS) as server, server.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        one, unknown = health.Watch(ask("")), health.Watch(ask("later"))
        assert (await one.read()).status == SERVING
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        await server.manager.load("later", TENSORS)
        assert (await unknown.read()).status == SERVING
        server.manager.stopping = True
        assert (await one.read()).status == NOT_SERVING
        one.cancel()
        unknown.cancel()


async def test_a_loading_model_is_not_ready(tmp_path: Path) -> None:
    script = json.dumps({"load_seconds": 30, "replies": [{"text": "x"}]})
    graph = script_graph(tmp_path / "graph", script)
    async with running(TENSORS) as server, server.channel() as channel:
        loading = asyncio.create_task(server.manager.load("slow", graph))
        health = health_pb2_grpc.HealthStub(channel)
        watched = health.Watch(ask("slow"))
        while (await watched.read()).status != NOT_SERVING:  # unknown until its turn
            pass
        assert (await health.Check(ask(""))).status == SERVING  # something can answer
        watched.cancel()
        loading.cancel()


async def test_a_client_that_knows_no_message_asks_by_reflection() -> None:
    """As grpcurl does it: list, fetch descriptors, build messages, call. Its channel blocks, so on a thread."""

    def grpcurl(address: str) -> tuple[set[str], str, list[str]]:
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services = set(database.get_services())
            pool = descriptor_pool.DescriptorPool(database)
            for name in services:
                assert pool.FindServiceByName(name).methods
            method = pool.FindServiceByName("inference.GRPCInferenceService").FindMethodByName(
                "ServerMetadata"
            )
            answer = channel.unary_unary(
                "/inference.GRPCInferenceService/ServerMetadata",
                request_serializer=lambda m: m.SerializeToString(),
                response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
            )(message_factory.GetMessageClass(method.input_type)())
            file = descriptor_pb2.FileDescriptorProto()
            pool.FindFileContainingSymbol("tensorflow.serving.ModelSpec").CopyToProto(file)
            return services, answer.name, list(file.dependency)

    async with running(TENSORS) as server:
        services, name, dependencies = await asyncio.to_thread(grpcurl, server.address)
        assert services == SERVICES
        assert name == "ovserve"
        assert "google/protobuf/wrappers.proto" in dependencies


async def test_the_newer_version_of_reflection_tells_the_same() -> None:
    """grpcurl asks for v1 first. Its messages are v1alpha's under another name, so those are its bytes."""
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="grpc.reflection.v1.ServerReflection"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="nobody.Knows"),
    ]
    async with running(TENSORS) as server, server.channel() as channel:
        call = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        listed, file, unknown = [answer async for answer in call(iter(asked))]
    assert {s.name for s in listed.list_services_response.service} == SERVICES
    (text,) = file.file_descriptor_response.file_descriptor_proto
    described = descriptor_pb2.FileDescriptorProto.FromString(text)
    assert described.package == "grpc.reflection.v1"
    assert described.service[0].method[0].input_type == ".grpc.reflection.v1.ServerReflectionRequest"
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_a_probe_without_a_key_is_told_whether_a_model_is_ready(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    digest = hashlib.sha256(b"k").hexdigest()
    keys.write_text(f'[[key]]\nname = "other"\nhash = "sha256:{digest}"\nmodels = ["x"]\n')
    async with running(TENSORS, guard=Guard(keys_file=keys)) as server, server.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(ask("m"))).status == SERVING
        assert (await health.Check(ask(""))).status == SERVING
        watched = health.Watch(ask("m"))
        assert (await watched.read()).status == SERVING
        watched.cancel()
        for service, metadata, code in (
            ("never", (), grpc.StatusCode.NOT_FOUND),
            ("m", (("authorization", "Bearer k"),), grpc.StatusCode.NOT_FOUND),  # it may not use this one
        ):
            with pytest.raises(grpc.RpcError) as caught:
                await health.Check(ask(service), metadata=metadata)
            assert caught.value.code() == code
        with pytest.raises(grpc.RpcError) as caught:
            await health.List(health_pb2.HealthListRequest())
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED, "names are for keys"

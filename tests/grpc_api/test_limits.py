"""What one client may ask of the gRPC server: metadata, calls at the same time, and to be believed alive."""

from __future__ import annotations

import asyncio

import grpc
import pytest
import tritonclient.grpc.aio as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.grpc_api.conftest import TENSORS, running
from tests.grpc_api.test_infer import refused

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # and empty SETTINGS


async def test_metadata_has_a_limit() -> None:
    async with (
        running(TENSORS, limits={"head_bytes": 2000}) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        assert await client.is_model_ready("m", headers={"x": "a" * 1000})
        error = await refused(client.is_model_ready("m", headers={"x": "a" * 3000}))
        assert error.status() == "StatusCode.RESOURCE_EXHAUSTED"
        assert await client.is_model_ready("m")


async def test_calls_at_the_same_time_have_a_limit() -> None:
    async with running(TENSORS, limits={"calls": 2}) as server, server.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watched = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for watch in watched:
            await watch.read()
        with pytest.raises(grpc.RpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for watch in watched:
            watch.cancel()
        for _ in range(6000):
            if await health.Check(health_pb2.HealthCheckRequest()).code() == grpc.StatusCode.OK:
                return
            await asyncio.sleep(0.01)  # until the server has heard of it
        pytest.fail("the calls that ended still count")


async def test_a_client_that_is_gone_is_hung_up_on() -> None:
    """It keeps its connection and answers nothing, as one whose machine was switched off."""
    soon = (("grpc.keepalive_time_ms", 1000), ("grpc.http2.ping_timeout_ms", 300))
    async with running(TENSORS, limits={"arguments": soon}) as server:
        host, _, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE)
        async with asyncio.timeout(60):
            while await reader.read(1000):
                pass
        writer.close()

"""Bytes that are not the message of a call: the client's error, and no traceback in the log."""

from __future__ import annotations

import logging

import grpc
import pytest

from ovserve.access import Guard
from tests.grpc_api.conftest import TENSORS, running

KSERVE = "/inference.GRPCInferenceService/"
GARBAGE = b"\xff" * 50


def same(data: bytes) -> bytes:
    return data


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (f"{KSERVE}ModelInfer", "inference.ModelInferRequest"),
        (f"{KSERVE}ServerLive", "inference.ServerLiveRequest"),
        (f"{KSERVE}RepositoryModelLoad", "inference.RepositoryModelLoadRequest"),
        ("/grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckRequest"),
        ("/tensorflow.serving.ModelService/GetModelStatus", "tensorflow.serving.GetModelStatusRequest"),
    ],
)
async def test_one_message(call: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running(TENSORS) as server, server.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(call, same, same)(GARBAGE)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert kind in caught.value.details()
        assert "x-request-id" in dict(caught.value.trailing_metadata())
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (f"{KSERVE}ModelStreamInfer", "inference.ModelInferRequest"),
        (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "grpc.reflection.v1.ServerReflectionRequest",
        ),
    ],
)
async def test_a_stream(call: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running(TENSORS) as server, server.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in channel.stream_stream(call, same, same)(iter([GARBAGE])):
                pass
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert kind in caught.value.details()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_key_is_asked_for_first() -> None:
    async with running(TENSORS, guard=Guard("secret")) as server, server.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"{KSERVE}ModelInfer", same, same)(GARBAGE)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED

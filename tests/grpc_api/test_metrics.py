"""What comes over gRPC is counted under gRPC's labels, with OVMS's names of the methods."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import tritonclient.grpc.aio as triton

from ovserve.services.monitoring.scrape import Scraper
from ovserve.telemetry.metrics import Call
from tests.grpc_api.conftest import TENSORS, Scripted, running
from tests.grpc_api.test_infer import body, refused, tensor

HELLO = json.dumps({"replies": [{"text": "Hello there"}]})
UNARY = Call("KServe", "gRPC", "ModelInfer")
STREAM = Call("KServe", "gRPC", "ModelInferStream")


async def test_an_llm_graph(scripted: Scripted) -> None:
    async with scripted(HELLO) as server, triton.InferenceServerClient(server.address) as client:
        await client.infer("m", [body()])
        await refused(client.infer("m", [body(max_tokens=-2)]))

        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "m", "inputs": [body(stream=True)]}

        async for _, error in client.stream_infer(requests()):
            assert error is None
        metrics = server.manager.metrics.of("m")
        assert (metrics.accepted[UNARY], metrics.responses[UNARY], metrics.errors[UNARY]) == (2, 1, 1)
        assert metrics.accepted[STREAM] == 1
        assert metrics.responses[STREAM] > 1
        assert metrics.processing["ModelInferStream"].count == 1
        assert (metrics.finished, metrics.running) == (2, 0)
        assert metrics.meter.generated_tokens == 4


async def test_calls_that_look_at_a_graph() -> None:
    async with running(TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        for _ in range(2):
            assert await client.is_model_ready("m")
        await client.get_model_metadata("m")
        await refused(client.get_model_metadata("nobody"))
        metrics = server.manager.metrics.of("m")
        ready, metadata = (Call("KServe", "gRPC", method) for method in ("ModelReady", "ModelMetadata"))
        assert metrics.lookups == {ready: 2, metadata: 1}
        assert not metrics.lookup_failures
        assert b"nobody" not in await Scraper(server.manager).scrape()


async def test_a_graph_of_tensors() -> None:
    async with running(TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        await client.infer("m", [tensor("a", [1]), tensor("b", [2])])
        await refused(client.infer("m", [tensor("a", [1])]))
        metrics = server.manager.metrics.of("m")
        assert (metrics.accepted[UNARY], metrics.errors[UNARY], metrics.finished) == (2, 1, 1)
        assert metrics.running == 0

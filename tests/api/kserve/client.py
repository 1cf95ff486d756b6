"""KServe's own Python client against a server of `examples/04_tensor_graph` as `m`, over both wires.

`python -m tests.api.kserve.client GRPC_ADDRESS HTTP_URL`, in an environment that has `kserve`; its protobuf is older
than ours. Run by test_python_client.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub


def request(*, binary: bool) -> InferRequest:
    inputs = []
    for name, values in (("a", [[1, 2]]), ("b", [[10, 20]])):
        array = np.array(values, dtype=np.float32)
        inputs.append(InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model_name="m", infer_inputs=inputs, request_id="7")


def check(response: Any) -> None:
    assert (response.model_name, response.id) == ("m", "7")
    (sum_,) = [output for output in response.outputs if output.name == "sum"]
    assert sum_.as_numpy().tolist() == [[11, 22]]


async def refused(call: Awaitable[Any]) -> str:
    try:
        return f"it was not refused: {await call}"
    except (grpc.RpcError, httpx.HTTPStatusError) as error:
        return str(error)


async def over_grpc(address: str) -> None:
    async with InferenceGRPCClient(address, retries=0) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("m")
        for binary in (True, False):
            check(await client.infer(request(binary=binary)))
        assert "NOT_FOUND" in await refused(client.is_model_ready("nobody"))


async def load_and_unload(address: str) -> None:
    """Its messages have the model's name where Triton's have the repository's."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        gone = await stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="m"))
        assert (gone.model_name, gone.isUnloaded) == ("m", True)
        assert "NOT_FOUND" in await refused(stub.ModelReady(pb.ModelReadyRequest(name="m")))
        back = await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="m"))
        assert (back.model_name, back.isLoaded) == ("m", True)
        assert (await stub.ModelReady(pb.ModelReadyRequest(name="m"))).ready


async def over_http(url: str) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=0)) as client:
        assert await client.is_server_live(url)
        assert await client.is_server_ready(url)
        assert await client.is_model_ready(url, "m")
        assert not await client.is_model_ready(url, "nobody")
        for binary in (True, False):
            check(await client.infer(url, request(binary=binary), model_name="m"))
        empty = InferRequest(model_name="m", infer_inputs=[])
        assert "inputs: a, b not given" in await refused(client.infer(url, empty, model_name="m"))


async def main(address: str, url: str) -> None:
    await over_grpc(address)
    await load_and_unload(address)
    await over_http(url)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

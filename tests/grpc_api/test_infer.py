"""ModelInfer with Triton's own client: LLM graphs, tensor graphs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import InferInput, InferRequestedOutput, service_pb2
from tritonclient.utils import InferenceServerException

from tests.grpc_api.conftest import TENSORS, Scripted, running

HELLO = json.dumps({"replies": [{"text": "Hello there"}]})


def tensor(name: str, values: list[Any], datatype: str = "FP32", dtype: str = "float32") -> InferInput:
    array = np.array(values, dtype=dtype)
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def body(**fields: Any) -> InferInput:
    text = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields})
    return tensor("http", [text.encode()], "BYTES", "object")


async def refused(call: Any) -> InferenceServerException:
    with pytest.raises(InferenceServerException) as caught:
        await call
    return caught.value


async def test_an_llm_graph_takes_the_body_as_bytes(scripted: Scripted) -> None:
    async with scripted(HELLO) as server, triton.InferenceServerClient(server.address) as client:
        result = await client.infer("m", [body(nonsense=1)], request_id="7", parameters={"odd": 3})
        answer = json.loads(result.as_numpy("reply")[0])
        assert answer["choices"][0]["message"]["content"] == "Hello there"
        response = result.get_response()
        assert (response.id, response.model_name, response.model_version) == ("7", "m", "1")
        assert response.parameters["x-ovserve-ignored-params"].string_param == "nonsense,odd"


async def test_another_endpoint(scripted: Scripted) -> None:
    async with scripted(HELLO) as server, triton.InferenceServerClient(server.address) as client:
        prompt = tensor("http", [b'{"prompt": "hi"}'], "BYTES", "object")
        result = await client.infer("m", [prompt], parameters={"endpoint": "completions"})
        assert json.loads(result.as_numpy("reply")[0])["choices"][0]["text"] == "Hello there"


REFUSALS: list[tuple[list[InferInput], dict[str, Any], str, str]] = [
    ([tensor("other", [1.0])], {}, "INVALID_ARGUMENT", "inputs: expected 'http' alone, got other"),
    ([tensor("http", [1.0])], {}, "INVALID_ARGUMENT", "takes BYTES of one element"),
    ([body(stream=True)], {}, "INVALID_ARGUMENT", "call ModelStreamInfer"),
    ([body(model="x")], {}, "INVALID_ARGUMENT", "model: the request is for 'm', its body for 'x'"),
    ([body(messages=3)], {}, "INVALID_ARGUMENT", "messages: expected"),
    ([body()], {"endpoint": "responses"}, "INVALID_ARGUMENT", "parameters.endpoint"),
    ([body()], {"endpoint": "nowhere"}, "NOT_FOUND", "'nowhere' is not served"),
    ([body(max_tokens=-2)], {}, "INVALID_ARGUMENT", "max_tokens"),
]


async def test_what_an_llm_graph_refuses(scripted: Scripted, subtests: pytest.Subtests) -> None:
    async with scripted(HELLO) as server, triton.InferenceServerClient(server.address) as client:
        for inputs, parameters, status, text in REFUSALS:
            with subtests.test(text):
                error = await refused(client.infer("m", inputs, parameters=parameters))
                assert error.status() == f"StatusCode.{status}"
                assert text in error.message()


async def test_a_tensor_graph() -> None:
    async with running(TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        result = await client.infer("m", [tensor("a", [[1, 2]]), tensor("b", [[10, 20]])])
        assert result.as_numpy("sum").tolist() == [[11, 22]]
        assert result.as_numpy("count").tolist() == [1]
        again = await client.infer(
            "m", [tensor("a", [1]), tensor("b", [2])], outputs=[InferRequestedOutput("sum")]
        )
        assert [o.name for o in again.get_response().outputs] == ["sum"]
        assert again.as_numpy("sum").tolist() == [3]


@pytest.mark.parametrize("form", ["int64_param", "double_param"])
async def test_typed_contents_and_a_timestamp(form: str) -> None:
    request = service_pb2.ModelInferRequest(model_name="m", id="x")
    for name in ("a", "b"):
        request.inputs.add(name=name, datatype="INT8", shape=[2]).contents.int_contents.extend([3, -4])
    setattr(request.parameters["OVMS_MP_TIMESTAMP"], form, 77)
    async with running(TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        response = await client._client_stub.ModelInfer(request)
        assert response.raw_output_contents[0] == b"\x06\xf8"
        assert response.parameters["OVMS_MP_TIMESTAMP"].int64_param == 77


def message(**changes: Any) -> service_pb2.ModelInferRequest:
    """A right request for the tensor graph, but for `changes`: field paths and values."""
    request = service_pb2.ModelInferRequest(model_name="m")
    for name in ("a", "b"):
        request.inputs.add(name=name, datatype="FP32", shape=[1]).contents.fp32_contents.append(1)
    for name, value in changes.items():
        {
            "datatype": lambda v: setattr(request.inputs[0], "datatype", v),
            "shape": lambda v: request.inputs[0].shape.__setitem__(slice(None), v),
            "raw": lambda v: request.raw_input_contents.extend(v),
            "input": lambda v: setattr(request.inputs[0], "name", v),
            "version": lambda v: setattr(request, "model_version", v),
            "model": lambda v: setattr(request, "model_name", v),
            "ints": lambda v: request.inputs[0].contents.int_contents.extend(v),
            "stamp": lambda v: setattr(request.parameters["OVMS_MP_TIMESTAMP"], "int64_param", v),
            "empty": lambda v: request.parameters[v].SetInParent(),
            "output": lambda v: request.outputs.add(name=v),
            "region": lambda v: setattr(
                request.inputs[0].parameters["shared_memory_region"], "string_param", v
            ),
            "drop": lambda v: request.inputs.pop(),
        }[name](value)
    return request


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"datatype": "FP31"}, "INVALID_ARGUMENT", "inputs[0].datatype: expected one of BOOL"),
        ({"datatype": "INT32"}, "INVALID_ARGUMENT", "inputs[0].contents.fp32_contents: INT32 goes into int_contents"),
        ({"datatype": "FP16"}, "INVALID_ARGUMENT", "inputs[0].contents: FP16 goes into raw_input_contents"),
        ({"shape": [2]}, "INVALID_ARGUMENT", "inputs[0].data: shape [2] takes 2 elements, got 1"),
        ({"shape": [-1]}, "INVALID_ARGUMENT", "inputs[0].shape: expected 0 or more"),
        ({"raw": [b"1234"]}, "INVALID_ARGUMENT", "raw_input_contents: expected one for each of 2 inputs, got 1"),
        ({"raw": [b"1234"] * 2}, "INVALID_ARGUMENT", "fp32_contents: given together with raw_input_contents"),
        ({"ints": [1]}, "INVALID_ARGUMENT", "inputs[0].contents.int_contents: FP32 goes into fp32_contents"),
        ({"input": "b"}, "INVALID_ARGUMENT", "inputs[1].name: 'b' is given twice"),
        ({"input": "c"}, "INVALID_ARGUMENT", "inputs: 'c' is not one of the graph's: a, b"),
        ({"drop": 1}, "INVALID_ARGUMENT", "inputs: b not given"),
        ({"output": "c"}, "INVALID_ARGUMENT", "outputs: 'c' is not one of the graph's: sum, count"),
        ({"stamp": -5}, "INVALID_ARGUMENT", "parameters.OVMS_MP_TIMESTAMP: expected 0 to"),
        ({"empty": "p"}, "INVALID_ARGUMENT", "parameters.p: has no value"),
        ({"region": "r"}, "INVALID_ARGUMENT", "inputs[0].parameters.shared_memory_region"),
        ({"version": "2"}, "NOT_FOUND", "model 'm' has only version 1, not '2'"),
        ({"model": "n"}, "NOT_FOUND", "model 'n' is not served"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)  # fmt: skip
async def test_what_a_tensor_graph_refuses(changes: dict[str, Any], status: str, text: str) -> None:
    async with running(TENSORS) as server, triton.InferenceServerClient(server.address) as client:
        with pytest.raises(triton.grpc.RpcError) as caught:
            await client._client_stub.ModelInfer(message(**changes))
        assert caught.value.code().name == status
        assert text in caught.value.details()
        names = [key for key, _ in caught.value.trailing_metadata()]
        assert "x-request-id" in names


async def test_a_message_over_the_limit() -> None:
    async with (
        running(TENSORS, message_bytes=1000) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        big = [0.0] * 1000
        error = await refused(client.infer("m", [tensor("a", big), tensor("b", big)]))
        assert error.status() == "StatusCode.RESOURCE_EXHAUSTED"


async def test_a_real_engine(short_graph: Path) -> None:
    """Unary and streamed, with greedy decoding: the same text."""
    async with (
        running(short_graph) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        fields = {"max_tokens": 8, "temperature": 0}
        result = await client.infer("m", [body(**fields)])
        whole = json.loads(result.as_numpy("reply")[0])["choices"][0]["message"]["content"]
        assert whole

        async def requests() -> Any:
            yield {"model_name": "m", "inputs": [body(stream=True, **fields)]}

        text = ""
        async for result, error in client.stream_infer(requests()):
            assert error is None
            for choice in json.loads(result.as_numpy("reply")[0])["choices"]:
                text += choice["delta"].get("content") or ""
        assert text == whole

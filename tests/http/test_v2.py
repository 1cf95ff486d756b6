"""KServe's REST v2 with Triton's own HTTP client, and by hand what that client would not send."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http.aio as triton
from tritonclient.http import InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from tests.conftest import ROOT
from tests.http.conftest import Running, Scripted, running

TENSORS = ROOT / "examples/04_tensor_graph"
HELLO = json.dumps({"replies": [{"text": "Hello there"}]})


def tensor(name: str, values: list[Any], datatype: str = "FP32", *, binary: bool = True) -> InferInput:
    array = np.array(values, dtype=object if datatype == "BYTES" else "float32")
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def client_of(server: Running) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"127.0.0.1:{server.port}")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
async def test_tensors_in_json_and_behind_it(binary_in: bool, binary_out: bool) -> None:
    async with running(TENSORS) as server, client_of(server) as client:
        result = await client.infer(
            "m",
            [tensor("a", [[1, 2]], binary=binary_in), tensor("b", [[10, 20]], binary=binary_in)],
            request_id="7",
            outputs=[InferRequestedOutput("sum", binary_data=binary_out)],
        )
        assert result.as_numpy("sum").tolist() == [[11, 22]]
        assert result.get_response()["id"] == "7"
        assert [o["name"] for o in result.get_response()["outputs"]] == ["sum"]


@pytest.mark.parametrize("binary", [True, False])
async def test_an_llm_graph(scripted: Scripted, binary: bool) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
    async with scripted(HELLO) as server, client_of(server) as client:
        result = await client.infer("m", [tensor("http", [body], "BYTES", binary=binary)])
        answer = json.loads(result.as_numpy("reply")[0])
        assert answer["choices"][0]["message"]["content"] == "Hello there"


async def test_metadata_admin_and_statistics() -> None:
    async with running(TENSORS) as server, client_of(server) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("m")
        assert await client.is_model_ready("m", "1")
        assert not await client.is_model_ready("n")
        assert (await client.get_server_metadata())["name"] == "ovserve"
        assert [i["name"] for i in (await client.get_model_metadata("m"))["inputs"]] == ["a", "b"]
        config = await client.get_model_config("m")
        assert config["model_transaction_policy"] == {"decoupled": True}
        await client.infer("m", [tensor("a", [1]), tensor("b", [1])])
        (row,) = (await client.get_inference_statistics("m"))["model_stats"]
        assert row["inference_stats"]["success"]["count"] == 1
        assert len((await client.get_inference_statistics())["model_stats"]) == 1
        expected = [{"name": "m", "version": "1", "state": "READY", "reason": ""}]
        assert await client.get_model_repository_index() == expected
        await client.unload_model("m")
        assert (await client.get_model_repository_index())[0]["state"] == "UNAVAILABLE"
        assert not await client.is_model_ready("m")
        with pytest.raises(InferenceServerException, match="not in the configuration"):
            await client.load_model("gone")
        assert (await client.get_log_settings())["log_error"] is True
        with pytest.raises(InferenceServerException, match="always logged"):
            await client.update_log_settings({"log_error": False})
        with pytest.raises(InferenceServerException, match="maps no memory"):
            await client.get_system_shared_memory_status()


def one(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "datatype": "FP32", "shape": [2], "data": [1, 2], **changes}


B = {"name": "b", "datatype": "FP32", "shape": [2], "data": [1, 2]}


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"[]", 400, "the body is not a JSON object"),
        ({}, 400, "inputs"),
        ({"inputs": [one(shape="x"), B]}, 400, "inputs[0].shape"),
        ({"inputs": [one(datatype="F"), B]}, 400, "inputs[0].datatype: expected one of BOOL"),
        ({"inputs": [one(data=[1]), B]}, 400, "inputs[0].data: shape [2] takes 2 elements, got 1"),
        ({"inputs": [one(data=[1, "x"]), B]}, 400, "inputs[0].data[1]: expected a number, got 'x'"),
        ({"inputs": [one(data=[1, True]), B]}, 400, "inputs[0].data[1]: expected a number, got True"),
        ({"inputs": [one(shape=[1, 2], data=[[1]]), B]}, 400, "inputs[0].data: shape [1, 2] takes 2 elements, got 1"),
        ({"inputs": [one(data=[[1], 2]), B]}, 400, "inputs[0].data[0]: expected a number, got [1]"),
        ({"inputs": [one(datatype="UINT8", data=[1, 256]), B]}, 400, "inputs[0].data: 256 does not fit UINT8"),
        ({"inputs": [one(datatype="BF16"), B]}, 400, "inputs[0].datatype: BF16 has a binary form only"),
        ({"inputs": [one(data=None), B]}, 400, "inputs[0].data"),
        ({"inputs": [one(shape=[-2]), B]}, 400, "inputs[0].shape: expected 0 or more"),
        ({"inputs": [B, B]}, 400, "inputs[1].name: 'b' is given twice"),
        ({"inputs": [one()]}, 400, "inputs: b not given"),
        ({"inputs": [one(parameters={"binary_data_size": 8}), B]}, 400, "inputs[0].parameters.binary_data_size: expected 0 to 0"),
        ({"inputs": [one(), B], "parameters": {"binary_data_output": 1}}, 400, "parameters.binary_data_output: expected true or false"),
        ({"inputs": [one(), B], "outputs": [{"name": "z"}]}, 400, "outputs: 'z' is not one of the graph's"),
        ({"inputs": [one(parameters={"shared_memory_region": "r"}), B]}, 400, "shared_memory_region"),
    ],
)  # fmt: skip
async def test_what_infer_refuses(body: Any, status: int, text: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body)
    async with running(TENSORS) as server, httpx.AsyncClient() as http:
        response = await http.post(f"{server.url}/v2/models/m/infer", content=content)
        assert response.status_code == status
        assert text in response.json()["error"]


async def test_only_the_number_of_elements_counts() -> None:
    async with running(TENSORS) as server, httpx.AsyncClient(base_url=server.url) as http:
        for shape, data in (
            ([3], [[1], [2], [3]]),
            ([3], [[[1]], [[2, 3]]]),
            ([3, 1], [[1, 2, 3]]),
            ([1, 3], [1, 2, 3]),
        ):
            a, b = ({"name": name, "datatype": "FP32", "shape": shape, "data": data} for name in "ab")
            body = {"inputs": [a, b], "outputs": [{"name": "sum"}]}
            (found,) = (await http.post("/v2/models/m/infer", json=body)).json()["outputs"]
            assert (found["shape"], found["data"]) == (shape, [2, 4, 6])


async def test_what_is_not_there() -> None:
    async with running(TENSORS) as server, httpx.AsyncClient(base_url=server.url) as http:
        inputs = [one(odd={"data": [1]}), {**B, "Shape": [1], "odd": None, "binary_data_size": 4}]
        outputs = [{"name": "sum", "classification": 2}]
        good = {"inputs": inputs, "outputs": outputs, "odd": 1, "parameters": {"strange": "x"}}
        response = await http.post("/v2/models/m/versions/1/infer", json=good)
        assert response.json()["outputs"][0] == {
            "name": "sum",
            "datatype": "FP32",
            "shape": [2],
            "data": [2, 4],
        }
        assert response.headers["x-ovserve-ignored-params"] == (
            "inputs[0].odd,inputs[1].Shape,inputs[1].binary_data_size,odd,outputs[0].classification"
        )
        assert response.json()["parameters"]["x-ovserve-ignored-params"] == "strange"
        for path, status in (
            ("/v2/models/n/infer", 404),
            ("/v2/models/m/versions/2/infer", 404),
            ("/v2/models/m/n/infer", 404),
            ("/v2/models/m//infer", 404),
            ("/v2/models/m/generate", 404),
            ("/v2/repository/models/a/b/load", 404),
            ("/v2/cudasharedmemory/region/r/register", 404),
            ("/v2/trace/setting", 404),
            ("/v2/repository/models/n/load", 404),
            ("/v2/repository/models/n/unload", 404),
        ):
            found = await http.post(path, json=good if path.endswith("infer") else {})
            assert (path, found.status_code) == (path, status)
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        found = await http.post("/v3/chat/completions", json=chat)
        assert found.status_code == 400
        assert "use /v2/models/m/infer" in found.json()["error"]["message"]


async def test_a_header_length_that_lies() -> None:
    async with running(TENSORS) as server, httpx.AsyncClient() as http:
        body = json.dumps({"inputs": [one(), B]}).encode()
        for length, text in (
            ("x", "Inference-Header-Content-Length"),
            ("9" * 5000, "expected 0 to"),
            (str(len(body) + 1), "expected 0 to"),
        ):
            headers = {"Inference-Header-Content-Length": length}
            response = await http.post(f"{server.url}/v2/models/m/infer", content=body, headers=headers)
            assert response.status_code == 400
            assert text in response.json()["error"]
        response = await http.post(
            f"{server.url}/v2/models/m/infer",
            content=body + b"1234",
            headers={"Inference-Header-Content-Length": str(len(body))},
        )
        assert "4 bytes that belong to no input" in response.json()["error"]

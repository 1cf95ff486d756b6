"""Plain models over KServe's protocol, with Triton's clients and by hand: values, metadata, what is wrong."""

from __future__ import annotations

import asyncio
import io
import json
import struct
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.inference.conftest import FORMATS, Site

B: dict[str, Any] = {"name": "b", "shape": [1, 10], "datatype": "FP32", "data": list(range(10))}


def client_of(site: Site, wire: str) -> tuple[Any, Any]:
    if wire == "http":
        return triton_http, triton_http.InferenceServerClient(site.host)
    return triton_grpc, triton_grpc.InferenceServerClient(site.grpc)


def tensor(module: Any, name: str, array: np.ndarray[Any, Any], datatype: str) -> Any:
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_tritons_clients(site: Site, wire: str) -> None:
    module, client = client_of(site, wire)
    try:
        numbers = np.arange(10, dtype=np.float32)[None]
        result = client.infer(
            "dummy", [tensor(module, "b", numbers, "FP32")], model_version="1", request_id="x"
        )
        assert np.array_equal(result.as_numpy("a"), numbers + 1)
        texts = np.array(["ab", "zażółć", ""], dtype=object)
        result = client.infer("passthrough_string", [tensor(module, "my_name", texts, "BYTES")])
        assert [t.decode() for t in result.as_numpy("my_name")] == texts.tolist()
        large = np.random.default_rng(1).integers(0, 255, (1000, 3000), dtype=np.uint8)
        result = client.infer("passthrough", [tensor(module, "input:0", large, "UINT8")])
        assert np.array_equal(result.as_numpy("copy:0"), large)
        x, y = np.full((3, 10), 5, np.float32), np.ones((3, 10), np.float32)
        wanted = [module.InferRequestedOutput("minus")]
        result = client.infer(
            "two", [tensor(module, "y", y, "FP32"), tensor(module, "x", x, "FP32")], outputs=wanted
        )
        assert result.as_numpy("plus") is None
        assert result.as_numpy("minus").tolist() == [[4.0] * 10] * 3
        with pytest.raises(InferenceServerException, match="expected FP32 .1,10., got FP32 .2,10."):
            client.infer("dummy", [tensor(module, "b", np.ones((2, 10), np.float32), "FP32")])
        assert client.is_model_ready("dummy", "1")
        assert client.is_model_ready("dummy")
        named = client.infer("org/dummy", [tensor(module, "b", numbers, "FP32")], model_version="1")
        assert np.array_equal(named.as_numpy("a"), numbers + 1)
        assert client.is_model_ready("org/dummy")
        assert client.is_model_ready("org/dummy", "1")
        client.load_model("org/dummy")
    finally:
        client.close()


def test_metadata_config_and_status(site: Site) -> None:
    found = httpx.get(f"{site.url}/v2/models/rows").json()
    assert found == {
        "name": "rows", "versions": ["1"], "platform": "OpenVINO",
        "inputs": [{"name": "input:0", "datatype": "FP64", "shape": [-1, 10]}],
        "outputs": [{"name": "output:0", "datatype": "FP64", "shape": [-1, 10]}],
    }  # fmt: skip
    config = httpx.get(f"{site.url}/v2/models/dummy/config").json()
    assert config["input"] == [{"name": "b", "data_type": "TYPE_FP32", "dims": [1, 10]}]
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert httpx.get(f"{site.url}/v2/models/dummy/versions/2").status_code == 404
    ((state, why),) = site.states("wrong").values()
    assert state == "LOADING"
    assert "shape: 'z' is not a tensor of the model; known: 'b'" in why
    ((state, why),) = site.states("absent").values()
    assert "base_path: " in why
    assert "does not exist" in why
    assert site.infer("wrong", B).status_code == 503
    with triton_grpc.InferenceServerClient(site.grpc) as client:
        meta = client.get_model_metadata("types")
        assert {i.datatype for i in meta.inputs} >= {"BF16", "BYTES", "BOOL", "UINT64"}
    (model,) = httpx.get(f"{site.url}/v3/capabilities", params={"model": "dummy"}).json()["data"]
    assert model["engines"][0]["kind"] == "tensors"
    assert model["engines"][0]["facts"]["inputs"][0]["name"] == "b"


def test_versions_in_the_formats_of_other_frameworks(site: Site) -> None:
    assert {v: s for v, (s, _) in site.states("formats").items()} == dict.fromkeys("1234", "AVAILABLE")
    for version, suffix in enumerate(FORMATS, 1):
        found = httpx.get(f"{site.url}/v2/models/formats/versions/{version}").json()
        (given,) = found["inputs"]
        assert (given["datatype"], given["shape"]) == ("FP32", [1, 10]), suffix
        sent = {"inputs": [{**B, "name": given["name"]}]}
        answer = httpx.post(f"{site.url}/v2/models/formats/versions/{version}/infer", json=sent).json()
        assert answer["outputs"][0]["data"] == [x + 1 for x in B["data"]], suffix
        assert answer["model_version"] == str(version)


@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [
        ("dummy", [], "expects 1 inputs, got 0; missing: 'b' FP32 [1,10]"),
        ("dummy", [B, {**B, "name": "c"}], "'c' is not an input of model 'dummy'; it has 'b' FP32 [1,10]"),
        ("dummy", [B, B], "'b' is given twice"),
        ("dummy", [{**B, "datatype": "FP64"}], "'b': expected FP32 [1,10], got FP64 [1,10]"),
        ("dummy", [{**B, "shape": [10]}], "'b': expected FP32 [1,10], got FP32 [10]"),
        ("dummy", [{**B, "shape": [1, 0], "data": []}], "'b': expected FP32 [1,10], got FP32 [1,0]"),
        ("dummy", [{**B, "shape": [1, 5]}], "takes 5 elements, got 10"),
        ("dummy", [{**B, "datatype": "FP8"}], "datatype: expected one of BOOL"),
        ("dummy", [{**B, "shape": [-1, 10]}], "expected 0 or more in each dimension"),
        ("dummy", [{**B, "data": ["a"] * 10}], "expected a number, got 'a'"),
        ("dummy", [{**B, "datatype": "BYTES", "data": ["x"] * 10}], "expected FP32 [1,10], got BYTES [1,10]"),
        ("rows", [{"name": "input:0", "shape": [5, 10], "datatype": "FP64", "data": [0] * 50}], "expected FP64 [1..4,10], got FP64 [5,10]"),
        ("product", [{"name": "left", "shape": [2, 3], "datatype": "FP32", "data": [0] * 6}, {"name": "right", "shape": [2, 3], "datatype": "FP32", "data": [0] * 6}], "the model rejects them"),
        ("image", [{"name": "input", "shape": [1], "datatype": "BYTES", "data": ["no image"]}], "image 0 cannot be read"),
        ("image", [{"name": "input", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}], "as BYTES of shape [n] for FP32 [1,4,5,3] (NHWC); got BYTES [2]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(site: Site, model: str, inputs: list[dict[str, Any]], said: str) -> None:
    answer = site.infer(model, *inputs)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]


def test_other_wrong_requests(site: Site) -> None:
    unknown = site.infer("dummy", B, outputs=[{"name": "z"}])
    assert (unknown.status_code, unknown.json()["error"]) == (
        400, "outputs: 'z' is not an output of model 'dummy'; it has 'a' FP32 [1,10]",
    )  # fmt: skip
    both = {"name": "input", "shape": [1, 1], "datatype": "UINT8", "data": [1]}
    assert "given twice" in site.infer("passthrough", both, {**both, "name": "input:0"}).json()["error"]
    assert site.infer("nothing", B).status_code == 404
    noted = site.infer("dummy", B, parameters={"priority": 1}).json()
    assert noted["parameters"] == {"x-ovserve-ignored-params": "priority"}
    odd = [{"name": "a", "parameters": {"classification": 2, "binary_data": False}}]
    noted = site.infer("dummy", {**B, "parameters": {"odd": 1}}, outputs=odd, parameters={"a": 1}).json()
    assert noted["parameters"]["x-ovserve-ignored-params"] == (
        "a,inputs[0].parameters.odd,outputs[0].parameters.classification"
    )
    chat = {"model": "dummy", "messages": [{"role": "user", "content": "hi"}]}
    refused = httpx.post(f"{site.url}/v3/chat/completions", json=chat)
    assert refused.status_code == 400
    assert "/v2/models/dummy/infer" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": ["x" * 100_000] * 10},
        {"data": [[1] * 50_000] * 10, "shape": [10]},
        {"datatype": "x" * 100_000},
        {"datatype": "BYTES", "data": [{"x" * 100_000: 1}] * 10},
        {"parameters": {"binary_data_size": "x" * 100_000}},
    ],
)
def test_an_error_does_not_repeat_a_large_value(site: Site, wrong: dict[str, Any]) -> None:
    answer = site.infer("dummy", {**B, **wrong})
    assert answer.status_code == 400
    assert len(answer.content) < 400
    for body in ({"instances": ["x" * 100_000]}, {"inputs": {"x" * 100_000: [[1], 2]}}):
        answer = httpx.post(f"{site.url}/v1/models/dummy:predict", json=body)
        assert answer.status_code == 400
        assert len(answer.content) < 400
    assert len(site.infer("x" * 50_000, B).content) < 400
    long = {"name": "a", "parameters": {"binary_data": "x" * 100_000}}
    assert len(site.infer("dummy", B, outputs=[long]).content) < 400


def test_parameters_of_tensors_are_reported_over_grpc(site: Site) -> None:
    _, client = client_of(site, "grpc")
    given = tensor(triton_grpc, "b", np.zeros((1, 10), np.float32), "FP32")
    given._input.parameters["odd"].int64_param = 1
    try:
        wanted = [triton_grpc.InferRequestedOutput("a", class_count=3)]
        noted = client.infer("dummy", [given], outputs=wanted).get_response().parameters
    finally:
        client.close()
    assert noted["x-ovserve-ignored-params"].string_param == (
        "inputs[0].parameters.odd,outputs[0].parameters.classification"
    )


def test_odd_values_come_back_or_are_refused(site: Site) -> None:
    raw = struct.pack("<10f", *[float("nan")] * 5, *[float("inf")] * 5)
    head = json.dumps({"inputs": [{"name": "b", "shape": [1, 10], "datatype": "FP32", "parameters": {"binary_data_size": 40}}], "parameters": {"binary_data_output": True}}).encode()  # fmt: skip
    sent = {"Inference-Header-Content-Length": str(len(head))}
    answer = httpx.post(f"{site.url}/v2/models/dummy/infer", content=head + raw, headers=sent)
    assert answer.content[-40:-20] == raw[:20]
    as_json = httpx.post(
        f"{site.url}/v2/models/dummy/infer", content=head.replace(b": true", b":false") + raw, headers=sent
    )
    assert as_json.status_code == 400
    assert "binary_data" in as_json.json()["error"]
    short = httpx.post(f"{site.url}/v2/models/dummy/infer", content=head + raw[:39], headers=sent)
    assert (short.status_code, "binary_data_size" in short.json()["error"]) == (400, True)
    empty = {"name": "input", "shape": [0, 5], "datatype": "UINT8", "data": []}
    assert site.infer("passthrough", empty).json()["outputs"][0]["shape"] == [0, 5]
    none = {"name": "my_name", "shape": [0], "datatype": "BYTES", "data": []}
    assert site.infer("passthrough_string", none).json()["outputs"][0]["data"] == []
    long = "x" * 10_000_000
    got = site.infer(
        "passthrough_string", {"name": "my_name", "shape": [1], "datatype": "BYTES", "data": [long]}
    )
    assert got.status_code == 200, got.text[:500]
    assert got.json()["outputs"][0]["data"] == [long]
    bomb = {
        "name": "my_name",
        "shape": [10_000],
        "datatype": "BYTES",
        "data": ["x" * 100_000, *["y"] * 9_999],
    }
    assert "are too much for one request" in site.infer("passthrough_string", bomb).json()["error"]


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (50, 40), form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, form)
    return file.getvalue()


def test_images_are_scaled_into_a_range(site: Site) -> None:
    with triton_grpc.InferenceServerClient(site.grpc) as client:
        for size, height in (((50, 40), 8), ((5, 2), 4), ((7, 6), 6)):
            file = np.array([picture((10, 20, 30), size)], dtype=object)
            found = client.infer("range", [tensor(triton_grpc, "input", file, "BYTES")]).as_numpy("output")
            assert found.shape == (1, 3, height, size[0])
            assert found[0, :, 2, 2].tolist() == [31, 21, 11]


@pytest.mark.parametrize(("model", "order"), [("image", [30, 20, 10]), ("rgb", [10, 20, 30])])
def test_images_are_decoded_and_scaled(site: Site, model: str, order: list[int]) -> None:
    with triton_grpc.InferenceServerClient(site.grpc) as client:
        for data in (picture((10, 20, 30)), picture((10, 20, 30), (5, 4))):
            file = np.array([data], dtype=object)
            found = client.infer(model, [tensor(triton_grpc, "input", file, "BYTES")]).as_numpy("output")
            assert found.shape == (1, 3, 4, 5)
            assert found[0, :, 2, 2].tolist() == [value + 1 for value in order]
        file = np.array([picture((1, 2, 3))[:60]], dtype=object)
        with pytest.raises(InferenceServerException, match="image 0 cannot be read"):
            client.infer(model, [tensor(triton_grpc, "input", file, "BYTES")])


async def test_many_at_once_and_a_stream(site: Site) -> None:
    import tritonclient.grpc.aio as aio

    async with aio.InferenceServerClient(site.grpc) as client:

        async def one(value: float) -> float:
            array = np.full((2, 10), value, np.float64)
            result = await client.infer("rows", [tensor(triton_grpc, "input:0", array, "FP64")])
            return float(result.as_numpy("output:0")[1, 9])

        assert await asyncio.gather(*(one(n) for n in range(100))) == [n + 1.0 for n in range(100)]

        async def requests() -> Any:
            for n in range(5):
                array = np.full((1, 10), n, np.float32)
                yield {
                    "model_name": "dummy",
                    "inputs": [tensor(triton_grpc, "b", array, "FP32")],
                    "request_id": str(n),
                }

        found = {}
        async for result, error in client.stream_infer(requests()):
            assert error is None
            found[result.get_response().id] = float(result.as_numpy("a")[0, 0])
        assert found == {str(n): n + 1.0 for n in range(5)}


def test_metrics_have_ovmss_names_and_labels(site: Site) -> None:
    def samples() -> dict[str, float]:
        lines = httpx.get(f"{site.url}/metrics").text.splitlines()
        return {
            k: float(v) for k, _, v in (line.rpartition(" ") for line in lines if not line.startswith("#"))
        }

    labels = 'name="two",version="1"'
    done = 'ovms_requests_success{name="two",api="KServe",interface="REST",method="ModelInfer",version="1"}'
    failed = done.replace("success", "fail")
    before = samples()
    x = {**B, "name": "x", "shape": [1, 10]}
    assert site.infer("two", x, {**x, "name": "y"}).status_code == 200
    assert site.infer("two", x).status_code == 400
    httpx.get(f"{site.url}/v2/models/two/ready")
    after = samples()
    assert after[done] - before.get(done, 0) == after[failed] - before.get(failed, 0) == 1
    for family in ("ovms_inference_time_us", "ovms_wait_for_infer_req_time_us"):
        count = f"{family}_count{{{labels}}}"
        assert after[count] - before[count] == 1
        assert after[f"{family}_sum{{{labels}}}"] > before[f"{family}_sum{{{labels}}}"]
    assert after['ovms_request_time_us_count{name="two",interface="REST",version="1"}'] >= 1
    assert after[f"ovms_streams{{{labels}}}"] >= 1
    assert after[f"ovms_infer_req_queue_size{{{labels}}}"] >= 1
    assert after[f"ovms_current_requests{{{labels}}}"] == after[f"ovms_infer_req_active{{{labels}}}"] == 0
    assert 'ovms_requests_success{name="two",api="KServe",interface="REST",method="ModelReady"}' in after
    assert not [name for name in after if name.startswith("ovms_graph") and 'name="two"' in name]

"""Any request to a real plain model ends in an answer or one clear error, and harms no other request."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.inference.conftest import Site

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
)
VALUES = st.one_of(
    st.lists(NUMBERS, max_size=12),
    st.lists(st.lists(st.integers(0, 255), max_size=4), max_size=4),
    st.just([1.0] * 10),
    NUMBERS,
)
TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["b", "x", "y", "input", "input:0", "my_name", "left", "right", "", "\x00ż"]),
        "datatype": st.sampled_from(["FP32", "UINT8", "BYTES", "FP16", "BF16", "BOOL", "INT64", "FP8", ""]),
        "shape": st.lists(st.one_of(st.sampled_from([0, 1, 2, 10]), st.integers(-2, 2**66)), max_size=5),
    },
    optional={
        "data": VALUES,
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data_size", "classification"]), NUMBERS, max_size=2
        ),
    },
)
MODELS = st.sampled_from(["dummy", "two", "passthrough", "passthrough_string", "product", "image", "types"])


@pytest.fixture(scope="module")
def client(site: Site) -> Any:
    with httpx.Client(base_url=site.url, timeout=30) as made:
        yield made


def check(client: httpx.Client, answer: httpx.Response) -> None:
    assert answer.status_code in (200, 400, 404, 413), answer.text
    if answer.status_code != 200:
        assert answer.json()["error"], "an error says what is wrong"


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(model=MODELS, inputs=st.lists(TENSORS, max_size=3), tail=st.binary(max_size=50))
def test_any_infer(client: httpx.Client, model: str, inputs: list[Any], tail: bytes) -> None:
    body = json.dumps({"inputs": inputs}).encode()
    check(client, client.post(f"/v2/models/{model}/infer", content=body))
    headers = {"Inference-Header-Content-Length": str(len(body))}
    check(client, client.post(f"/v2/models/{model}/infer", content=body + tail, headers=headers))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(model=MODELS, body=st.dictionaries(st.sampled_from(["instances", "inputs", "signature_name"]), st.one_of(VALUES, st.dictionaries(st.sampled_from(["b", "x", "y", "b64"]), VALUES, max_size=3)), max_size=2))  # fmt: skip
def test_any_predict(client: httpx.Client, model: str, body: Any) -> None:
    check(client, client.post(f"/v1/models/{model}:predict", json=body))


def test_the_models_still_answer(site: Site, client: httpx.Client) -> None:
    """Runs last: no request of the tests above has ended an engine."""
    one = {"name": "b", "shape": [1, 10], "datatype": "FP32", "data": [1.0] * 10}
    assert site.infer("dummy", one).json()["outputs"][0]["data"] == [2.0] * 10
    lines = client.get("/metrics").text.splitlines()
    restarts = [line for line in lines if line.startswith("ovserve_engine_restarts_total")]
    assert restarts
    assert all(line.endswith((" 0", " 0.0")) for line in restarts), restarts

"""Any request to a real plain model ends in an answer or one clear error, and harms no other request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.breadth import examples
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
    with httpx.Client(base_url=site.url, timeout=230) as made:
        yield made


def check(client: httpx.Client, answer: httpx.Response) -> None:
    assert answer.status_code in (200, 400, 404, 413), answer.text
    if answer.status_code != 200:
        assert answer.json()["error"], "an error says what is wrong"


@settings(
    max_examples=examples(20),
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
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(model=MODELS, body=st.dictionaries(st.sampled_from(["instances", "inputs", "signature_name"]), st.one_of(VALUES, st.dictionaries(st.sampled_from(["b", "x", "y", "b64"]), VALUES, max_size=3)), max_size=2))  # fmt: skip
def test_any_predict(client: httpx.Client, model: str, body: Any) -> None:
    check(client, client.post(f"/v1/models/{model}:predict", json=body))


@dataclass(frozen=True)
class Sent:
    """An input as it goes over the wire, with the binary extension."""

    name: str
    datatype: str
    shape: list[int]
    raw: bytes

    @property
    def head(self) -> dict[str, Any]:
        size = {"binary_data_size": len(self.raw)}
        return {"name": self.name, "datatype": self.datatype, "shape": self.shape, "parameters": size}


Faulty = tuple[list[Sent], str]  # the request, and what the error says
# What is wrong with a request of two inputs, FP32 [?,10] each.
FAULTS: dict[str, Callable[[Sent, Sent], Faulty]] = {
    "rank": lambda x, y: (
        [replace(x, shape=[len(x.raw) // 4]), y],
        r"'x': expected FP32 \[\?,10\], got FP32 \[\d+\]",
    ),
    "dimension": lambda x, y: (
        [x, replace(y, shape=[*y.shape[::-1], 1][:2])],
        r"'y': expected FP32 \[\?,10\], got FP32 \[10,\d+\]",
    ),
    "precision": lambda x, y: (
        [replace(x, datatype="FP64", raw=x.raw * 2), y],
        r"'x': expected FP32 \[\?,10\], got FP64 \[\d+,10\]",
    ),
    "bytes": lambda x, y: (
        [x, replace(y, raw=y.raw + b"\0")],
        r"inputs\[1\].data: FP32 of shape \[\d+, 10\] takes \d+ bytes, got \d+",
    ),
    "missing": lambda x, y: ([y], r"expects 2 inputs, got 1; missing: 'x' FP32 \[\?,10\]"),
    "twice": lambda x, y: ([x, y, x], r"'x' is given twice"),
    "extra": lambda x, y: (
        [x, y, replace(x, name="z")],
        r"'z' is not an input of model 'two'; it has 'x' FP32",
    ),
    "unknown": lambda x, y: ([x, replace(y, name="")], r"'' is not an input of model 'two'; it has 'x' FP32"),
    "datatype": lambda x, y: ([replace(x, datatype="FP33"), y], r"expected one of BOOL, .*, got 'FP33'"),
    "together": lambda x, y: (
        [x, replace(y, shape=[y.shape[0] + 1, 10], raw=y.raw + bytes(40))],
        r"the model rejects them",
    ),
}


def send(client: httpx.Client, inputs: list[Sent]) -> httpx.Response:
    asked = {"inputs": [one.head for one in inputs], "parameters": {"binary_data_output": True}}
    head = json.dumps(asked).encode()
    return client.post(
        "/v2/models/two/infer",
        content=head + b"".join(one.raw for one in inputs),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    rows=st.integers(0, 3),
    fault=st.sampled_from([*FAULTS, ""]),
    values=st.lists(st.floats(width=32), min_size=1, max_size=30),
)
def test_a_right_request_is_answered_and_a_wrong_one_named(
    client: httpx.Client, rows: int, fault: str, values: list[float]
) -> None:
    x = np.resize(np.array(values, np.float32), (rows, 10))
    y = x[::-1] * np.float32(0.5)
    inputs = [Sent(name, "FP32", [rows, 10], part.tobytes()) for name, part in (("x", x), ("y", y))]
    if fault == "together" and rows in (0, 1):
        fault = ""  # one row goes together with any number of them
    if fault:
        asked, said = FAULTS[fault](*inputs)
        answer = send(client, asked)
        assert answer.status_code == 400, answer.content
        assert re.search(said, answer.json()["error"]), answer.json()["error"]
        return
    answer = send(client, inputs)
    assert answer.status_code == 200, answer.content
    length = int(answer.headers["Inference-Header-Content-Length"])
    shapes = {o["name"]: o["shape"] for o in json.loads(answer.content[:length])["outputs"]}
    assert shapes == {"plus": [rows, 10], "minus": [rows, 10]}
    found = np.frombuffer(answer.content[length:], np.float32).reshape(2, rows, 10)
    order = list(shapes)
    with np.errstate(all="ignore"):
        assert np.array_equal(found[order.index("plus")], x + y, equal_nan=True)
        assert np.array_equal(found[order.index("minus")], x - y, equal_nan=True)


def test_the_models_still_answer(site: Site, client: httpx.Client) -> None:
    """Runs last: no request of the tests above has ended an engine."""
    one = {"name": "b", "shape": [1, 10], "datatype": "FP32", "data": [1.0] * 10}
    assert site.infer("dummy", one).json()["outputs"][0]["data"] == [2.0] * 10
    lines = client.get("/metrics").text.splitlines()
    restarts = [line for line in lines if line.startswith("ovserve_engine_restarts_total")]
    assert restarts
    assert all(line.endswith((" 0", " 0.0")) for line in restarts), restarts

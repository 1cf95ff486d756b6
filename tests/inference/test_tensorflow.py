"""TensorFlow Serving's REST API on plain models."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import httpx
import pytest

from tests.inference.conftest import Site
from tests.inference.test_plain_models import picture

TEN = [float(n) for n in range(10)]
MORE = [n + 1.0 for n in TEN]
ODD = [math.nan, math.inf, -math.inf]  # which JSON lacks


def predict(site: Site, model: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body)
    return httpx.post(f"{site.url}/v1/models/{model}:predict", content=content, timeout=230)


@pytest.mark.parametrize(
    ("model", "body", "answer"),
    [
        ("dummy", {"instances": [TEN]}, {"predictions": [MORE]}),
        ("dummy", {"instances": [{"b": TEN}], "signature_name": "serving_default"}, {"predictions": [MORE]}),
        ("dummy", {"inputs": [TEN]}, {"outputs": [MORE]}),
        ("dummy", {"inputs": {"b": [TEN]}}, {"outputs": [MORE]}),
        ("dummy/versions/1", {"inputs": {"b": [TEN]}}, {"outputs": [MORE]}),
        ("two", {"instances": [{"x": TEN, "y": [1] * 10}, {"x": MORE, "y": TEN}]}, {"predictions": [
            {"plus": MORE, "minus": [n - 1 for n in TEN]}, {"plus": [a + b for a, b in zip(TEN, MORE, strict=True)], "minus": [1.0] * 10}]}),
        ("two", {"inputs": {"x": [TEN], "y": [[0] * 10]}}, {"outputs": {"plus": [TEN], "minus": [TEN]}}),
        ("passthrough_string", {"instances": ["a", {"b64": base64.b64encode(b"\xff").decode()}]}, {"predictions": ["a", {"b64": "/w=="}]}),
        ("passthrough", {"instances": [[], []]}, {"predictions": [[], []]}),
        ("dummy", {"instances": [ODD + TEN[3:]]}, {"predictions": [ODD + MORE[3:]]}),
        ("dummy", {"inputs": {"b": [ODD + TEN[3:]]}, "odd": math.nan}, {"outputs": [ODD + MORE[3:]]}),
    ],
)  # fmt: skip
def test_rows_and_columns(site: Site, model: str, body: Any, answer: Any) -> None:
    found = predict(site, model, body)
    assert found.status_code == 200, found.text
    assert json.dumps(found.json()) == json.dumps(answer)  # NaN is not equal to itself


def test_an_image_and_a_large_body(site: Site) -> None:
    file = {"b64": base64.b64encode(picture((10, 20, 30))).decode()}
    ((blue, green, red),) = predict(site, "image", {"instances": [file]}).json()["predictions"]
    assert [blue[0][0], green[0][0], red[0][0]] == [31.0, 21.0, 11.0]
    rows = [[n % 256 for n in range(3000)]] * 200
    large = predict(site, "passthrough", {"instances": rows})
    assert large.status_code == 200, large.text[:300]
    assert large.json()["predictions"] == rows
    large = predict(site, "dummy", {"instances": [[math.nan] * 10] * 3000})
    assert "expected FP32 [1,10], got FP32 [3000,10]" in large.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "Invalid JSON structure. Could not detect row or column format"),
        ({"instances": [TEN], "inputs": [TEN]}, 400, "Could not detect row or column format"),
        ({"instances": []}, 400, "instances: expected a list of at least one value"),
        ({"instances": [{"b": TEN}, {"c": TEN}]}, 400, "instances[1]: expected an object with b"),
        ({"instances": [TEN, TEN[:3]]}, 400, "its lists have different lengths"),
        ({"instances": [[1, [2]]]}, 400, "its lists have different depths"),
        ({"instances": [["a"] * 10]}, 400, "expected a number, got 'a'"),
        ({"instances": [TEN, TEN]}, 400, "'b': expected FP32 [1,10], got FP32 [2,10]"),
        ({"inputs": {"z": [TEN]}}, 400, "'z' is not an input of model 'dummy'"),
        ({"inputs": {"b": {"b64": "!"}}}, 400, 'expected {"b64": base64 text}'),
        ({"inputs": {"b": None}}, 400, "expected a number, got None"),
        (b'{"instances": [[NaN, 1e400]]}', 400, "number out of range: 1e400"),
        (b'{"instances": [[NaN, 1e39]]}', 400, "1e+39 does not fit FP32"),
        (b'{"instances": [[NaN, ' + b"1" * 5000 + b"]]}", 400, "the body has a whole number that no type"),
        (b'{"instances": [[NaN,]]}', 400, "the body is not valid JSON"),
        ({"instances": [[math.nan, "NaN"]]}, 400, "expected a number, got 'NaN'"),
        ({"instances": [math.nan], "signature_name": 1}, 400, "signature_name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(site: Site, body: Any, status: int, said: str) -> None:
    found = predict(site, "dummy", body)
    assert found.status_code == status
    assert said in found.json()["error"]


def test_status_and_metadata(site: Site) -> None:
    ok = {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": "OK"}}
    assert httpx.get(f"{site.url}/v1/models/dummy/versions/1").json() == {"model_version_status": [ok]}
    both = httpx.get(f"{site.url}/v1/models/dummy").json()
    assert (both["model_version_status"], both["object"], both["id"]) == ([ok], "model", "dummy")
    found = httpx.get(f"{site.url}/v1/models/rows/metadata").json()
    assert found["modelSpec"] == {"name": "rows", "signatureName": "", "version": "1"}
    signature = found["metadata"]["signature_def"]["signatureDef"]["serving_default"]
    assert signature["inputs"]["input:0"]["dtype"] == "DT_DOUBLE"
    assert [d["size"] for d in signature["inputs"]["input:0"]["tensorShape"]["dim"]] == ["-1", "10"]
    for path in ("none:predict", "dummy/versions/7:predict", "dummy/labels/stable:predict"):
        missing = httpx.post(f"{site.url}/v1/models/{path}", json={"instances": [TEN]})
        assert (missing.status_code, isinstance(missing.json()["error"], str)) == (404, True)
    for path in ("dummy:classify", "dummy/versions/1:regress"):
        absent = httpx.post(f"{site.url}/v1/models/{path}", json={"examples": [{"x": 1}]})
        assert absent.status_code == 404
        assert "only :predict is served" in absent.json()["error"]
    for path in ("dummy/versions/7", "none/metadata", "dummy/labels/x"):
        assert httpx.get(f"{site.url}/v1/models/{path}").status_code == 404

"""LoRA adapters of a language model: names of their own, the text of a merged model, loaded and unloaded by API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.engine.model.lora import compressed
from tests import lora
from tests.conftest import Server, start_process

F32 = 'plugin_config: \'{"INFERENCE_PRECISION_HINT": "f32"}\''
GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {{
  name: "LLMExecutor"
  calculator: "HttpLLMCalculator"
  input_stream: "LOOPBACK:loopback"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "LOOPBACK:loopback"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  input_stream_info: {{ tag_index: 'LOOPBACK:0', back_edge: true }}
  node_options: {{
    [type.googleapis.com / mediapipe.LLMCalculatorOptions]: {{ models_path: "./" {options} }}
  }}
  input_stream_handler {{
    input_stream_handler: "SyncSetInputStreamHandler",
    options {{ [mediapipe.SyncSetInputStreamHandlerOptions.ext] {{ sync_set {{ tag_index: "LOOPBACK:0" }} }} }}
  }}
}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("lora")
    lora.model(place / "base")
    for name, seed, scale in (("sql", 1, None), ("poem", 2, 2)):
        tensors = lora.adapter(place / f"loras/{name}", seed, scale)
        lora.merge(place / "base", place / f"merged-{name}", tensors, 0.5)
        (place / f"merged-{name}/graph.pbtxt").write_text(GRAPH.format(options=F32))
    adapter = 'lora_adapters { alias: "sql" path: "../loras/sql" alpha: 0.5 }'
    (place / "base/graph.pbtxt").write_text(GRAPH.format(options=F32 + adapter))
    return place


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    server = start_process("--graphs_dir", str(place), timeout=230)
    yield server
    server.stop()


# A random model is chaotic: rounding tells two equal ones apart after a dozen tokens.
def text(server: Server, model: str) -> str:
    body = {"model": model, "prompt": "hello world", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    response = httpx.post(f"{server.v3}/completions", json=body, timeout=230)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def call(server: Server, what: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{what}_lora_adapter", json=body, timeout=230)


def models(server: Server) -> dict[str, str | None]:
    return {m["id"]: m.get("parent") for m in httpx.get(f"{server.v3}/models").json()["data"]}


def test_an_alias_is_loaded_by_its_first_request(server: Server) -> None:
    listed = {m["id"]: m for m in httpx.get(f"{server.v3}/models").json()["data"]}
    assert (listed["sql"]["state"], listed["sql"]["state_detail"]) == ("AVAILABLE", "unloaded")
    loaded = 'ovms_graph_loaded{name="sql"} '
    asked = {"model": "sql", "prompt": "hello world"}
    tokens = httpx.post(f"{server.url}/tokenize", json=asked).json()
    assert tokens == httpx.post(f"{server.url}/tokenize", json=asked | {"model": "base"}).json()
    assert f"{loaded}0" in httpx.get(f"{server.url}/metrics").text, "its base has the same tokenizer"
    assert text(server, "sql")
    assert f"{loaded}1" in httpx.get(f"{server.url}/metrics").text


def test_an_alias_is_the_merged_model(server: Server) -> None:
    assert models(server)["sql"] == "base"
    assert text(server, "sql") == text(server, "merged-sql")
    assert text(server, "sql") != text(server, "base")


def test_adapters_come_and_go_by_api(server: Server, place: Path) -> None:
    path = str(place / "loras/poem")  # with its own scaling of 2 / 4
    asked = {"lora_name": "poem", "lora_path": path}
    response = call(server, "load", **asked)
    assert response.status_code == 400, "three graphs could be meant"
    assert response.json()["error"]["param"] == "base_model_name"
    response = call(server, "load", **asked, base_model_name="base")
    assert response.status_code == 200, response.text
    assert models(server)["poem"] == "base"
    assert text(server, "poem") == text(server, "merged-poem")
    assert call(server, "load", **asked, base_model_name="base").status_code == 400
    assert call(server, "load", **asked, base_model_name="base", load_inplace=True).status_code == 200
    wrong = {"lora_name": "poem", "lora_path": str(place / "nowhere"), "base_model_name": "base"}
    assert call(server, "load", **wrong, load_inplace=True).status_code == 400
    assert text(server, "poem") == text(server, "merged-poem"), "the one before is still served"
    assert call(server, "unload", lora_name="poem").status_code == 200
    assert "poem" not in models(server)
    assert call(server, "unload", lora_name="poem").status_code == 404
    assert text(server, "base")


def test_what_cannot_be_an_adapter(server: Server, place: Path) -> None:
    assert call(server, "unload", lora_name="base").status_code == 404
    for name, path in (("base", "loras/sql"), ("x", "nowhere"), ("x", "base/openvino_model.bin")):
        response = call(server, "load", lora_name=name, lora_path=str(place / path), base_model_name="base")
        assert response.status_code == 400, response.text
        assert "x" not in models(server)
    lora.write_safetensors(place / "odd.safetensors", {"a.b.lora_A.weight": lora.np.zeros((1, 1), "f4")})
    response = call(
        server, "load", lora_name="x", lora_path=str(place / "odd.safetensors"), base_model_name="base"
    )
    assert response.status_code == 400, response.text
    assert "no layer" in response.text
    assert text(server, "base")


@pytest.mark.parametrize("kind", ["u8", "i8", "u4", "nf4", "f16"])
def test_weights_that_cannot_be_fused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "openvino_model.xml").write_text(f'<data element_type="{kind}" shape="1"/>')
    assert compressed(str(tmp_path)) is (kind != "f16")

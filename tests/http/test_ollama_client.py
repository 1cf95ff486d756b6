"""Ollama's unmodified Python client: the real model, and scripted tools, thoughts, failures and pulls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx
import ollama
import pydantic
import pytest

from tests.conftest import Server, start_process
from tests.http.conftest import Running, Scripted, running
from tests.pull import tiny_gguf
from tests.pull.hub_server import HubServer

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "num_predict": 24}
TEMPLATE = (
    "<tool_call></tool_call><think></think>{# reads enable_thinking #}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}"
    "{% for c in m.tool_calls or [] %} calls {{ c.id }} {{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
    "\n{% endfor %}{% if tools %}tools: {{ tools | tojson }}\n{% endif %}assistant:"
)
CALLS = (
    "Let me look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
SCRIPT = {
    "chat_template": TEMPLATE,
    "step_seconds": 0.001,
    "max_length": 400,
    "replies": [
        {"match": "mirror", "echo": True},
        {"match": "Oslo?", "text": CALLS},
        {"match": "ponder", "text": "<think>Well, well.</think>Done."},
        {"match": "raise", "text": "a b c d e f", "raise_in_step": 3},
        {"match": "long", "text": "word ", "repeat": 0},
        {"text": "all is well"},
    ],
}


def get_weather(city: str, days: int) -> str:
    """The weather in a city.

    Args:
      city: its name
      days: how many
    """
    return "sunny"


def now() -> str:
    """The time."""
    return "noon"


@pytest.fixture
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url) as made:
        yield made


def test_num_predict_0_is_no_limit(client: ollama.Client) -> None:
    """Ollama's runner compares only limits above 0."""
    whole = client.chat("smollm2", FRANCE, options={"temperature": 0, "num_predict": -1})
    answer = client.chat("smollm2", FRANCE, options={"temperature": 0, "num_predict": 0})
    assert answer.done_reason == "stop"
    assert answer.message.content == whole.message.content


@pytest.fixture
async def script(scripted: Scripted) -> AsyncIterator[Running]:
    async with scripted(json.dumps(SCRIPT)) as made:
        yield made


@pytest.fixture
async def over_script(script: Running) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=script.url) as made:
        yield made


# ---- the real model


def test_a_chat_whole_and_streamed(client: ollama.Client) -> None:
    whole = client.chat("smollm2", FRANCE, options=GREEDY)
    assert "Paris" in (whole.message.content or "")
    assert (whole.model, whole.done, whole.done_reason) == ("smollm2", True, "stop")
    assert whole.prompt_eval_count == 37
    assert (whole.eval_count or 0) > 3
    assert (whole.total_duration or 0) >= (whole.eval_duration or 0) > 0
    *pieces, last = client.chat("smollm2:latest", FRANCE, options=GREEDY, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * len(pieces)
    assert (last.done_reason, last.eval_count, last.model) == ("stop", whole.eval_count, "smollm2:latest")


def test_an_answer_that_fits_a_schema(client: ollama.Client) -> None:
    class City(pydantic.BaseModel):
        name: str
        big: bool

    answer = client.chat(
        "smollm2", FRANCE, format=City.model_json_schema(), options=GREEDY | {"num_predict": 60}
    )
    City.model_validate_json(answer.message.content or "")
    text = client.generate("smollm2", "Name a fruit.", format="json", options=GREEDY)
    assert (text.response or "").startswith("{")


def test_tools_are_answered_by_the_default_model(client: ollama.Client) -> None:
    """Its template has no place for them; the default graph gives them one."""
    answer = client.chat("smollm2", FRANCE, tools=[now], options=GREEDY)
    assert (answer.prompt_eval_count or 0) > 100
    assert answer.message.content or answer.message.tool_calls


def test_tools_as_clients_in_go_write_them(server: Server) -> None:
    """Their empty strings and lists are fields that were never set."""
    parameters = {"type": "", "required": None, "properties": None}
    function = {"name": "now", "description": "", "parameters": parameters}
    for type_ in ("", None):
        body = {"model": "smollm2", "messages": FRANCE, "stream": False, "options": {"num_predict": 1}}
        body["tools"] = [{"type": type_, "function": function}]
        answer = httpx.post(f"{server.url}/api/chat", json=body)
        assert (answer.status_code, answer.headers.get("x-ovserve-ignored-params")) == (200, None), (
            answer.text
        )


def test_generate_with_and_without_the_template(client: ollama.Client) -> None:
    asked = FRANCE[0]["content"]
    assert "Paris" in (client.generate("smollm2", asked, options=GREEDY).response or "")
    raw = client.generate("smollm2", "One, two, three,", raw=True, options=GREEDY | {"num_predict": 3})
    assert (raw.eval_count, raw.done_reason) == (3, "length")
    assert "four" in (raw.response or "")
    with pytest.raises(ollama.ResponseError, match="no tokens to fill in the middle"):
        client.generate("smollm2", "a", suffix="b")


def test_thinking_without_a_template_is_reported(server: Server) -> None:
    body = {"model": "smollm2", "prompt": "a", "raw": True, "think": True, "stream": False, "options": GREEDY}
    answer = httpx.post(f"{server.url}/api/generate", json=body)
    assert answer.headers["x-ovserve-ignored-params"] == "think"


def test_the_root_has_the_text_that_clients_look_for(server: Server) -> None:
    """Compared whole, as by Reins and by Home Assistant's integration, read on 2026-11-30."""
    for method, text in (("GET", "Ollama is running"), ("HEAD", "")):
        answer = httpx.request(method, server.url)
        assert (answer.status_code, answer.text) == (200, text)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"


def test_models_are_listed_and_shown(client: ollama.Client, server: Server) -> None:
    (listed,) = client.list().models
    assert listed.model == "smollm2:latest"
    assert 80_000_000 < (listed.size or 0) < 500_000_000
    assert listed.details is not None
    assert listed.details.family == "llama"
    (tag,) = httpx.get(f"{server.url}/api/tags").json()["models"]  # what newer clients choose models by
    assert tag["details"]["context_length"] == 8192
    assert {"completion", "tools"} <= {*tag["capabilities"]}
    shown = client.show("smollm2")
    assert shown.modelinfo == {"general.architecture": "llama", "llama.context_length": 8192}
    assert shown.capabilities is not None
    assert {"completion", "tools"} <= {*shown.capabilities}
    assert "{%" in (shown.template or "")
    (loaded,) = client.ps().models
    assert loaded.context_length == 8192
    assert (loaded.size or 0) > 100_000_000


def test_a_request_without_a_prompt_looks_the_model_up(client: ollama.Client) -> None:
    assert client.generate("smollm2").done_reason == "load"
    assert client.chat("smollm2", []).done_reason == "load"
    with pytest.raises(ollama.ResponseError, match="keep_alive: 0 would unload"):
        client.generate("smollm2", keep_alive=0)


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("chat", {"messages": [], "tools": [None]}, "tools[0]: expected"),
        ("chat", {"options": {"top_p": 7}}, "options.top_p: expected"),
        ("chat", {"stream": "no"}, "stream: expected"),
        ("generate", {"prompt": "", "context": [1]}, "context: send the conversation to /api/chat"),
        ("generate", {"template": "x"}, "template: templates are the graph's"),
    ],
)
def test_a_request_without_a_prompt_is_checked_like_others(
    path: str, fields: dict[str, Any], message: str, server: Server
) -> None:
    answer = httpx.post(f"{server.url}/api/{path}", json={"model": "smollm2"} | fields, timeout=230)
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    fine = httpx.post(f"{server.url}/api/{path}", json={"model": "smollm2", "keep_alive": "5m"}, timeout=230)
    assert fine.json()["done_reason"] == "load"
    assert fine.headers["x-ovserve-ignored-params"] == "keep_alive"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "gone", "messages": FRANCE}, 404, "model 'gone' not found"),
        ({"messages": FRANCE}, 400, "model: required"),
        ({"model": "smollm2", "messages": FRANCE, "options": {"top_p": 7}}, 400, "options.top_p: expected"),
        (
            {"model": "smollm2", "messages": FRANCE, "options": {"temperature": "hot"}},
            400,
            'options.temperature: expected `float`, got "hot"',
        ),
        (
            {"model": "smollm2", "messages": FRANCE, "options": {"num_predict": -3}},
            400,
            "options.num_predict",
        ),
        ({"model": "smollm2", "messages": FRANCE, "format": "yaml"}, 400, "format: expected"),
        ({"model": "smollm2", "messages": FRANCE, "format": {"type": 5}}, 400, "format"),
        ({"model": "smollm2", "messages": [{"role": "king"}]}, 400, "messages[0].role: expected one of"),
        ({"model": "smollm2", "messages": [{"role": "user", "images": ["eA=="]}]}, 400, "takes text only"),
        (
            {"model": "smollm2", "messages": FRANCE, "tools": [{"function": {}}]},
            400,
            "tools[0].function.name",
        ),
        ({"model": "smollm2", "messages": FRANCE, "top_logprobs": 21}, 400, "top_logprobs"),
        ({"model": "smollm2", "messages": 5}, 400, "messages: expected"),
    ],
)
def test_errors_are_told_as_ollama_tells_them(
    body: dict[str, Any], status: int, message: str, server: Server
) -> None:
    answer = httpx.post(f"{server.url}/api/chat", json=body, timeout=230)
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_what_has_no_effect_is_reported(server: Server) -> None:
    body = {
        "model": "smollm2",
        "messages": FRANCE,
        "options": {"num_gpu": 9, "num_predict": 1},
        "keep_alive": "5m",
    }
    answer = httpx.post(f"{server.url}/api/chat", json=body | {"unknown": 1}, timeout=230)
    assert answer.headers["x-ovserve-ignored-params"] == "keep_alive,options.num_gpu,unknown"
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert json.loads(answer.text.splitlines()[-1])["done"] is True


# ---- what the default model cannot show


async def test_calls_of_tools(over_script: ollama.AsyncClient) -> None:
    asked = [{"role": "user", "content": "Oslo?"}]
    whole = await over_script.chat("m", asked, tools=[get_weather, now])
    expected = [("get_weather", {"city": "Oslo", "days": 3}), ("now", {})]
    assert [(c.function.name, dict(c.function.arguments)) for c in whole.message.tool_calls or ()] == expected
    assert (whole.message.content or "").strip() == "Let me look."
    streamed = [
        (call.function.name, dict(call.function.arguments))
        async for piece in await over_script.chat("m", asked, tools=[get_weather, now], stream=True)
        for call in piece.message.tool_calls or ()
    ]
    assert streamed == expected
    # Answered in order, as clients do that know no ids.
    history = [*asked, whole.message, {"role": "tool", "content": "rain", "tool_name": "get_weather"}]
    told = await over_script.chat("m", [*history, {"role": "user", "content": "mirror"}])
    first, second, *_ = told.message.content.split("calls ")[1:]  # type: ignore[union-attr]
    assert first.startswith(f"{first.split()[0]} get_weather")
    assert f"tool: rain({first.split()[0]})" in second


async def test_thoughts_stand_apart(over_script: ollama.AsyncClient, script: Running) -> None:
    answer = await over_script.chat("m", [{"role": "user", "content": "ponder"}], think=True)
    assert (answer.message.thinking, answer.message.content) == ("Well, well.", "Done.")
    text = await over_script.generate("m", "ponder")
    assert (text.thinking, text.response) == ("Well, well.", "Done.")


async def test_an_error_within_a_stream_is_its_last_line(over_script: ollama.AsyncClient) -> None:
    stream = await over_script.chat("m", [{"role": "user", "content": "raise"}], stream=True)
    got = []

    async def read() -> None:
        async for piece in stream:
            got.append(piece.message.content)

    with pytest.raises(ollama.ResponseError, match="engine"):
        await read()
    assert "".join(got).split() == ["a", "b"]


async def test_the_context_is_never_cut_silently(over_script: ollama.AsyncClient) -> None:
    with pytest.raises(ollama.ResponseError, match="401|context|400 tokens"):
        await over_script.chat("m", [{"role": "user", "content": "word " * 500}])
    answer = await over_script.chat("m", [{"role": "user", "content": "long"}], options={"num_predict": -1})
    assert answer.done_reason == "length"


async def test_a_large_conversation_is_decoded_beside_the_loop(script: Running) -> None:
    """Its many values go to a body process; the answer says how long the prompt is."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 4000,
    }
    async with httpx.AsyncClient(base_url=script.url, timeout=230) as client:
        answer = await client.post("/api/chat", json=body | {"stream": False})
        assert answer.status_code == 400
        assert "400" in answer.json()["error"], answer.text
        half = {
            "model": "m",
            "messages": [{"role": "user", "content": "mirror"}],
            "options": {"x" * 9: [1] * 19000},
        }
        answer = await client.post("/api/chat", json=half | {"stream": False})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ovserve-ignored-params"] == "options.xxxxxxxxx"


# ---- embeddings, of any graph that has OpenAI's endpoint

EMBEDDER = """
import json
from ovserve.kinds.payload import HttpCalculator, HttpPayload, HttpResponse
from ovserve.graph import Context, Input, Output, calculator

class Decoder:
    name = "embeddings"
    def decode(self, body):
        return json.loads(body)

@calculator("LengthsCalculator")
class Lengths(HttpCalculator):
    endpoints = {"embeddings": Decoder()}
    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    reply = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse)

    def process(self, cc):
        asked = json.loads(cc[self.http].body)
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        rows = [{"index": i, "embedding": [len(t), asked.get("dimensions", 0)]} for i, t in enumerate(texts)]
        body = {"object": "list", "data": rows[::-1], "usage": {"prompt_tokens": 7}}
        cc.send(self.reply, HttpResponse(json.dumps(body).encode()))
"""
GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:in"
output_stream: "HTTP_RESPONSE_PAYLOAD:out"
node { name: "L" calculator: "LengthsCalculator" input_stream: "HTTP_REQUEST_PAYLOAD:in" output_stream: "HTTP_RESPONSE_PAYLOAD:out" }
"""


async def test_embeddings_are_translated(tmp_path: Path) -> None:
    (tmp_path / "graph.pbtxt").write_text(GRAPH)
    (tmp_path / "calculators.py").write_text(EMBEDDER)
    async with running(tmp_path) as made, AsyncExitStack() as stack:
        client = await stack.enter_async_context(ollama.AsyncClient(host=made.url))
        found = await client.embed("m:latest", ["one", "three"], dimensions=2)
        assert [list(row) for row in found.embeddings] == [[3.0, 2.0], [5.0, 2.0]]
        assert (found.model, found.prompt_eval_count) == ("m:latest", 7)
        assert list((await client.embeddings("m", "four")).embedding) == [4.0, 0.0]
        assert (await client.show("m")).capabilities == ["embedding"]
        # Without a text the model is only looked up, as chat and generate do it.
        for texts in ("", []):
            assert (await client.embed("m", texts)).embeddings == []
        for text in ("", None):
            assert (await client.embeddings("m", text)).embedding == []


def test_a_model_without_embeddings_says_so(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="'smollm2' makes no embeddings"):
        client.embed("smollm2", "x")


# ---- pull


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer()
    server.files["some/tiny"] = {"tiny.gguf": tiny_gguf.write(tmp_path / "tiny.gguf").read_bytes()}
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.stop()


async def test_a_model_is_pulled_and_served(hub: HubServer, script: Running, tmp_path: Path) -> None:
    server = start_process(
        "--model_path", str(tmp_path / "graph"), "--model_repository_path", str(tmp_path / "models")
    )
    with ExitStack() as stack:
        stack.callback(server.stop)
        client = stack.enter_context(ollama.Client(host=server.url))
        lines = list(client.pull("some/tiny", stream=True))
        size = len(hub.files["some/tiny"]["tiny.gguf"])
        assert (lines[-2].status, lines[-1].status) == ("loading some/tiny", "success")
        assert any((line.total, line.completed) == (size, size) for line in lines)
        assert client.generate("some/tiny", "a b", raw=True, options={"num_predict": 2}).eval_count
        assert client.pull("some/tiny").status == "success"
        with pytest.raises(ollama.ResponseError, match="the hub has no model"):
            client.pull("some/other")
        with pytest.raises(ollama.ResponseError, match="expected one of smollm2"):
            client.pull("/etc")

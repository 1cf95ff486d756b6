"""chat_template_path and generic_tool_prompt of a graph, loaded and served (scripted engine)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.llm.model import ModelContext
from ovserve.sandbox.templates import Templates
from tests.conftest import script_graph
from tests.http.conftest import Running, running

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "return_token_strs": True}


def graph(directory: Path, options: str) -> Path:
    path = script_graph(directory, json.dumps({"chat_template": "{{ messages[0].content }}"})) / "graph.pbtxt"
    path.write_text(path.read_text().replace("models_path:", f"{options} models_path:"))
    return path.parent


def context(server: Running) -> ModelContext:
    (found,) = server.manager.get("m").contexts
    return found


async def prompt(server: Running, **more: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url) as http:
        return await http.post("/v3/tokenize", json=ASK | more)


async def test_a_file_replaces_the_model_s_template(tmp_path: Path) -> None:
    directory = graph(tmp_path / "g", 'chat_template_path: "own.jinja"')
    (directory / "own.jinja").write_text("mine: <tool_call> {{ tools | tojson if tools }} </tool_call>")
    async with running(directory) as server:
        assert context(server).template is not None
        assert context(server).template.source.startswith("mine:")  # type: ignore[union-attr]
        assert (context(server).parsers.tool, context(server).parsers.tool_from) == ("hermes3", "template")
        answer = (await prompt(server, tools=[TOOL])).json()
        assert answer["count"] > 3
        async with httpx.AsyncClient(base_url=server.url) as http:
            (told,) = (await http.get("/v3/capabilities")).json()["data"]
        assert told["tool_prompt"] == "template"


async def test_tools_without_a_place_are_refused_or_told(tmp_path: Path) -> None:
    async with running(graph(tmp_path / "plain", "")) as server:
        refused = await prompt(server, tools=[TOOL])
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "tools"
        assert "generic_tool_prompt" in refused.json()["error"]["message"]
        assert context(server).lacks_tools is not None
    async with running(graph(tmp_path / "told", "generic_tool_prompt: true")) as server:
        with_tools, without = await prompt(server, tools=[TOOL]), await prompt(server)
        assert with_tools.json()["count"] > without.json()["count"] + 20
        assert context(server).lacks_tools is None
        assert context(server).parsers.tool == "hermes3"
        async with httpx.AsyncClient(base_url=server.url) as http:
            (told,) = (await http.get("/v3/capabilities")).json()["data"]
        assert (told["tool_prompt"], told["tool_parser"]) == ("generic", "hermes3")


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
REPLIES = [{"match": "<tool_response>\n12 C", "text": "Sunny."}, {"match": "<tools>", "text": CALL}]
FLAT = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
USER = {"role": "user", "content": "How is the weather in Oslo?"}


async def test_told_tools_are_called_and_answered_in_every_dialect(tmp_path: Path) -> None:
    path = script_graph(tmp_path / "g", json.dumps({"replies": REPLIES})) / "graph.pbtxt"
    path.write_text(path.read_text().replace("models_path:", "generic_tool_prompt: true models_path:"))
    async with running(path.parent) as server, httpx.AsyncClient(base_url=server.url) as http:

        async def ask(endpoint: str, **body: object) -> Any:
            answer = await http.post(endpoint, json={"model": "m"} | body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        messages: list[Any] = [USER]
        first = (await ask("/v3/chat/completions", messages=messages, tools=[TOOL]))["choices"][0]
        assert first["finish_reason"] == "tool_calls"
        (call,) = first["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
        messages += [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "12 C"}]
        last = (await ask("/v3/chat/completions", messages=messages, tools=[TOOL]))["choices"][0]
        assert (last["message"]["content"], last["finish_reason"]) == ("Sunny.", "stop")

        called = (await ask("/v3/responses", input=[USER], tools=[FLAT], store=False))["output"][0]
        assert (called["type"], called["name"]) == ("function_call", "weather")
        output = {"type": "function_call_output", "call_id": called["call_id"], "output": "12 C"}
        answer = await ask("/v3/responses", input=[USER, called, output], tools=[FLAT], store=False)
        assert answer["output"][0]["content"][0]["text"] == "Sunny."

        body: dict[str, Any] = {
            "max_tokens": 50,
            "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
        }
        used = (await ask("/v3/messages", messages=[USER], **body))["content"][0]
        assert (used["type"], used["name"], used["input"]) == ("tool_use", "weather", {"city": "Oslo"})
        result = {"type": "tool_result", "tool_use_id": used["id"], "content": "12 C"}
        turns = [USER, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
        assert (await ask("/v3/messages", messages=turns, **body))["content"][0]["text"] == "Sunny."


async def test_a_stream_goes_on_while_a_template_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Templates.__init__.__kwdefaults__, "seconds", 2.0)
    stall = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    script = {
        "chat_template": "{{ messages[0].content }}{% if go %}" + stall + "{% endif %}",
        "replies": [{"text": "word ", "repeat": 0, "step_seconds": 0.01}],
    }
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4000, "stream": True}
    async with (
        running(script_graph(tmp_path / "g", json.dumps(script))) as server,
        httpx.AsyncClient(base_url=server.url, timeout=230) as http,
        http.stream("POST", "/v3/chat/completions", json=body) as stream,
    ):
        pieces = stream.aiter_bytes()
        await anext(pieces)
        hanging = body | {"stream": False, "chat_template_kwargs": {"go": True}}
        sent = http.build_request("POST", "/v3/chat/completions", json=hanging)
        async with asyncio.TaskGroup() as group:
            refusal = group.create_task(http.send(sent))
            seen = 0
            while not refusal.done():
                await anext(pieces)
                seen += 1
        assert seen > 20, "the stream went on meanwhile"
        assert refusal.result().status_code == 400
        assert "did not finish within 2 s" in refusal.result().json()["error"]["message"]

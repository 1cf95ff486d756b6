"""A grammar beside drafted tokens is refused with a reason, whoever asks for it; tests/engine/test_assisted.py
and tests/engine/test_genai_grammar.py show why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import script_graph
from tests.rest.conftest import running

TOOL = {"type": "function", "function": {"name": "now"}}
FLAT = {"type": "function", "name": "now"}
LOOKUP = """plugin_config: '{"prompt_lookup": true}'"""
USER = [{"role": "user", "content": "hi"}]
ASKED: list[tuple[str, dict[str, Any], str]] = [
    ("/v3/completions", {"prompt": "hi", "guided_regex": "a"}, "guided_regex"),
    ("/v3/chat/completions", {"messages": USER, "response_format": {"type": "json_object"}}, "response_format"),
    ("/v3/chat/completions", {"messages": USER, "tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ("/v3/responses", {"input": "hi", "text": {"format": {"type": "json_object"}}}, "text.format"),
    ("/v3/responses", {"input": "hi", "tools": [FLAT], "tool_choice": "required"}, "tool_choice"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_is_refused_where_tokens_are_drafted(tmp_path: Path, stream: bool) -> None:
    template = "{# <tool_call></tool_call> #}{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}"
    script = {"chat_template": template, "replies": [{"text": "x"}]}
    graph = script_graph(tmp_path / "graph", json.dumps(script))
    text = (graph / "graph.pbtxt").read_text()
    (graph / "graph.pbtxt").write_text(text.replace("models_path:", LOOKUP + " models_path:"))
    async with running(graph) as server, httpx.AsyncClient(base_url=server.url) as http:
        for path, body, param in ASKED:
            answer = await http.post(path, json={"model": "m", "stream": stream, **body})
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert (error["param"], error["type"]) == (param, "invalid_request_error")
            assert "prompt lookup" in error["message"]
        plain = await http.post("/v3/completions", json={"model": "m", "prompt": "hi"})
        assert plain.status_code == 200

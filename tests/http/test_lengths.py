"""A prompt that does not fit: the tokens of each part and what would fit, in both forms of a graph.

The scripted engine counts words, so the numbers are exact; the default template adds "role:" words.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT, eventually
from tests.http.conftest import Scripted, running

SCRIPT = json.dumps({"max_length": 20, "replies": [{"text": "fine"}]})


def words(count: int) -> str:
    return " ".join(["w"] * count)


def turn(role: str, count: int) -> dict[str, str]:
    return {"role": role, "content": words(count)}


async def ask(client: httpx.AsyncClient, messages: list[Any], **more: Any) -> httpx.Response:
    return await client.post("/v3/chat/completions", json={"model": "m", "messages": messages, **more})


@pytest.mark.parametrize("stream", [True, False])
async def test_every_part_has_its_number(scripted: Scripted, stream: bool) -> None:
    messages = [turn("system", 3), turn("user", 4), turn("assistant", 5), turn("user", 6)]
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        answer = await ask(client, messages, stream=stream)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert error["details"] == {
            "max_length": 20,
            "prompt_tokens": 23,
            "parts": {"system": 3, "history": 9, "last message": 6, "template": 5},
            "would_fit": {"history": 5, "last message": 2},
        }
        assert "The prompt has 23 tokens: shorten it by at least 4." in error["message"]
        assert "By part: system 3, history 9, last message 6, template 5." in error["message"]
        assert "It would fit with at most 5 of history, or at most 2 of last message." in error["message"]
        # And it does.
        messages[1:3] = [turn("user", 2), turn("assistant", 3)]
        assert (await ask(client, messages, max_tokens=1)).status_code == 200


async def test_no_part_alone_is_enough(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        answer = await ask(client, [turn("system", 30), turn("user", 30)])
        error = answer.json()["error"]
        assert error["details"]["would_fit"] == {}
        assert "No part alone can be cut enough: together they must lose 44." in error["message"]


async def test_turns_that_look_alike_are_counted_each(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        answer = await ask(client, [turn("user", 5)] * 4)
        assert answer.json()["error"]["details"]["parts"] == {
            "system": 0,
            "history": 15,
            "last message": 5,
            "template": 5,
        }


async def test_a_bare_prompt_has_no_parts(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        answer = await client.post("/v3/completions", json={"model": "m", "prompt": words(30)})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "30 tokens" in error["message"]
        assert "details" not in error


async def test_the_one_node_graph_says_the_same(tmp_path: Path) -> None:
    text = (ROOT / "graphs/single_node/graph.pbtxt").read_text()
    (tmp_path / "model.script.json").write_text(SCRIPT)
    (tmp_path / "graph.pbtxt").write_text(
        re.sub(r'models_path: "[^"]*"', 'models_path: "model.script.json"', text)
    )
    async with running(tmp_path) as server, httpx.AsyncClient(base_url=server.url) as client:
        error = (await ask(client, [turn("user", 30)])).json()["error"]
        assert error["details"]["parts"] == {"system": 0, "history": 0, "last message": 30, "template": 2}


async def test_an_engine_that_dies_while_it_counts(scripted: Scripted) -> None:
    """The refusal is true without the numbers."""
    script = json.dumps({"max_length": 20, "tokenize_seconds": 4})
    async with scripted(script) as server, httpx.AsyncClient(base_url=server.url, timeout=230) as client:
        asked = asyncio.create_task(ask(client, [turn("user", 30)]))
        await eventually(lambda: len(server.engine._pending) == 1)
        os.kill(server.engine.pid, signal.SIGKILL)
        answer = await asked
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert "details" not in answer.json()["error"]

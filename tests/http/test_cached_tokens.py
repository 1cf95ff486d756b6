"""How much of a prompt the prefix cache had, in every dialect's usage and in the metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import start_server
from tests.http.conftest import Scripted

SCRIPT = json.dumps({"replies": [{"match": "again", "text": "Hi.", "cached_tokens": 3}, {"text": "Hi."}]})
CHAT = [{"role": "user", "content": "say it again and again"}]


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await client.post(path, json={"model": "m", **body})
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return answer.json()


def family(metrics: str, name: str) -> float:
    [line] = [line for line in metrics.splitlines() if line.startswith(name + "{")]
    return float(line.rpartition(" ")[2])


async def test_every_dialect_tells_it(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        chat = (await post(client, "/v3/chat/completions", messages=CHAT))["usage"]
        assert chat["prompt_tokens_details"] == {"cached_tokens": 3}
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last = await post(client, "/v3/chat/completions", messages=CHAT, **options)
        assert last["usage"] == chat
        text = (await post(client, "/v3/completions", prompt="again and"))["usage"]
        assert (text["prompt_tokens"], text["prompt_tokens_details"]["cached_tokens"]) == (2, 3)
        response = (await post(client, "/v3/responses", input="again"))["usage"]
        assert response["input_tokens_details"]["cached_tokens"] == 3
        message = (await post(client, "/v1/messages", messages=CHAT, max_tokens=5))["usage"]
        assert message["cache_read_input_tokens"] == 3
        assert message["input_tokens"] == chat["prompt_tokens"] - 3  # Anthropic's is without
        events = await post(client, "/v1/messages", messages=CHAT, max_tokens=5, stream=True)
        start, delta = events[0]["message"]["usage"], events[-2]["usage"]
        for usage in (start, delta):
            assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (3, 0)


async def test_ollama_s_counts_tell_it(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        known = await post(client, "/api/chat", messages=CHAT, stream=False)
        assert (known["prompt_eval_count"], known["prompt_eval_cached_count"]) == (7, 3)
        lines = await client.post("/api/generate", json={"model": "m", "prompt": "again"})
        assert json.loads(lines.text.splitlines()[-1])["prompt_eval_cached_count"] == 3
        assert "prompt_eval_cached_count" not in await post(client, "/api/generate", prompt="b", stream=False)


async def test_what_is_not_known_is_left_out_or_0(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        other = [{"role": "user", "content": "once"}]
        assert (
            "prompt_tokens_details"
            not in (await post(client, "/v3/chat/completions", messages=other))["usage"]
        )
        message = (await post(client, "/v1/messages", messages=other, max_tokens=5))["usage"]
        # Strict clients require these two, though Anthropic's own reads them as optional.
        assert (message["cache_creation_input_tokens"], message["cache_read_input_tokens"]) == (0, 0)
        response = (await post(client, "/v3/responses", input="once"))["usage"]
        assert response["input_tokens_details"]["cached_tokens"] == 0
        assert family((await client.get("/metrics")).text, "ovserve_prefix_cache_queries_total") == 0


async def test_prompts_add_up_and_choices_are_counted_one_by_one(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        prompts = ["again one two three", "again four five six"]
        usage = (await post(client, "/v3/completions", prompt=prompts, n=2))["usage"]
        assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (8, 6)
        metrics = (await client.get("/metrics")).text
        for name in ("ovserve_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"):
            assert family(metrics, name) == 16
        for name in ("ovserve_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"):
            assert family(metrics, name) == 12


def test_the_same_prompt_twice_on_the_real_engine(short_graph: Path) -> None:
    server = start_server(short_graph)
    try:
        story = " ".join(f"Item {i} of the list is number {i * 7}." for i in range(40))
        body = {"model": "smollm2", "max_tokens": 4, "messages": [{"role": "user", "content": story}]}
        first, second = (
            httpx.post(f"{server.v3}/chat/completions", json=body, timeout=230).json()["usage"] for _ in "ab"
        )
        metrics = httpx.get(f"{server.url}/metrics").text
    finally:
        server.stop()
    tokens = first["prompt_tokens"]
    before_all = first["prompt_tokens_details"]["cached_tokens"]
    assert before_all <= 1  # the engine begins with a prompt of its own, of one token
    assert second["prompt_tokens_details"]["cached_tokens"] == tokens // 32 * 32
    assert family(metrics, "vllm:prefix_cache_queries_total") == 2 * tokens
    assert family(metrics, "vllm:prefix_cache_hits_total") == tokens // 32 * 32 + before_all

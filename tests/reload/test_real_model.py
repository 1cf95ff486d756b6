"""A reload with the real engine: what only the graph knows costs no model load, what the engine must know one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from tests.conftest import graph_of, start_process

pytestmark = pytest.mark.long

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "Count from one to twenty."}],
    "temperature": 0,
    "max_tokens": 16,
    "stream": True,
}
ENGINE = "ovserve.engine.worker.main"


async def streamed(client: httpx.AsyncClient, *, reloading: bool = False) -> str:
    """A whole answer; with `reloading`, a reload comes into force after its first event."""
    async with client.stream("POST", "/v3/chat/completions", json=BODY) as answer:
        lines = answer.aiter_lines()
        got = [await anext(lines)]
        if reloading:
            assert (await client.post("/v1/config/reload")).status_code == 201
        got += [line async for line in lines]
    assert got[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(line[6:])["choices"] for line in got if line.startswith('data: {"id"')]
    return "".join(choice[0]["delta"].get("content") or "" for choice in deltas if choice)


async def test_graph_options_keep_the_engine_and_engine_options_replace_it(
    short_model: Path, tmp_path: Path
) -> None:
    graph = graph_of(tmp_path / "m", short_model) / "graph.pbtxt"
    text = graph.read_text()

    def write(more: str) -> None:
        graph.write_text(text.replace("models_path:", f"{more} models_path:"))

    write("")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_config_list": [], "mediapipe_config_list": [{"name": "m"}]})
    )
    flags = ("--config_path", str(tmp_path / "config.json"), "--file_system_poll_wait_seconds", "0")
    server = await asyncio.to_thread(start_process, *flags)
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=230) as client:
            engine = server.engine_pid()
            assert (expected := await streamed(client))
            for more, same in (("max_tokens_limit: 64", True), ("max_num_seqs: 7", False)):
                write(more)
                assert await streamed(client, reloading=True) == expected
                assert await streamed(client) == expected
                for _ in range(3000):
                    if len(server.children(ENGINE)) == 1:
                        break
                    await asyncio.sleep(0.02)
                assert (server.engine_pid() == engine) is same
            assert (await client.post("/v1/config/reload")).status_code == 200
    finally:
        assert await asyncio.to_thread(server.stop) == 0

"""Prefixes on the real engine: they are found after the graph was unloaded, and after the server was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Server, graph_of, script_graph, start_process, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # 20 s on a quiet machine

FLAGS = ("--max_loaded_groups", "1", "--group_residence_seconds", "0.1")
STORY = " ".join(f"On day {i} the dragon ate {i * 3} apples." for i in range(60))


def ask(server: Server, question: str) -> tuple[str, int, int]:
    """Return the answer, how many tokens the prompt had, and how many of them were cached."""
    messages = [{"role": "system", "content": STORY}, {"role": "user", "content": question}]
    body: dict[str, Any] = {"model": "smollm2", "max_tokens": 12, "temperature": 0, "messages": messages}
    answer = httpx.post(f"{server.v3}/chat/completions", json=body, timeout=200)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    text = answer.json()["choices"][0]["message"]["content"]
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_prefixes_are_found_after_an_unload_and_a_kill(tmp_path: Path, short_model: Path) -> None:
    graphs, kept = tmp_path / "graphs", tmp_path / "graphs/smollm2/kept"
    script_graph(graphs / "other", "{}")
    graph = graph_of(graphs / "smollm2", short_model) / "graph.pbtxt"
    graph.write_text(graph.read_text().replace("models_path:", 'prefix_cache_path: "kept" models_path:'))

    def start() -> Server:
        return start_process("--graphs_dir", str(graphs), *FLAGS, timeout=300)

    server = start()
    try:
        assert ask(server, "What did the dragon eat?")[2] == 0
        right, tokens, cached = ask(server, "What did the dragon drink?")
        assert cached > tokens - 64
        [file] = kept.glob("*.kv")
        until(lambda: file.stat().st_size >= cached * 1500)  # 3 KB for each token
        body = {"model": "other", "messages": [{"role": "user", "content": "hello"}]}
        assert httpx.post(f"{server.v3}/chat/completions", json=body, timeout=200).status_code == 200
        assert ask(server, "What did the dragon drink?") == (right, tokens, cached)
        server.process.kill()
        server.process.wait()
    finally:
        server.stop()
    server = start()
    try:
        assert ask(server, "What did the dragon drink?") == (right, tokens, cached)
    finally:
        server.stop()

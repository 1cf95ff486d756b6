"""Shared prefixes on the real engine: they are in its cache again after it was unloaded and woken."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT, Server, script_graph, start_process

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # 20 s on a quiet machine

FLAGS = ("--max_loaded_groups", "1", "--group_residence_seconds", "0.1", "--warm_prefix_tokens", "2000")
TAIL = 10  # tokens of a prompt after its system message, and one more
ITEMS = " ".join(f"Item {i} of the list is number {i * 7}." for i in range(30))
STORY = " ".join(f"On day {i} the dragon ate {i * 3} apples." for i in range(30))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    graphs = tmp_path_factory.mktemp("graphs")
    script_graph(graphs / "other", "{}")
    graph = graphs / "smollm2"
    graph.mkdir()
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    text = re.sub(r"max_num_batched_tokens: \d+", "max_num_batched_tokens: 128", text)
    (graph / "graph.pbtxt").write_text(re.sub(r'models_path: "[^"]*"', f'models_path: "{model}"', text))
    server = start_process("--graphs_dir", str(graphs), *FLAGS, timeout=300)
    yield server
    server.stop()


def ask(server: Server, system: str, question: str) -> tuple[int, int]:
    """Return how many tokens the prompt had, and how many of them were cached."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body: dict[str, Any] = {"model": "smollm2", "max_tokens": 2, "temperature": 0, "messages": messages}
    answer = httpx.post(f"{server.v3}/chat/completions", json=body, timeout=200)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def computed(server: Server) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    [value] = re.findall(r'^ovserve_warm_prefix_tokens_total{name="smollm2"[^}]*} (\S+)$', text, re.MULTILINE)
    return float(value)


def test_the_first_requests_after_a_wake_find_their_prefixes(server: Server) -> None:
    """The cache of this graph grows, so the prefixes need room beside each other and the waking request."""
    sizes = [ask(server, system, "one")[0] for system in (ITEMS, STORY)]
    for system in (ITEMS, STORY):
        ask(server, system, "two")
    body = {"model": "other", "messages": [{"role": "user", "content": "hello"}]}
    assert httpx.post(f"{server.v3}/chat/completions", json=body, timeout=200).status_code == 200
    waking, cached = ask(server, "Be short.", "hello and good morning, " * 4)
    assert cached <= 1
    wanted = sum((size - TAIL) // 32 * 32 for size in sizes)
    deadline = time.monotonic() + 200
    while computed(server) < wanted:
        assert time.monotonic() < deadline, f"{computed(server)} tokens of {wanted}"
        time.sleep(0.05)
    assert ask(server, "Be short.", "hello and good morning, " * 4)[1] >= waking // 32 * 32
    for system in (ITEMS, STORY):
        tokens, cached = ask(server, system, "three")
        assert cached >= tokens - 64
    assert computed(server) == wanted

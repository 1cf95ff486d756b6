"""Clients of the server through Ray Serve: OpenAI's, a slow reader, a large upload; one replica of five graphs."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.conftest import MODEL, ROOT, script_graph, until
from tests.deploy.ray.conftest import Ray, plan_for, script
from tests.deploy.ray.load import DONE, ask
from tests.encoders import graph, tiny
from tests.http.test_openai_client import (  # noqa: F401  the same tests, with the fixture `server` below
    client,
    test_a_prompt_longer_than_the_model_is_refused_with_numbers,
    test_a_real_answer,
    test_completions,
    test_errors_are_the_client_s_own_types,
    test_max_tokens_counts_tokens,
    test_one_fingerprint_of_whole_answers_and_streams,
    test_stop_cuts_at_the_character,
    test_the_async_client_many_at_once,
    test_the_bytes_of_a_stream,
    test_the_client_s_request_id_comes_back,
    test_the_stream_is_the_answer_in_pieces,
    test_usage_comes_in_a_last_chunk_when_asked,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{# <tool_call></tool_call> #}assistant:"
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>'
FLOOD, PIECE = 500, "x" * 2000  # words of an answer, and one of them
UPLOAD = 10_000  # texts


@pytest.fixture(scope="module")
def server(ray: Ray, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """One replica, whose greedy answers are equal, in the form that tests of the server itself expect."""
    place = tmp_path_factory.mktemp("graphs")
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    (place / "smollm2").mkdir()
    (place / "smollm2/graph.pbtxt").write_text(
        text.replace('models_path: "../../models/smollm2"', f'models_path: "{MODEL.parent}"')
    )
    script_graph(place / "tools", json.dumps({"chat_template": TEMPLATE, "replies": [{"text": CALL}]}))
    script_graph(place / "flood", script(0.001, " ".join([PIECE] * FLOOD)))
    script_graph(place / "words", script(0.005, "a b c d"))
    tiny("mpnet", place / "vectors")
    options = ("pooling: MEAN", "truncate: true", 'plugin_config: \'{"INFERENCE_PRECISION_HINT": "f32"}\'')
    (place / "vectors/graph.pbtxt").write_text(graph("./", *options))
    ray.deploy(plan_for(place, max_num_seqs=8))
    until(lambda: ray.replicas() == 1)
    until(lambda: httpx.get(f"{ray.url}/v2/health/ready").status_code == 200)
    yield SimpleNamespace(url=ray.url, v3=f"{ray.url}/v3", port=ray.port)
    ray.delete()
    until(lambda: not ray.servers())


def test_tool_calls_whole_and_streamed(client: Any) -> None:  # noqa: F811
    weather = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": weather}}]
    asked = {"model": "tools", "messages": [{"role": "user", "content": "Oslo?"}], "tools": tools}
    (choice,) = client.chat.completions.create(**asked).choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Oslo", "days": 3},
    )
    arguments = ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            arguments += part.function.arguments or ""
    assert json.loads(arguments) == {"city": "Oslo", "days": 3}


def test_an_upload_of_more_than_a_megabyte_is_answered_in_order(client: Any) -> None:  # noqa: F811
    first = ("ship", "harbour", "oil", "prices", "rose", "left", "the")
    texts = [f"{first[i % 7]} " + "the ship left the harbour " * 4 for i in range(UPLOAD)]
    assert len(json.dumps(texts)) > 1 << 20
    made = [one.embedding for one in client.embeddings.create(model="vectors", input=texts).data]
    alone = [one.embedding for one in client.embeddings.create(model="vectors", input=texts[:7]).data]
    assert len(made) == UPLOAD
    for at in (0, 1, 6, 7, UPLOAD // 2, UPLOAD - 1):
        assert made[at] == pytest.approx(alone[at % 7], abs=1e-4)
    assert alone[0] != pytest.approx(alone[1], abs=1e-3), "the texts have different vectors"


def test_a_slow_reader_gets_all_of_its_answer_and_delays_no_other(server: SimpleNamespace) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.sock = socket.socket()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    connection.sock.settimeout(60)
    connection.sock.connect(("127.0.0.1", server.port))
    body = {"model": "flood", "messages": [{"role": "user", "content": "go"}], "stream": True}
    connection.request("POST", "/v3/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200
    got = bytearray()
    others = []
    with httpx.Client(timeout=230) as beside:
        while piece := answer.read1(8192):
            got += piece
            time.sleep(0.02)
            if len(got) // (100 << 10) > len(others):  # one for each 100 KB
                others.append(ask(beside, server.url, {}))
    connection.close()
    lines = [line for line in got.decode().splitlines() if line.startswith("data: ")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]"
    assert "".join(deltas).split() == [PIECE] * FLOOD
    assert len(others) >= 9
    assert {one.how for one in others} == {DONE}
    assert max(one.ended - one.began for one in others) < 10

"""A new kind of engine from outside: five files, nothing changed in the server. It is served by the real command.

The kind lives in tests/toy_kind and is found by its entry point.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ovserve.engine.client.calls import CallClient
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.protocol.blobs import INLINE_BYTES
from tests.conftest import ROOT, Server, start_process, start_server, until

TOY = ROOT / "tests/toy_kind"
GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:request"
output_stream: "HTTP_RESPONSE_PAYLOAD:response"
node {
  name: "Countdown"
  calculator: "CountdownCalculator"
  input_side_packet: "COUNTDOWN:countdown"
  input_stream: "HTTP_REQUEST_PAYLOAD:request"
  input_stream: "LOOPBACK:loopback"
  output_stream: "HTTP_RESPONSE_PAYLOAD:response"
  output_stream: "LOOPBACK:loopback"
  input_stream_info { tag_index: "LOOPBACK" back_edge: true }
  input_stream_handler {
    input_stream_handler: "SyncSetInputStreamHandler"
    options { [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "LOOPBACK:0" } } }
  }
  node_options {
    [type.googleapis.com/google.protobuf.Struct] {
      fields { key: "models_path" value { string_value: "zero.txt" } }
      fields { key: "step_seconds" value { number_value: SECONDS } }
    }
  }
}
"""


def write_graph(directory: Path, zero: str = "lift-off", seconds: float = 0.0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "zero.txt").write_text(zero)
    (directory / "graph.pbtxt").write_text(GRAPH.replace("SECONDS", str(seconds)))
    return directory


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """The package on the path of every process, as an installed one would be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TOY), os.environ.get("PYTHONPATH", "")]))
        patch.syspath_prepend(str(TOY))
        yield


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Server]:
    server = start_server(write_graph(tmp_path / "toy", seconds=0.02), "--metrics_enable", name="toy")
    yield server
    server.stop()


def count(server: Server, start: int, **more: object) -> httpx.Response:
    body = {"model": "toy", "start": start, **more}
    return httpx.post(f"{server.v3}/toy/count", json=body, timeout=230)


def test_the_kind_has_at_most_five_files() -> None:
    written = [p for p in TOY.rglob("*") if p.is_file() and p.stat().st_size and "dist-info" not in str(p)]
    assert len([p for p in written if p.suffix in (".py", ".md")]) <= 5


def test_it_answers_whole_and_streamed(toy: Server) -> None:
    assert count(toy, 3).json() == {"texts": ["3", "2", "1", "lift-off"]}
    with httpx.stream(
        "POST", f"{toy.v3}/toy/count", json={"model": "toy", "start": 3, "stream": True}
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert [json.loads(e)["text"] for e in events[:-1]] == ["3", "2", "1", "lift-off"]
    assert events[-1] == "[DONE]"


def test_what_is_wrong_with_a_request_is_said(toy: Server) -> None:
    wrong = count(toy, -1)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "start")
    failed = count(toy, 13)
    assert failed.status_code == 500
    assert count(toy, 1).status_code == 200, "a fault of one call is no fault of the engine"
    other = httpx.post(f"{toy.v3}/chat/completions", json={"model": "toy", "messages": []})
    assert other.status_code == 404
    assert "it has toy/count" in other.json()["error"]["message"]
    assert httpx.get(f"{toy.v3}/toy/count").status_code == 404
    assert httpx.post(f"{toy.v3}/toy/other", json={"model": "toy"}).status_code == 404


def test_a_client_that_leaves_ends_its_call(toy: Server) -> None:
    with httpx.stream(
        "POST", f"{toy.v3}/toy/count", json={"model": "toy", "start": 100_000, "stream": True}
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert running(toy) == 1
    until(lambda: not running(toy), "the call goes on without its client")
    # Both places of the engine are free again, or these would wait for 2,000 s.
    assert [count(toy, 2).status_code for _ in range(3)] == [200, 200, 200]


def running(server: Server) -> float:
    """Calls in the engine, as the metrics say."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    (found,) = (line for line in lines if line.startswith('ovserve_requests_running{name="toy"'))
    return float(found.rpartition(" ")[2])


def test_an_engine_that_is_killed_is_replaced(toy: Server) -> None:
    before = toy.engine_pid()
    with httpx.stream(
        "POST", f"{toy.v3}/toy/count", json={"model": "toy", "start": 1000, "stream": True}, timeout=30
    ) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        os.kill(before, signal.SIGKILL)
        rest = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event for event in rest if "error" in event] == rest[-1:], "one error, at the end"
    assert count(toy, 2).json()["texts"] == ["2", "1", "lift-off"]
    assert toy.engine_pid() != before


def test_it_is_seen_in_metrics_and_capabilities(toy: Server) -> None:
    count(toy, 3)
    metrics = httpx.get(f"{toy.url}/metrics").text
    assert 'ovserve_engines{name="toy",kind="countdown"} 1' in metrics.replace(" 1.0", " 1"), metrics
    (model,) = httpx.get(f"{toy.v3}/capabilities").json()["data"]
    assert model["engines"] == [
        {"kind": "countdown", "side_packet": "countdown", "facts": {"zero": "lift-off"}}
    ]
    assert [e["endpoint"] for e in model["endpoints"]] == ["toy/count"]


def test_a_reload_changes_it_and_loses_nothing(tmp_path: Path) -> None:
    directory = write_graph(tmp_path / "graphs/toy", "one", seconds=0.05)
    server = start_process("--graphs_dir", str(tmp_path / "graphs"))
    try:
        with httpx.stream(
            "POST", f"{server.v3}/toy/count", json={"model": "toy", "start": 20, "stream": True}, timeout=30
        ) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            write_graph(directory, "two", seconds=0.0)
            assert httpx.post(f"{server.url}/v1/config/reload", timeout=230).status_code == 201
            assert count(server, 1).json()["texts"] == ["1", "two"]
            *_, last, done = lines
            assert json.loads(last.removeprefix("data: "))["text"] == "one", "begun by the version before"
            assert done == "data: [DONE]"
        (directory / "graph.pbtxt").write_text(GRAPH.replace("zero.txt", "none.txt").replace("SECONDS", "0"))
        failed = httpx.post(f"{server.url}/v1/config/reload", timeout=230)
        assert failed.status_code >= 400
        assert "none.txt does not exist" in failed.text
        assert count(server, 1).json()["texts"] == ["1", "two"], "the version before is still served"
    finally:
        server.stop()


async def test_large_values_cross_in_shared_memory_and_leave_nothing_there(tmp_path: Path) -> None:
    from toy_kind.spec import CountdownSpec

    zero = tmp_path / "zero.txt"
    zero.write_text("none")
    client = await CallClient.start(
        CountdownSpec(str(zero)), EngineSettings(restarts=RestartPolicy(first_pause=0.01))
    )
    try:
        assert client._process is not None
        segments = client._process.segments
        sizes = (0, 10, INLINE_BYTES, INLINE_BYTES + 1, 5_000_000)
        blobs = [os.urandom(size) for size in sizes]
        stream = await client.call("reverse", None, blobs)
        item = await stream.next()
        assert item is not None
        assert item.decode() == len(blobs)
        assert [bytes(blob) for blob in item.blobs] == [blob[::-1] for blob in blobs]
        assert await stream.next() is None
        left = await client.call("reverse", None, blobs)
        left.cancel()
        again = await client.call("count", 0)
        assert (await again.next()) is not None
    finally:
        await client.stop()
    assert not list(segments._directory.glob(segments.stem + "*"))

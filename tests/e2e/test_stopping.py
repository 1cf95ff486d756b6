"""How the server process ends: what it answers meanwhile, what a second signal does, what is left, which code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, Server, script_graph, start_server, until
from tests.e2e.test_process import alive, wait_gone

SCRIPT = json.dumps(
    {
        "step_seconds": 0.05,
        "replies": [
            {"match": "long", "text": "w ", "repeat": 15},
            {"match": "endless", "text": "w ", "repeat": 0},
        ],
    }
)


PATIENT = ("--shutdown_timeout", "1000")


def chat(text: str, *, stream: bool = True) -> dict[str, object]:
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": text}]}


@contextmanager
def streaming(server: Server, text: str = "endless") -> Iterator[Iterator[str]]:
    """An answer that has begun."""
    with (
        httpx.Client(timeout=230) as http,
        http.stream("POST", f"{server.v3}/chat/completions", json=chat(text)) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def content_of(lines: list[str]) -> str:
    """The text of a stream. Tokens that wait for a slow writer share a chunk."""
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def until_stopping(server: Server) -> None:
    until(lambda: any("stopping; running requests" in line for line in server.errors))


def until_running(server: Server, requests: int) -> None:
    wanted = f'ovserve_requests_running{{name="m"}} {requests}\n'
    until(lambda: wanted in httpx.get(f"{server.url}/metrics").text)


def test_sigterm_lets_running_requests_finish_and_leaves_no_process(tmp_path: Path) -> None:
    server = start_server(script_graph(tmp_path / "g", SCRIPT), name="m")
    engine = server.engine_pid()
    (renderer,) = server.children("ovserve.sandbox.rendering")
    with streaming(server, "long") as lines:
        server.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert content_of(rest) == "w " * 15
    assert [line for line in rest if line][-1] == "data: [DONE]"
    assert server.process.wait(60) == 0
    server.stop()
    wait_gone(engine)
    wait_gone(renderer)


def test_while_it_stops_it_is_not_ready_and_takes_nothing_new(tmp_path: Path) -> None:
    server = start_server(script_graph(tmp_path / "g", SCRIPT), *PATIENT, name="m")
    engine = server.engine_pid()
    with streaming(server) as lines, httpx.Client(base_url=server.url) as http:
        assert http.get("/v2/health/ready").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        until_stopping(server)
        for client in (http, httpx):  # a connection that was open, and new ones
            base = "" if client is http else server.url
            assert client.get(f"{base}/v2/health/ready").status_code == 503
            assert client.get(f"{base}/v2/health/live").status_code == 200
            refused = client.post(f"{base}/v3/chat/completions", json=chat("hi"))
            assert refused.status_code == 503
            assert refused.headers["Retry-After"]
            assert "stopping" in refused.json()["error"]["message"]
        assert next(line for line in lines if line), "what runs goes on"
    assert server.process.wait(60) == 0, "the client left, nothing runs any more"
    server.stop()
    wait_gone(engine)


@pytest.mark.parametrize("stream", [True, False])
def test_what_outlasts_the_timeout_ends_with_an_error(tmp_path: Path, stream: bool) -> None:
    graph = script_graph(tmp_path / "g", SCRIPT)
    server = start_server(graph, "--shutdown_timeout", "0.3", name="m")
    engine = server.engine_pid()
    if stream:
        with streaming(server) as lines:
            server.process.send_signal(signal.SIGTERM)
            *_, last = [line for line in lines if line]
        assert last.startswith('data: {"error":')
    else:
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = chat("endless", stream=False)
            answers.append(httpx.post(f"{server.v3}/chat/completions", json=body, timeout=230))

        thread = threading.Thread(target=ask)
        thread.start()
        until_running(server, 1)
        server.process.send_signal(signal.SIGTERM)
        thread.join(60)
        assert answers[0].status_code == 503
        assert answers[0].json()["error"]["message"]
    assert server.process.wait(60) == 0
    server.stop()
    wait_gone(engine)


def engine_and_others(pid: int) -> list[str]:
    """The children of a server, once the engine is one of them."""
    deadline = time.monotonic() + 230
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        commands = []
        for child in children:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                commands.append(Path(f"/proc/{child}/cmdline").read_bytes())
        if any(b"ovserve.engine.worker.main" in command for command in commands):
            return children
        assert time.monotonic() < deadline, commands
        time.sleep(0.05)


def test_a_signal_while_the_model_loads_ends_it_at_once(tmp_path: Path) -> None:
    graph = script_graph(tmp_path / "g", json.dumps({"load": "hang"}))
    command = [sys.executable, "-m", "ovserve", "serve", "--rest_port", "0", "--response_store", "off"]
    command += ["--model_name", "m", "--model_path", str(graph)]
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    try:
        assert any("listening on" in line for line in process.stderr)
        children = engine_and_others(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        for pid in map(int, children):
            wait_gone(pid)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    server = start_server(script_graph(tmp_path / "g", SCRIPT), *PATIENT, name="m")
    engine = server.engine_pid()
    with streaming(server) as lines:
        server.process.send_signal(signal.SIGTERM)
        until_stopping(server)
        assert next(line for line in lines if line), "it waits for the running request"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0, "long before --shutdown_timeout"
    server.stop()
    wait_gone(engine)


def test_a_second_signal_ends_even_an_engine_that_does_not_listen(tmp_path: Path) -> None:
    """The engine is stopped in the middle of a step, as a wedged driver would: it has no last words."""
    server = start_server(script_graph(tmp_path / "g", SCRIPT), *PATIENT, name="m")
    engine = server.engine_pid()
    with streaming(server):
        os.kill(engine, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        until_stopping(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert not [line for line in server.errors if "did not end within" in line], "it waited for the engine"
    server.stop()
    assert not alive(engine)

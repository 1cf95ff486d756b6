"""What can happen to the server process and the machine it runs on. Rows of docs/reliability.md."""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests import encoders
from tests.conftest import Server, eventually, script_graph, start_process, start_server, until
from tests.engine.conftest import is_running
from tests.faults.conftest import ANSWER, SCRIPT, Figure, Hurting
from tests.faults.memory_group import control_group


@contextmanager
def serving(
    directory: Path, *flags: str, prefix: Sequence[str] = ()
) -> Iterator[tuple[Server, httpx.Client]]:
    store = ("--response_store_path", str(directory / "r.db"))
    graph = script_graph(directory / "graph", json.dumps(SCRIPT))
    server = start_server(graph, *store, *flags, name="m", prefix=prefix)
    try:
        with httpx.Client(base_url=server.url, timeout=230) as http:
            yield server, http
    finally:
        server.stop()


def chat(http: httpx.Client) -> bool:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    told = http.post("/v3/chat/completions", json=body).json()
    return bool(told["choices"][0]["message"]["content"] == ANSWER)


def reached(ask: Callable[[], bool]) -> bool:
    """Return the answer; false where no connection is accepted."""
    try:
        return ask()
    except httpx.TransportError:
        return False


def respond(http: httpx.Client) -> tuple[bool, str]:
    """Whether the answer was right and stored, and its id."""
    answer = http.post("/v3/responses", json={"model": "m", "input": "hi"})
    told = answer.json()
    assert told["output"][0]["content"][0]["text"] == ANSWER
    return "x-ovserve-not-stored" not in answer.headers, told["id"]


@pytest.mark.slow
def test_server_kill_9(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, http):
        _, stored = respond(http)
        body = {"model": "m", "stream": True, "prompt": "endless"}
        with http.stream("POST", "/v3/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            children = server.children("ovserve")
            assert len(children) >= 2  # the engine, and templates
            server.process.send_signal(signal.SIGKILL)
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        server.process.wait(60)
    until(lambda: not any(map(is_running, children)), "an engine or a template process was left")
    with serving(tmp_path, "--rest_port", str(server.port)) as (_, http):  # on the same port
        assert http.get(f"/v3/responses/{stored}").status_code == 200
        assert chat(http)


def test_disk_full_for_the_response_store(tmp_path: Path) -> None:
    """No file of this process may grow past what the store's has: the kernel refuses, as on a full disk."""
    with serving(tmp_path) as (server, http):
        assert respond(http)[0]
        full = (1, resource.RLIM_INFINITY)
        before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, full)
        assert [respond(http)[0] for _ in range(3)] == [False] * 3  # answered, and said that it is not kept
        assert chat(http)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)
        stored, id_ = respond(http)
        assert stored
        assert http.get(f"/v3/responses/{id_}").status_code == 200


def test_response_store_corrupted(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, http):
        _, lost = respond(http)
        for path in tmp_path.glob("r.db*"):
            if path.is_file() and path.suffix != ".lock":
                path.write_bytes(b"\xa5" * path.stat().st_size)
        found = [respond(http) for _ in range(3)]  # answered each time
        assert found[-1][0], "a new store is begun"
        assert http.get(f"/v3/responses/{found[-1][1]}").status_code == 200
        assert http.get(f"/v3/responses/{lost}").status_code == 404
    assert list(tmp_path.glob("r.db.broken-*")), "the broken one is kept"
    assert any("is broken" in line for line in server.errors)


async def test_clock_jump(hurting: Hurting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is set a year ahead, then two back, under requests and their deadlines."""
    async with hurting() as hurt:
        engine, real = hurt.server.engine, time.time
        running = [asyncio.create_task(hurt.chat(stream=n % 2 == 0)) for n in range(4)]
        await eventually(lambda: engine.stats().generated_tokens > 3)
        for years in (1, -1):
            monkeypatch.setattr(time, "time", lambda y=years: real() + y * 365 * 86400)
            assert await hurt.chat() == "whole"
        assert await asyncio.gather(*running) == ["whole"] * 4
        assert (engine.stats().stalls, engine.stats().restarts) == (0, 0)
        hurt.check()


@pytest.mark.slow
def test_out_of_file_descriptors(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, http):
        assert chat(http)
        pid = server.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 10, most))
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
        for one in crowd:  # more than it can accept
            one.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n")
        assert chat(http)  # those who are in are served
        for one in crowd:
            one.close()
        with httpx.Client(base_url=server.url, timeout=230) as another:
            until(lambda: reached(lambda: chat(another)))
        assert server.process.poll() is None


def test_64_file_descriptors_from_the_start(tmp_path: Path, figure: Figure) -> None:
    """As with `ulimit -n 64`: connections beyond that wait their turn, and a flood of them ends nothing."""
    with serving(tmp_path, prefix=("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")) as (server, http):
        assert chat(http)
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for one in crowd:
            one.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n")
        assert chat(http)
        for one in crowd:
            one.close()
        body = {"model": "m", "prompt": "hi", "guided_regex": "[a-z]{3}"}  # another process is started for it
        left = time.monotonic()
        with httpx.Client(base_url=server.url, timeout=230) as another:
            until(
                lambda: reached(lambda: another.post("/v3/completions", json=body).status_code == 200),
                "it did not recover",
                seconds=60,
            )
            figure(f"a new client had its answer {time.monotonic() - left:.2f} s after the 100 left")
            assert chat(another)
        assert server.process.poll() is None


def test_a_low_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    """Beyond it connections were closed without an answer, and nothing said so."""
    with serving(tmp_path, prefix=("sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh")) as (server, http):
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for one in crowd:
            one.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert {one.recv(12) for one in crowd} == {b"HTTP/1.1 200"}
        assert chat(http)
        for one in crowd:
            one.close()


def test_no_more_processes(tmp_path: Path) -> None:
    """Nor threads, of any process: what needs one fails, and no process that many models share ends."""
    graphs = tmp_path / "graphs"
    script_graph(graphs / "m", json.dumps(SCRIPT))
    (graphs / "encoder").mkdir()
    (graphs / "encoder/graph.pbtxt").write_text(encoders.graph(str(encoders.tiny("bert", tmp_path / "bert"))))
    body = {"model": "encoder", "input": ["one", "two", "three"]}  # several texts take threads of their own
    server = start_process("--graphs_dir", str(graphs), "--file_system_poll_wait_seconds", "0")
    try:
        with control_group("pids") as group, httpx.Client(base_url=server.url, timeout=230) as http:
            [host] = server.children("\0host\0")
            for pid in (server.process.pid, *server.children("ovserve")):
                (group / "cgroup.procs").write_text(str(pid))
            (group / "pids.max").write_text("1")
            assert http.post("/v3/embeddings", json=body).status_code == 200
            assert chat(http)
            script_graph(graphs / "late", json.dumps(SCRIPT))
            answer = http.post("/v1/config/reload")
            assert answer.status_code == 412
            assert (
                "cannot be started: Resource temporarily unavailable; `ulimit -u` and pids.max" in answer.text
            )
            (group / "pids.max").write_text("max")
            assert http.post("/v1/config/reload").status_code == 201
            assert http.post("/v3/embeddings", json=body).status_code == 200
            assert server.children("\0host\0") == [host]
    finally:
        server.stop()


@pytest.mark.slow
def test_key_rotation_under_load(tmp_path: Path, figure: Figure) -> None:
    """The file of keys is replaced ten times, and broken once between, while clients ask with old and new keys.
    A key that is in force is never refused; one that is taken out is, a second later; what runs goes on."""
    keys = tmp_path / "keys.toml"

    def write(*numbers: int) -> None:
        text = "".join(
            f'[[key]]\nname = "k{n}"\nhash = "sha256:{hashlib.sha256(secret(n).encode()).hexdigest()}"\n'
            for n in numbers
        )
        (tmp_path / "new.toml").write_text(text)
        (tmp_path / "new.toml").rename(keys)

    def secret(number: int) -> str:
        return f"secret-number-{number}"

    def ask(number: int) -> int:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"Authorization": f"Bearer {secret(number)}"}
        return httpx.post(f"{url}/v3/chat/completions", json=body, headers=headers, timeout=230).status_code

    write(0, 1)
    with serving(tmp_path, "--api_keys_file", str(keys)) as (server, http), ThreadPoolExecutor(8) as pool:
        url = server.url
        body = {"model": "m", "stream": True, "prompt": "endless"}
        headers = {"Authorization": f"Bearer {secret(0)}"}
        with http.stream("POST", "/v3/completions", json=body, headers=headers) as running:
            lines = running.iter_lines()
            next(lines)
            in_force = []  # seconds after the file was written
            for round_ in range(10):
                common = round_ + 1  # in the file before and after
                asked = [pool.submit(ask, common) for _ in range(16)]
                write(common, common + 1)
                written = time.monotonic()
                assert {one.result() for one in asked} == {200}, "a key in force was refused"
                until(lambda new=common + 1: ask(new) == 200)
                until(lambda old=common - 1: ask(old) == 401)
                in_force.append(time.monotonic() - written)
                if round_ == 5:
                    keys.write_text("[[key]]\nname = ")
                    time.sleep(1.5)
                    assert (ask(common), ask(common + 1), ask(common - 1)) == (200, 200, 401)
            next(lines)  # the stream of the first key, which is long gone
        assert ask(11) == 200
        figure(f"the new keys were in force, and the old ones not, after {max(in_force):.2f} s at most")
        assert any("keys.toml" in line for line in server.errors), "the broken file is in the log"

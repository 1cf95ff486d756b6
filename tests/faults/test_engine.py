"""What can happen to an engine process. Rows of docs/reliability.md."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from ovserve.engine.host.memory import oom_kills
from tests.conftest import Server, eventually, script_graph, start_server, until
from tests.faults.conftest import ANSWER, SCRIPT, Hurt, Hurting
from tests.faults.memory_group import memory_group

DEAD = "engine_restarting"


async def kill_under_load(hurt: Hurt, times: int, clients: int) -> None:
    over = asyncio.Event()
    load = asyncio.create_task(hurt.load(clients, over))
    engine = hurt.server.engine
    descriptors = 0
    for number in range(times):
        await eventually(lambda n=number: engine.state.name == "ready" and engine.stats().restarts == n, 60)
        before = engine.stats().generated_tokens
        await eventually(lambda n=before: engine.stats().generated_tokens > n, 60)
        descriptors = descriptors or len(os.listdir("/proc/self/fd"))
        os.kill(engine.pid, signal.SIGKILL)
    await eventually(lambda: engine.stats().restarts == times and engine.state.name == "ready", 60)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + clients
    over.set()
    await load
    assert set(hurt.ends) <= {"whole", DEAD}
    assert hurt.ends["whole"] >= clients
    assert await hurt.chat() == "whole"
    hurt.check()


async def test_engine_kill_9_under_load(hurting: Hurting) -> None:
    async with hurting() as hurt:
        await kill_under_load(hurt, times=3, clients=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_engine_kill_9_fifty_times_under_load(hurting: Hurting) -> None:
    async with hurting() as hurt:
        await kill_under_load(hurt, times=50, clients=16)
        assert hurt.server.engine.stats().restarts == 50


def hold_next_engine(tmp_path: Path) -> Path:
    """Have the next engine wait for a file, which this returns: its absence is looked at over HTTP, which may take
    longer than an engine takes to start."""
    script_graph(tmp_path / "graph", json.dumps({**SCRIPT, "load": "hang"}))
    return tmp_path / "graph/go"


async def test_engine_sigstop(hurting: Hurting, tmp_path: Path) -> None:
    async with hurting() as hurt:
        engine, http = hurt.server.engine, hurt.http
        go = hold_next_engine(tmp_path)
        begun = asyncio.create_task(hurt.chat("endless", stream=True))
        await eventually(lambda: engine.stats().generated_tokens > 3)
        os.kill(stopped := engine.pid, signal.SIGSTOP)
        others = [asyncio.create_task(hurt.chat(stream=n % 2 == 0)) for n in range(6)]
        await eventually(lambda: engine.state.name == "restarting")
        ready = await http.get("/v2/health/ready")
        assert (ready.status_code, "did not end a step" in ready.text) == (503, True)
        go.touch()
        assert await begun == DEAD
        assert await asyncio.gather(*others) == ["whole"] * 6
        assert engine.pid != stopped
        assert engine.stats().stalls == 1
        hurt.check()


@pytest.mark.slow
async def test_engine_sigstop_while_idle(hurting: Hurting) -> None:
    async with hurting() as hurt:
        engine, http = hurt.server.engine, hurt.http
        assert await hurt.chat() == "whole"
        os.kill(stopped := engine.pid, signal.SIGSTOP)
        await eventually(lambda: engine.state.name == "restarting")
        ready = await http.get("/v2/health/ready")
        assert (ready.status_code, "did not answer" in ready.text) == (503, True)
        await eventually(lambda: engine.state.name == "ready")
        assert engine.pid != stopped
        assert (await http.get("/v2/health/ready")).status_code == 200
        assert await hurt.chat() == "whole"
        assert engine.stats().repeated == 0  # nobody met it
        hurt.check()


async def test_engine_raises(hurting: Hurting) -> None:
    async with hurting() as hurt:
        neighbours = [asyncio.create_task(hurt.chat(stream=n % 2 == 0)) for n in range(4)]
        ends = await asyncio.gather(hurt.chat("raise"), hurt.chat("do raise", stream=True), *neighbours)
        assert set(ends[:2]) <= {DEAD, "request_ends_engine"}
        # A neighbour that was under three engines is suspected as well, if the two did not come together.
        assert set(ends[2:]) <= {"whole", DEAD, "request_ends_engine"}
        assert await hurt.chat("another") == "whole"
        hurt.check()


async def test_malformed_frame(hurting: Hurting, caplog: pytest.LogCaptureFixture) -> None:
    async with hurting() as hurt:
        engine = hurt.server.engine
        begun = asyncio.create_task(hurt.chat("endless", stream=True))
        await eventually(lambda: engine.stats().generated_tokens > 3)
        assert engine._process is not None
        engine._process.data_received(b"\xff" * 64)  # as if it had come over the socket
        assert await begun == DEAD
        assert "protocol error" in caplog.text
        assert await hurt.chat() == "whole"
        hurt.check()


async def test_engine_takes_too_much_memory(hurting: Hurting) -> None:
    greedy = {"match": "greedy", "text": SCRIPT["replies"][-1]["text"], "take_bytes": 64 << 20}  # type: ignore[index]
    async with hurting(replies=[greedy, *SCRIPT["replies"]]) as hurt:  # type: ignore[misc]
        engine = hurt.server.engine
        engine._health.memory_limit._limit = engine.memory_held + (32 << 20)
        slow = asyncio.create_task(hurt.chat("endless", stream=True))
        await eventually(lambda: engine.stats().generated_tokens > 3)
        assert await hurt.chat("greedy") == "whole"
        await eventually(lambda: bool(engine.short_of_memory))
        assert await hurt.chat() == "server_overloaded"  # and what runs goes on
        assert not slow.done()
        slow.cancel()
        await eventually(lambda: engine.stats().restarts == 1 and engine.state.name == "ready")
        assert not engine.short_of_memory
        assert await hurt.chat() == "whole"
        hurt.check()


@pytest.mark.slow
def test_engine_killed_by_the_kernel(tmp_path: Path) -> None:
    """Really: in a control group with too little memory. The server sees the limit, and refuses before; what
    takes all at once is killed for it."""
    some = {"match": "some", "text": ANSWER, "take_bytes": 400 << 20}
    all_ = {"match": "all", "text": ANSWER, "take_bytes": 1 << 30}
    script = json.dumps({**SCRIPT, "load_seconds": 0.5, "replies": [some, all_, *SCRIPT["replies"]]})  # type: ignore[misc]
    with memory_group(600 << 20) as group:
        server = start_server(script_graph(tmp_path / "graph", script), name="m")
        try:
            for pid in (server.process.pid, *server.children("ovserve")):
                group.take(pid)
            with httpx.Client(base_url=server.url, timeout=230) as http:
                killed_by_the_kernel(http, server)
        finally:
            server.stop()
    assert any("killed by the kernel: out of memory" in line for line in server.errors)


def killed_by_the_kernel(http: httpx.Client, server: Server) -> None:
    reason, path = "killed by the kernel, out of memory", "/v3/chat/completions"

    def body(word: str, **more: object) -> dict[str, object]:
        return {"model": "m", "messages": [{"role": "user", "content": word}], **more}

    (engine,) = server.children("ovserve.engine.worker.main")
    with http.stream("POST", path, json=body("endless", stream=True)) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        next(lines)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(lambda: http.post(path, json=body("all")))
            error = json.loads(list(lines)[-1].removeprefix("data: "))["error"]
            assert error["code"] == DEAD
            assert reason in error["message"]
            until(lambda: "killed by the kernel: out of memory" in http.get("/v1/config").text)
            refused = asked.result()  # after the next engine was killed by it too
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, DEAD)
    assert reason in refused.json()["error"]["message"]

    until(lambda: http.get("/v2/health/ready").status_code == 200)
    assert http.post(path, json=body("hi")).json()["choices"][0]["message"]["content"] == ANSWER
    # In good time: with so much taken, what is left of the group is too little for more.
    (second,) = server.children("ovserve.engine.worker.main")
    assert second != engine
    with http.stream("POST", path, json=body("endless", stream=True)) as answer:
        lines = answer.iter_lines()  # the stream is closed when nobody holds this
        next(lines)
        assert http.post(path, json=body("some")).status_code == 200
        until(lambda: (refused := http.post(path, json=body("hi"))).status_code == 503 and told(refused))
        assert server.children("ovserve.engine.worker.main") == [second]  # what runs goes on
    until(lambda: server.children("ovserve.engine.worker.main") not in ([second], []))  # it had no work left
    until(lambda: http.get("/v2/health/ready").status_code == 200)
    assert http.post(path, json=body("hi")).status_code == 200


def told(refused: httpx.Response) -> bool:
    assert refused.json()["error"]["code"] == "server_overloaded"
    assert re.search(r"the container has \d+ MB of memory left", refused.text), refused.text
    return True


async def test_how_a_kill_by_the_kernel_is_told(
    hurting: Hurting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On any machine: the kernel's counter goes on from where it is."""
    async with hurting() as hurt:
        engine = hurt.server.engine
        go = hold_next_engine(tmp_path)
        monkeypatch.setattr(
            "ovserve.engine.client.process.oom_kills", itertools.count(oom_kills() + 1).__next__
        )
        os.kill(engine.pid, signal.SIGKILL)
        await eventually(lambda: "killed by the kernel: out of memory" in engine.state.reason)
        assert "killed by the kernel: out of memory" in (await hurt.http.get("/v1/config")).text
        go.touch()
        assert await hurt.chat() == "whole"


async def test_model_directory_deleted_while_serving(hurting: Hurting, tmp_path: Path) -> None:
    async with hurting() as hurt:
        engine = hurt.server.engine
        other = script_graph(tmp_path / "other", '{"replies": [{"text": "well"}]}')
        await hurt.server.manager.load("other", other)
        shutil.rmtree(tmp_path / "graph")
        assert await hurt.chat() == "whole"  # what is loaded is loaded
        os.kill(engine.pid, signal.SIGKILL)
        await eventually(lambda: engine.state.name == "failed")
        status = (await hurt.http.get("/v1/config")).json()
        assert "model.script.json" in status["m"]["model_version_status"][0]["status"]["error_message"]
        assert await hurt.chat() == "server_error"  # unavailable
        body = {"model": "other", "prompt": "hi"}
        assert (await hurt.http.post("/v3/completions", json=body)).json()["choices"][0]["text"] == "well"
        script_graph(tmp_path / "graph", json.dumps(SCRIPT))
        await eventually(lambda: engine.state.name == "ready")
        assert await hurt.chat() == "whole"
        hurt.check()

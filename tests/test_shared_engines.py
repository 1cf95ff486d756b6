"""Small models that share one engine process, served by the real command: the toy kind, and real models."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import Server, start_process, until
from tests.test_toy_kind import GRAPH, TOY

FIELD = '      fields { key: "isolation" value { string_value: "%s" } }\n    }'


def write(
    directory: Path, name: str, seconds: float = 0.02, isolation: str = "shared", zero: str = ""
) -> None:
    graph = directory / name
    graph.mkdir(parents=True, exist_ok=True)
    (graph / "zero.txt").write_text(zero or f"end of {name}")
    text = GRAPH.replace("SECONDS", str(seconds))
    (graph / "graph.pbtxt").write_text(text.replace("    }\n  }\n}", FIELD % isolation + "\n  }\n}"))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("graphs")
    for name in "abc":
        write(directory, name)
    write(directory, "own", isolation="process")
    return directory


@pytest.fixture(scope="module")
def server(graphs: Path) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TOY), os.environ.get("PYTHONPATH", "")]))
        made = start_process("--graphs_dir", str(graphs), "--metrics_enable", "--max_queue", "4")
        yield made
        made.stop()


def count(server: Server, model: str, start: int = 1) -> httpx.Response:
    return httpx.post(f"{server.v3}/toy/count", json={"model": model, "start": start}, timeout=230)


def end_of(server: Server, model: str) -> str:
    text: str = count(server, model).json()["texts"][-1]
    return text


def processes(server: Server) -> list[int]:
    return server.children("ovserve.engine.worker.main")


def test_three_models_and_two_processes(server: Server) -> None:
    assert [end_of(server, name) for name in ("a", "b", "c", "own")] == [
        "end of a", "end of b", "end of c", "end of own",
    ]  # fmt: skip
    assert len(processes(server)) == 2


def test_each_model_has_its_rows_and_the_process_one(server: Server) -> None:
    count(server, "a", 3)
    text = httpx.get(f"{server.url}/metrics").text
    for name in "abc":
        assert f'ovserve_engines{{name="{name}",kind="shared_countdown"}} 1' in text
        assert f'ovserve_engine_restarts_total{{name="{name}"}} 0' in text
        assert f'ovserve_engine_process_resident_memory_bytes{{name="{name}"}}' not in text
    assert text.count("ovserve_engine_process_resident_memory_bytes{") == 2
    assert 'ovserve_engine_process_resident_memory_bytes{process="shared-1"}' in text
    assert 'ovserve_engine_process_resident_memory_bytes{name="own"}' in text
    models = {m["model"]: m for m in httpx.get(f"{server.v3}/capabilities").json()["data"]}
    assert models["b"]["engines"] == [
        {"kind": "shared_countdown", "side_packet": "countdown", "facts": {"zero": "end of b"}}
    ]


def test_a_bounded_queue_for_each_model(server: Server) -> None:
    found: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: found.append(count(server, "a", 20))) for _ in range(12)]
    (shared,) = set(processes(server)) - {own_process(server)}
    os.kill(shared, signal.SIGSTOP)  # nothing is answered until all have come
    try:
        for thread in threads:
            thread.start()
        until(lambda: len(found) == 4, found)
    finally:
        os.kill(shared, signal.SIGCONT)
    assert count(server, "b").status_code == 200, "the queue of another is not its own"
    for thread in threads:
        thread.join()
    statuses = [answer.status_code for answer in found]
    assert statuses.count(200) == 8, "four in the engine and four in the queue"
    refused = [answer for answer in found if answer.status_code != 200]
    assert {answer.status_code for answer in refused} == {429} or {a.status_code for a in refused} == {503}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def test_all_come_back_when_the_process_is_killed(server: Server) -> None:
    (shared,) = set(processes(server)) - {own_process(server)}
    with httpx.stream(
        "POST", f"{server.v3}/toy/count", json={"model": "a", "start": 1000, "stream": True}, timeout=30
    ) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        os.kill(shared, signal.SIGKILL)
        rest = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert [event for event in rest if "error" in event] == rest[-1:], "one error, at the end"
    assert [end_of(server, name) for name in "abc"] == ["end of a", "end of b", "end of c"]
    assert shared not in processes(server)
    assert len(processes(server)) == 2


def own_process(server: Server) -> int:
    item = httpx.post(
        f"{server.v3}/toy/count", json={"model": "own", "start": 0, "stream": True}, timeout=30
    ).text.splitlines()[0]
    pid: int = json.loads(item.removeprefix("data: "))["pid"]
    return pid


def test_a_reload_of_one_under_the_load_of_others_loses_nothing(server: Server, graphs: Path) -> None:
    stop = threading.Event()
    failed: list[str] = []
    done = [0]

    def load(name: str) -> None:
        with httpx.Client(timeout=230) as client:
            while not stop.is_set():
                answer = client.post(f"{server.v3}/toy/count", json={"model": name, "start": 1})
                done[0] += 1
                if answer.status_code != 200:
                    failed.append(answer.text)

    threads = [threading.Thread(target=load, args=(name,)) for name in "aabb"]
    for thread in threads:
        thread.start()
    before = set(processes(server))
    for i in range(4):
        write(graphs, "b", seconds=0.01 + i / 1000, zero=f"b{i}")
        assert httpx.post(f"{server.url}/v1/config/reload", timeout=230).status_code == 201
        assert end_of(server, "b") == f"b{i}"
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert done[0] > 4
    assert set(processes(server)) == before


def test_a_wrong_isolation_names_its_field(server: Server, graphs: Path) -> None:
    write(graphs, "c", isolation="alone")
    failed = httpx.post(f"{server.url}/v1/config/reload", timeout=230)
    assert failed.status_code >= 400
    assert "isolation: expected 'shared' or 'process', got 'alone'" in failed.text
    assert end_of(server, "c") == "end of c", "the version before is still served"
    write(graphs, "c")

"""A hundred models over the real runtime in one server: one engine process, right answers, little memory."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.many_models import Served, served
from benchmarks.processes import memory

MODELS = 100


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("many"), MODELS) as one:
        yield one


def all_answer(made: Served) -> None:
    with httpx.Client() as client:
        for number in range(len(made.names)):
            made.add(number, client)


def test_all_answer_from_one_process_with_less_than_a_megabyte_each(made: Served) -> None:
    all_answer(made)
    (engine,) = made.processes()
    assert memory(engine)[0] < 100 + MODELS, "the library alone takes 85 MB"
    assert b"openvino" not in Path(f"/proc/{made.server.process.pid}/maps").read_bytes()


def test_metrics_have_a_row_for_each_and_one_for_the_process(made: Served) -> None:
    text = httpx.get(f"{made.server.url}/metrics").text
    assert text.count('kind="add_one"} 1') == MODELS
    assert text.count("ovserve_engine_process_resident_memory_bytes{") == 1


def test_one_that_is_reloaded_or_removed_leaves_the_others_alone(made: Served) -> None:
    failed: list[BaseException] = []
    stop = threading.Event()

    def load() -> None:
        try:
            with httpx.Client() as client:
                while not stop.is_set():
                    for number in range(10):
                        made.add(number, client)
        except (httpx.HTTPError, AssertionError) as error:
            failed.append(error)

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    before = made.processes()
    changed = made.graphs / made.names[5]
    for suffix in (".xml", ".bin"):  # the same model under another file name: another engine
        shutil.copy(changed / f"model{suffix}", changed / f"again{suffix}")
    graph = changed / "graph.pbtxt"
    graph.write_text(graph.read_text().replace("model.xml", "again.xml"))
    shutil.rmtree(made.graphs / made.names.pop())
    assert httpx.post(f"{made.server.url}/v1/config/reload", timeout=230).status_code == 201
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert made.processes() == before


def test_a_wrong_call_names_its_field(made: Served) -> None:
    answer = httpx.post(f"{made.server.v3}/add", json={"model": made.names[0], "values": [1.0]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "values"


def test_all_come_back_after_a_kill(made: Served) -> None:
    (engine,) = made.processes()
    os.kill(engine, signal.SIGKILL)
    all_answer(made)
    assert len(made.processes()) == 1
    assert made.processes() != [engine]

"""Keys, deadlines and bounded queues of models that share one process: a plain model and a graph of embeddings."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from ovserve.access.keys import entry_text
from tests.conftest import Server, start_process
from tests.encoders import graph, tiny
from tests.plain_models import write_models

KEY, ONE, OTHER = "key-without-limits-01", "key-one-at-a-time-01", "key-of-other-models-01"
QUEUE, RUNNING = 3, 2  # those that may wait; a model with one infer request, and one call ahead of it
INFER = {"inputs": [{"name": "b", "shape": [1, 10], "datatype": "FP32", "data": list(range(10))}]}
EMBED = {"model": "exact", "input": "the ship"}
CASES = [("/v2/models/dummy/infer", INFER), ("/v3/embeddings", EMBED)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("hosted")
    write_models(place)
    tiny("mpnet", place / "exact")
    (place / "exact/graph.pbtxt").write_text(graph("./"))
    keys = [
        entry_text("all", KEY),
        entry_text("one", ONE) + "concurrency = 1\n",
        entry_text("other", OTHER) + "models = ['x*']\n",
    ]
    (place / "keys.toml").write_text("".join(keys))
    models = [{"config": {"name": "dummy", "base_path": str(place / "dummy"), "nireq": 1}}]
    graphs = [{"name": "exact", "base_path": str(place / "exact")}]
    config = {"model_config_list": models, "mediapipe_config_list": graphs}
    (place / "config.json").write_text(json.dumps(config))
    limits = ("--max_queue", str(QUEUE), "--queue_timeout", "3", "--request_timeout", "6")
    running = start_process(
        "--config_path", str(place / "config.json"), "--api_keys_file", str(place / "keys.toml"), *limits
    )
    yield running
    running.stop()


@pytest.fixture
def engine(server: Server) -> Iterator[int]:
    """The shared process, stopped for the time of a test."""
    (pid,) = server.children("ovserve.engine.worker.main")
    os.kill(pid, signal.SIGSTOP)
    yield pid
    os.kill(pid, signal.SIGCONT)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(("path", "body"), CASES)
def test_keys(server: Server, path: str, body: object) -> None:
    with httpx.Client(base_url=server.url, timeout=230) as client:
        assert client.post(path, json=body).status_code == 401
        assert client.post(path, json=body, headers=bearer(OTHER)).status_code == 404
        assert client.post(path, json=body, headers=bearer(KEY)).status_code == 200


async def test_the_queue_is_bounded_and_calls_have_deadlines(server: Server, engine: int) -> None:
    async with httpx.AsyncClient(base_url=server.url, headers=bearer(KEY), timeout=230) as client:
        asked = RUNNING + QUEUE + 4
        embedding = asyncio.create_task(
            client.post("/v3/embeddings", json=EMBED)
        )  # its graph has its own queue
        answers = await asyncio.gather(*(client.post(CASES[0][0], json=INFER) for _ in range(asked)))
        found = Counter(answer.status_code for answer in answers)
        assert found == {504: RUNNING, 503: QUEUE + 4}
        for answer in answers:
            assert answer.json()["error"], "in KServe's shape"
            assert answer.status_code == 504 or int(answer.headers["retry-after"]) >= 1
        full = [a for a in answers if "requests are waiting" in a.text]
        late = [a for a in answers if "not admitted within 3 s" in a.text]
        assert (len(full), len(late)) == (4, QUEUE)
        embedded = await embedding
        assert embedded.status_code == 504
        assert "6 s" in embedded.json()["error"]["message"]
        os.kill(engine, signal.SIGCONT)
        for path, body in CASES:
            again = await client.post(path, json=body)
            assert again.status_code == 200, again.text


async def test_a_key_may_have_its_own_concurrency(server: Server, engine: int) -> None:
    async with httpx.AsyncClient(base_url=server.url, headers=bearer(ONE), timeout=230) as client:
        both = {asyncio.create_task(client.post(path, json=body)) for path, body in CASES}
        done, running = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        (second,), (first,) = done, running
        assert second.result().status_code == 429
        assert int(second.result().headers["retry-after"]) >= 1
        os.kill(engine, signal.SIGCONT)
        assert (await first).status_code == 200

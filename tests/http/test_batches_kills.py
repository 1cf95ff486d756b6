"""Each line of a batch has exactly one result, whatever ends meanwhile: real processes, ended at random moments."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.breadth import examples
from tests.conftest import ROOT, script_graph, until
from tests.http.test_batches import client_of, counts, create, ended, jsonl, line, results, start

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

STEP = {"replies": [{"match": "full", "refuse": "resource_exhausted"}, {"echo": True, "step_seconds": 0.02}]}
LINES = [line(f"n{i}", "full" if i % 50 == 0 else f"say {i // 2} and some more words") for i in range(300)]


def check(client: openai.OpenAI, id_: str) -> None:
    batch = ended(client, id_, 200)
    assert batch.status == "completed", batch
    found = results(client, batch)
    assert found.keys() == {one["custom_id"] for one in LINES}
    assert counts(client, id_) == (300, 294, 6)
    for number in range(300):
        response = found[f"n{number}"]["response"]
        if number % 50 == 0:
            assert response["status_code"] == 503
        else:
            assert f"say {number // 2} and" in response["body"]["choices"][0]["message"]["content"]


@pytest.mark.parametrize("seed", range(examples(1)))
def test_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    server = start(tmp_path, "--shutdown_timeout", "1", script=STEP)
    try:
        id_ = create(client_of(server), LINES).id
        # Two ends of engines at most: a line that had an engine alone at two ends has failed, as it should.
        for what in draw.sample(["server"] * 4 + ["stop", "engine", "engine"], 7):
            time.sleep(draw.uniform(0, 1.5))
            if what == "engine":
                os.kill(server.engine_pid(), signal.SIGKILL)
                continue
            server.stop(signal.SIGKILL if what == "server" else signal.SIGTERM)
            server = start(tmp_path, "--shutdown_timeout", "1", script=STEP)
        check(client_of(server), id_)
    finally:
        server.stop()


def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    server = start(tmp_path, script=STEP)
    pid = server.process.pid
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    try:
        client = client_of(server)
        id_ = create(client, LINES).id
        until(lambda: counts(client, id_)[1] > 0)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, unlimited[1]))  # writes fail, as on a full disk
        until(lambda: any("results wait for the store" in text for text in server.errors))
        before = counts(client, id_)
        with pytest.raises(openai.InternalServerError):
            client.files.create(file=("in", b"x" * 1000), purpose="batch")
        assert counts(client, id_) == before
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        check(client, id_)
    finally:
        server.stop()


def test_two_servers_on_one_store(tmp_path: Path) -> None:
    one = start(tmp_path, script=STEP)
    other = start(tmp_path, script=STEP)
    try:
        ids = [create(client_of(one), LINES).id for _ in range(2)]
        until(lambda: counts(client_of(other), ids[0])[1] > 0)
        one.stop(signal.SIGKILL)
        for id_ in ids:
            check(client_of(other), id_)
    finally:
        other.stop()
        if one.process.poll() is None:
            one.stop()


def test_lines_of_a_model_that_is_gone_wait_for_it(tmp_path: Path) -> None:
    server = start(tmp_path, script=STEP)
    try:
        client = client_of(server)
        id_ = create(client, LINES).id
        until(lambda: counts(client, id_)[1] > 0)
        httpx.post(f"{server.url}/v2/repository/models/m/unload").raise_for_status()

        def rests() -> bool:
            """Those that ran are in the store, and no other line is begun."""
            before = counts(client, id_)
            time.sleep(1)
            return counts(client, id_) == before

        until(rests)
        assert sum(counts(client, id_)[1:]) < len(LINES)
        httpx.post(f"{server.url}/v2/repository/models/m/load").raise_for_status()
        script_graph(
            tmp_path / "graph",
            '{"replies": [{"match": "full", "refuse": "resource_exhausted"}, {"echo": true}]}',
        )
        httpx.post(f"{server.url}/v1/config/reload").raise_for_status()
        check(client, id_)
    finally:
        server.stop()


def command(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    arguments = ["batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    return subprocess.Popen(
        [sys.executable, "-m", "ovserve", *arguments, "--model", str(tmp_path / "graph"), *more],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_goes_on_where_it_was_killed(tmp_path: Path) -> None:

    script_graph(tmp_path / "graph", json.dumps(STEP))
    (tmp_path / "in.jsonl").write_bytes(jsonl(LINES))
    state = tmp_path / "out.jsonl.state"

    def finished() -> int:
        if not (state / "store.db").exists():
            return 0
        with sqlite3.connect(state / "store.db") as db:
            query = "SELECT count() FROM batch_lines WHERE status IS NOT NULL"
            try:
                return int(db.execute(query).fetchone()[0])
            except sqlite3.OperationalError:
                return 0  # its tables are made in this moment

    running = command(tmp_path)
    until(lambda: finished() > 0)
    running.kill()
    running.communicate()
    until(lambda: not [*state.glob("store.db.*.lock")] or running.poll() is not None)
    before = finished()
    assert 0 < before < 300
    done = command(tmp_path)
    _, errors = done.communicate(timeout=200)
    assert done.returncode == 3, errors
    assert "294 lines, 6 failed" in errors
    assert "6 failed: 503" in errors
    found: list[dict[str, Any]] = [
        json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    assert sorted(one["custom_id"] for one in found) == sorted(one["custom_id"] for one in LINES)
    assert not state.exists()
    again = command(tmp_path)
    assert "exists" in again.communicate(timeout=230)[1]
    assert again.returncode == 1


def test_the_command_says_what_is_wrong_with_the_input(tmp_path: Path) -> None:
    script_graph(tmp_path / "graph", '{"replies": [{"echo": true}]}')
    (tmp_path / "in.jsonl").write_bytes(
        jsonl([line("a", "b"), line("a", "c"), line("d", "e", temperature=9)])
    )
    done = command(tmp_path)
    _, errors = done.communicate(timeout=230)
    assert done.returncode == 1
    assert "line 2: custom_id: line 1 has 'a' too" in errors
    assert "line 3: body.temperature" in errors
    assert not (tmp_path / "out.jsonl").exists()

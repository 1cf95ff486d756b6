"""Processes and a node killed under load, graphs rolled out under load, wrong graphs; scripted engines."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import script_graph, until
from tests.deploy.ray.conftest import DATA_PLANE, Ray, parent, plan_for, processes, raylet, script
from tests.deploy.ray.load import CUT, DONE, ERROR_EVENT, Load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]
CLIENTS = 6


def words(version: str) -> str:
    return " ".join([version] * 40)


def serve_version(graphs: Path, version: str) -> None:
    script_graph(graphs / "words", script(0.025, words(version)))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("graphs")
    serve_version(directory, "one")
    return directory


@pytest.fixture(scope="module")
def app(ray: Ray, graphs: Path) -> Iterator[Ray]:
    ray.deploy(plan_for(graphs, min_replicas=2, max_replicas=2))
    until(lambda: ray.replicas() == 2)
    until(lambda: httpx.get(f"{ray.url}/v2/health/ready").status_code == 200)
    yield ray
    ray.delete()
    until(lambda: not ray.servers())


@pytest.fixture(autouse=True)
def whole(app: Ray) -> None:
    """Each test begins with two replicas that answer."""
    until(lambda: app.replicas() == 2 and len(app.servers()) == 2, seconds=90)


def test_a_server_that_ends_costs_only_the_streams_that_it_had_begun(app: Ray) -> None:
    with Load(app.url, CLIENTS) as load:
        until(lambda: load.count()[DONE] >= CLIENTS)
        child = next(iter(app.servers()))
        killed = time.monotonic()
        os.kill(child, signal.SIGKILL)
        until(
            lambda: app.replicas() == 2 and child not in app.servers() and len(app.servers()) == 2, seconds=90
        )
        time.sleep(2)
    failed = load.failed()
    assert len(failed) <= CLIENTS, failed
    for one in failed:
        assert one.how == ERROR_EVENT, one
        assert "ended during this request" in one.text
        assert one.began < killed, "a request after the death failed"
    assert load.count(killed)[DONE] > CLIENTS


def test_a_replica_that_is_killed_takes_its_server_along(app: Ray) -> None:
    with Load(app.url, CLIENTS) as load:
        until(lambda: load.count()[DONE] >= CLIENTS)
        child = next(iter(app.servers()))
        engines = {pid for pid in processes("ovserve") if parent(pid) == child}
        killed = time.monotonic()
        os.kill(parent(child), signal.SIGKILL)
        until(lambda: not ({child} | engines) & processes("ovserve").keys())
        until(lambda: app.replicas() == 2 and len(app.servers()) == 2, seconds=90)
        time.sleep(1)
    failed = load.failed()
    assert engines
    assert len(failed) <= CLIENTS, failed
    assert all(one.began < killed + 1 for one in failed)
    if DATA_PLANE == "haproxy":
        assert all(one.how == CUT and one.begun for one in failed), failed


def test_a_graph_is_rolled_out_without_a_lost_request(app: Ray, graphs: Path) -> None:
    before = app.servers()
    serve_version(graphs, "two")
    with Load(app.url, CLIENTS) as load:
        until(lambda: load.count()[DONE] >= CLIENTS)
        app.deploy(plan_for(graphs, min_replicas=2, max_replicas=2))
        deployed = time.monotonic()
        until(lambda: load.count(deployed)[DONE] >= 2 * CLIENTS)
    assert load.count().keys() == {DONE}
    assert {one.text.strip() for one in load.ended} == {words("one"), words("two")}
    assert {one.text.strip() for one in load.ended if one.began > deployed + 1} == {words("two")}
    assert app.servers() == before, "no process was replaced"


def test_a_wrong_graph_is_reported_and_the_old_one_serves(app: Ray, graphs: Path) -> None:
    before = app.servers()
    file = graphs / "words/graph.pbtxt"
    good = file.read_text()
    file.write_text(good.replace("HttpFrontendCalculator", "NoSuchCalculator"))
    try:
        with Load(app.url, CLIENTS) as load:
            app.deploy(plan_for(graphs, min_replicas=2, max_replicas=2))
            until(lambda: len(app.status()[1]) == 2, seconds=30)
            _, faults = app.status()
            assert all("NoSuchCalculator" in fault for fault in faults), faults
            os.kill(
                next(iter(app.servers())), signal.SIGKILL
            )  # a replica that starts now serves the old one too
            until(lambda: app.replicas() == 2 and len(app.servers() - before) == 1, seconds=90)
            until(lambda: len(app.status()[1]) == 2, seconds=30)
        assert load.count().keys() <= {DONE, ERROR_EVENT}, load.failed()
        assert {one.text.strip() for one in load.ended if one.how == DONE} == {words("two")}
        states = httpx.get(f"{app.url}/v1/config").json()["words"]["model_version_status"][0]
        assert states["state"] == "AVAILABLE"
        assert "NoSuchCalculator" in states["status"]["error_message"]
    finally:
        file.write_text(good)
    app.deploy(plan_for(graphs, min_replicas=2, max_replicas=2))
    until(lambda: not app.status()[1], seconds=30)


def test_changed_options_replace_replicas_without_a_lost_request(app: Ray, graphs: Path) -> None:
    before = app.servers()
    with Load(app.url, CLIENTS) as load:
        until(lambda: load.count()[DONE] >= CLIENTS)
        app.deploy(plan_for(graphs, min_replicas=2, max_replicas=2, cpus=0.5, options={"max_queue": "100"}))
        until(lambda: not before & app.servers(), seconds=150)
        time.sleep(1)
    assert load.count().keys() == {DONE}, load.failed()


def test_another_affinity_is_deployed_without_a_lost_request(app: Ray, graphs: Path) -> None:
    before = app.servers()
    with Load(app.url, CLIENTS) as load:
        until(lambda: load.count()[DONE] >= CLIENTS)
        app.deploy(plan_for(graphs, min_replicas=2, max_replicas=2, cpus=0.5, affinity="session"))
        until(lambda: not before & app.servers(), seconds=150)
        time.sleep(1)
    assert load.count().keys() == {DONE}, load.failed()


def test_a_node_that_is_lost_is_made_up_for(app: Ray) -> None:
    before = app.servers()
    homes = {parent(parent(pid)) for pid in before}
    lost = next(node for node in app.nodes if raylet(node) in homes)
    with Load(app.url, CLIENTS) as load:
        until(lambda: load.count()[DONE] >= CLIENTS)
        killed = time.monotonic()
        app.cluster.remove_node(lost, allow_graceful=False)
        app.nodes.remove(lost)
        until(
            lambda: len(app.servers()) == 2 and app.servers() != before and app.replicas() == 2, seconds=120
        )
        time.sleep(1)
    app.add_node()
    failed = load.failed()
    assert len(failed) <= 2 * CLIENTS, failed  # processes outlive their raylet by a second
    assert all(one.began < killed + 3 for one in failed)

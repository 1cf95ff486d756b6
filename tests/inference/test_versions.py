"""Versions of a plain model that come and go while requests run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.access.keys import entry_text
from tests.conftest import until
from tests.inference.conftest import Site, start_site

ONE = {"name": "x", "shape": [1, 10], "datatype": "FP32", "data": [1.0] * 10}
TWO = {**ONE, "name": "y"}
KEY = "the-key-of-team-one"


@pytest.fixture(scope="module")
def moving(plain_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("versions")
    shutil.copytree(plain_models / "two/1", root / "m/1")
    shutil.copytree(plain_models / "two/1", root / "m/2")
    (root / "m/old").mkdir()
    entries: list[dict[str, Any]] = [
        {"name": "m"},
        {"name": "all", "base_path": "m", "model_version_policy": {"all": {}}},
        {"name": "some", "base_path": "m", "model_version_policy": {"specific": {"versions": [1, 4]}}},
        {"name": "bad", "base_path": "m", "model_version_policy": {"latest": {}, "all": {}}},
        {"name": "file", "base_path": str(root / "m/1/model.xml")},
        {"name": "flat", "base_path": "m/1"},
    ]
    made = start_site(root, entries, "--file_system_poll_wait_seconds", "0.2")
    yield made
    made.server.stop()


def version_of(site: Site, model: str, version: str = "") -> str:
    path = f"{model}/versions/{version}" if version else model
    answer = httpx.post(f"{site.url}/v2/models/{path}/infer", json={"inputs": [ONE, TWO]}, timeout=230)
    return answer.json().get("model_version", answer.json().get("error"))


def until_states(site: Site, model: str, wanted: dict[str, str]) -> None:
    until(
        lambda: {version: state for version, (state, _) in site.states(model).items()} == wanted,
        lambda: site.states(model),
    )


def test_policies(moving: Site) -> None:
    assert {v: s for v, (s, _) in moving.states("m").items()} == {"2": "AVAILABLE"}
    assert version_of(moving, "m") == "2"
    assert "has only version 2, not '1'" in version_of(moving, "m", "1")
    assert (version_of(moving, "all"), version_of(moving, "all", "1")) == ("2", "1")
    assert httpx.get(f"{moving.url}/v2/models/all").json()["versions"] == ["1", "2"]
    assert version_of(moving, "some") == "1"
    state, why = moving.states("some")["4"]
    assert (state, "has no version 4; it has 1, 2" in why) == ("LOADING", True)
    assert "expected exactly one of latest, specific and all" in moving.states("bad")["1"][1]
    assert version_of(moving, "file") == version_of(moving, "flat") == "1"


def test_a_new_version_replaces_the_old_one_and_no_request_fails(moving: Site) -> None:
    seen: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            seen.append(version_of(moving, "m"))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        source = moving.root / "m/2"
        (moving.root / "m/3").mkdir()
        (moving.root / "m/3/model.xml").write_text("<net")  # half a copy: 2 must go on
        until(lambda: moving.states("m").get("3", ("", ""))[1] not in ("", "OK"))
        assert moving.states("m")["2"][0] == "AVAILABLE"
        shutil.copytree(source, moving.root / "m/3", dirs_exist_ok=True)
        until_states(moving, "m", {"2": "END", "3": "AVAILABLE"})
        until_states(moving, "all", {"1": "AVAILABLE", "2": "AVAILABLE", "3": "AVAILABLE"})
        shutil.rmtree(moving.root / "m/3")
        until_states(moving, "m", {"2": "AVAILABLE", "3": "END"})
    finally:
        stop.set()
        asking.join()
    assert {*seen} == {"2", "3"}, {*seen}
    assert seen[0] == seen[-1] == "2"


def test_repository_calls(moving: Site) -> None:
    def rows(**body: Any) -> list[tuple[str, str, str]]:
        found = httpx.post(f"{moving.url}/v2/repository/index", json=body).json()
        return [(r["name"], r["version"], r["state"]) for r in found if r["name"] == "all"]

    assert ("all", "1", "READY") in rows(ready=True)
    assert httpx.post(f"{moving.url}/v2/repository/models/all/unload").status_code == 200
    assert rows(ready=True) == []
    assert "not served" in version_of(moving, "all") or "loaded" in version_of(moving, "all")
    assert httpx.post(f"{moving.url}/v2/repository/models/all/load", timeout=230).status_code == 200
    assert rows(ready=True) == [("all", "1", "READY"), ("all", "2", "READY")]


def test_options_change_by_reload(moving: Site) -> None:
    file = moving.root / "config.json"
    config = json.loads(file.read_text())
    (entry,) = (e["config"] for e in config["model_config_list"] if e["config"]["name"] == "flat")
    entry["batch_size"] = "2"
    file.write_text(json.dumps(config))
    assert httpx.post(f"{moving.url}/v1/config/reload", timeout=230).status_code in (201, 412)
    assert httpx.get(f"{moving.url}/v2/models/flat").json()["inputs"][0]["shape"] == [2, 10]
    assert "expected FP32 [2,10]" in version_of(moving, "flat")


def test_a_wrong_option_is_said_by_reload(moving: Site, subtests: pytest.Subtests) -> None:
    """Not swallowed because a version of before is served, nor taken for a folder that has gone."""
    file = moving.root / "config.json"
    before = file.read_text()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"shape": "(1,x)"}, "shape: expected one as (1,3,200:500,-1)"),
        ({"batch_size": None}, "batch_size: expected a number"),
        ({"nireq": -1}, "nireq: expected 0 to"),
        ({"model_version_policy": {"newest": {}}}, "model_version_policy: expected exactly one of"),
        ({"base_path": ""}, "graph.pbtxt does not exist"),
    ]
    for option, said in cases:
        with subtests.test(str(option)):
            config = json.loads(before)
            (entry,) = (e["config"] for e in config["model_config_list"] if e["config"]["name"] == "m")
            entry |= option
            file.write_text(json.dumps(config))
            answer = httpx.post(f"{moving.url}/v1/config/reload", timeout=230)
            assert (answer.status_code, said in answer.json()["error"]) == (412, True), answer.text
            assert version_of(moving, "m") == "2"
    file.write_text(before)
    httpx.post(f"{moving.url}/v1/config/reload", timeout=230)


def test_a_killed_engine_costs_at_most_one_clear_error_each(moving: Site) -> None:
    body = {"inputs": [ONE, TWO]}
    url = f"{moving.url}/v2/models/some/infer"
    pids = set(moving.server.children("ovserve.engine.worker.main"))
    found: list[httpx.Response] = []

    def ask() -> None:
        with httpx.Client(timeout=230) as client:
            for _ in range(60):
                found.append(client.post(url, json=body))

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for one in asking:
        one.start()
    time.sleep(0.2)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for one in asking:
        one.join()
    assert len(found) == 240
    wrong = [answer for answer in found if answer.status_code != 200]
    assert all(answer.status_code == 503 and answer.json()["error"] for answer in wrong), wrong
    assert version_of(moving, "some") == "1"
    assert not pids & set(moving.server.children("ovserve.engine.worker.main"))


def test_a_key_sees_its_models_only(plain_models: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(entry_text("one", KEY) + 'models = ["dummy"]\n')
    entries: list[dict[str, Any]] = [
        {"name": name, "base_path": str(plain_models / name)} for name in ("dummy", "two")
    ]
    site = start_site(tmp_path, entries, "--api_keys_file", str(keys))
    try:
        headers = {"Authorization": f"Bearer {KEY}"}
        infer = {"inputs": [{**ONE, "name": "b"}]}
        assert httpx.post(f"{site.url}/v2/models/dummy/infer", json=infer, headers=headers).status_code == 200
        for path in ("/v2/models/two", "/v1/models/two/metadata", "/v2/models/two/versions/1"):
            assert httpx.get(site.url + path, headers=headers).status_code == 404
        assert httpx.get(f"{site.url}/v2/models/dummy").status_code == 401
        assert httpx.get(f"{site.url}/v1/config", headers=headers).json().keys() == {"dummy"}
    finally:
        site.server.stop()

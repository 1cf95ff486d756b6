"""What a server of several graphs does at its start, and the reloads that only the process has."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import jsonschema_rs
import pytest

from ovserve.cli import main
from tests.conftest import ROOT, script_graph, start_process
from tests.reload.site import HANGUP, ON_REQUEST, TRIGGERS, script, site


async def test_sighup_reloads(tmp_path: Path) -> None:
    async with site(tmp_path / "site", HANGUP, x="old") as here, here.clients("x") as clients:
        here.write_graph("x", script("new"))
        await here.fire()
        await here.until_version("x", "new")
        await clients.round()
    assert {*clients.versions("x")} == {"old", "new"}


async def test_one_of_several_fails_and_the_others_are_served(tmp_path: Path) -> None:
    good, bad = (
        script_graph(tmp_path / "good", script("v1")),
        script_graph(tmp_path / "bad", '{"load": "exit"}'),
    )
    (tmp_path / "empty").mkdir()
    server = await asyncio.to_thread(
        start_process, "--graphs_dir", str(tmp_path), "--response_store", "off", *ON_REQUEST
    )
    try:
        async with httpx.AsyncClient(base_url=server.url) as client:
            status = (await client.get("/v1/config")).json()
            assert list(status) == [bad.name, good.name]
            (failed,) = status["bad"]["model_version_status"]
            assert (failed["state"], failed["status"]["error_code"]) == ("LOADING", "FAILED_PRECONDITION")
            assert "exit status 13" in failed["status"]["error_message"]
            assert (await client.get("/v2/health/ready")).status_code == 200
            answer = await client.post("/v1/config/reload")
            assert (answer.status_code, "exit status 13" in answer.json()["error"]) == (412, True)
        assert "bad  NOT SERVED: " in "".join(server.output)
        assert re.search(r"not served: \S+/empty has no graph\.pbtxt", "".join(server.errors))
    finally:
        assert await asyncio.to_thread(server.stop) == 0


async def test_a_configuration_that_breaks_leaves_all_as_it_was(tmp_path: Path) -> None:
    async with site(tmp_path / "site", TRIGGERS["rest"], x="old") as here:
        (here.root / "config.json").write_text('{\n"model_config_lst": []}')
        answer = await here.http.post("/v1/config/reload")
        assert answer.status_code == 412
        assert "config.json:2: the file: unknown key 'model_config_lst'" in answer.json()["error"]
        assert (await here.ask("x", stream=True)).version == "old"
        told = await here.http.get("/v1/config")
        assert "config.json:2: the file: unknown key" in told.headers["x-ovserve-configuration-error"]
        assert "\novserve_configuration_error 1\n" in (await here.http.get("/metrics")).text
        here.configure(x="x")
        assert (await here.http.post("/v1/config/reload")).status_code == 200
        assert "x-ovserve-configuration-error" not in (await here.http.get("/v1/config")).headers
        assert "\novserve_configuration_error 0\n" in (await here.http.get("/metrics")).text


async def test_every_answer_of_a_reload_is_in_the_document(tmp_path: Path) -> None:
    async with site(tmp_path / "site", TRIGGERS["rest"], x="old") as here:
        document = (await here.http.get("/openapi.json")).json()
        told = document["paths"]["/v1/config/reload"]["post"]["responses"]

        async def reload(expected: int) -> None:
            answer = await here.http.post("/v1/config/reload")
            schema = told[str(expected)]["content"]["application/json"]["schema"]
            assert answer.status_code == expected
            jsonschema_rs.validator_for(document | schema).validate(answer.json())

        await reload(200)
        here.write_graph("x", script("new"))
        await reload(201)
        graph = here.root / "x/graph.pbtxt"
        graph.write_text(graph.read_text() + "node {")
        await reload(412)
        status = (await here.http.get("/v1/config")).json()
        schema = document["paths"]["/v1/config"]["get"]["responses"]["200"]["content"]["application/json"]
        jsonschema_rs.validator_for(document | schema["schema"]).validate(status)


async def test_reloads_at_once_are_one(tmp_path: Path) -> None:
    async with site(tmp_path / "site", TRIGGERS["rest"], x="v0") as here:
        here.write_graph("x", script("v1", load_seconds=0.3))
        answers = await asyncio.gather(*(here.http.post("/v1/config/reload") for _ in range(20)))
        assert 201 in {a.status_code for a in answers} <= {200, 201}  # 200: those of the next reload
        assert here.loads("x") == 2
        assert (await here.ask("x", stream=True)).version == "v1"


async def test_replace_ends_the_old_engine_first(tmp_path: Path) -> None:
    """For machines that hold one model: requests are told to come again, and never are there two engines."""
    async with site(tmp_path / "site", TRIGGERS["rest"], "--reload_policy", "replace", x="old") as here:
        async with here.clients("x") as clients:
            graph = here.write_graph("x", script("new", load="hang"))
            reload = asyncio.create_task(here.fire())
            most = 0
            while not reload.done():
                most = max(most, len(here.engines()))
                if any(answer.status == 503 for answer in clients.answers):
                    (graph / "go").touch()
                await asyncio.sleep(0.01)
            await clients.round()
        assert most == 1
        assert {a.version for a in clients.of("x") if a.status == 200} == {"old", "new"}
        refused = [a for a in clients.of("x") if a.status != 200]
        assert refused
        assert all(a.status == 503 and "is loading" in a.text for a in refused)


async def test_what_outlasts_the_drain_timeout_ends_with_an_error(tmp_path: Path) -> None:
    flags = ("--reload_drain_timeout", "0.3")
    async with site(tmp_path / "site", TRIGGERS["rest"], *flags, x="old") as here:
        here.write_graph("x", json.dumps({"step_seconds": 0.05, "replies": [{"text": "w ", "repeat": 0}]}))
        await here.fire()
        body = {"model": "x", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        async with here.http.stream("POST", "/v3/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            here.write_graph("x", script("new"))
            await here.fire()
            rest = [line async for line in lines]
        assert any('"error"' in line for line in rest)
        assert "data: [DONE]" not in rest
        await here.until_engines(1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--graphs_dir", "g", "--config_path", "c"], "--config_path and --graphs_dir exclude each other"),
        (["--model_name", "m", "--config_path", "c"], "--model_name and --config_path exclude each other"),
        (["--graphs_dir", "g", "--file_system_poll_wait_seconds", "-1"], "--file_system_poll_wait_seconds"),
        (["--graphs_dir", "g", "--reload_policy", "x"], "expected one of beside, replace"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", *arguments])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--config_path", "/nowhere/config.json"], "/nowhere/config.json: cannot be read: No such file"),
        (["--graphs_dir", "/nowhere"], "/nowhere: cannot be read: No such file"),
        (["--graphs_dir", "graphs", "--cache_dir", "/proc/cache"], "--cache_dir: cannot make /proc/cache: "),
    ],
)
def test_a_start_that_cannot_be(arguments: list[str], says: str) -> None:
    command = [sys.executable, "-m", "ovserve", "serve", "--rest_port", "0", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert (done.returncode, says in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr


def monitoring(directory: Path, **metrics: object) -> list[str]:
    """The options of a server whose configuration has this section."""
    script_graph(directory / "m", script("v1"))
    section = {"metrics": {"enable": True, **metrics}}
    (directory / "config.json").write_text(
        json.dumps({"mediapipe_config_list": [{"name": "m"}], "monitoring": section})
    )
    return ["--config_path", str(directory / "config.json"), "--response_store", "off", *ON_REQUEST]


@pytest.mark.parametrize(
    ("metrics", "families"),
    [
        ({"enable": False}, None),
        ({"metrics_list": ["ovms_responses", "ovms_streams"]}, {"ovms_responses", "ovms_streams"}),
    ],
)
async def test_the_section_on_metrics_counts(
    metrics: dict[str, object], families: set[str] | None, tmp_path: Path
) -> None:
    flags = monitoring(tmp_path, **metrics)
    server = await asyncio.to_thread(start_process, *flags, "--metrics_list", "ovms_graph_error")
    try:
        answer = await asyncio.to_thread(httpx.get, f"{server.url}/metrics")
        if families is None:
            assert (answer.status_code, "metrics" in answer.text) == (404, True)
        else:
            assert {*re.findall(r"^# TYPE (\S+)", answer.text, re.MULTILINE)} == families
            assert "--metrics_list: the list of the configuration file stands in for it" in "".join(
                server.errors
            )
    finally:
        assert await asyncio.to_thread(server.stop) == 0


def test_a_metric_that_does_not_exist_ends_the_start(tmp_path: Path) -> None:
    flags = monitoring(tmp_path, metrics_list=["ovms_respones"])
    command = [sys.executable, "-m", "ovserve", "serve", "--rest_port", "0", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 1
    assert "'ovms_respones' is not a known metric family (did you mean ovms_responses?)" in done.stderr
    assert "Traceback" not in done.stderr

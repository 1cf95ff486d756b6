"""API keys over HTTP: every path, every dialect's 401 and 429, and what a key may see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ovserve.access import Guard
from ovserve.access.keys import entry_text
from ovserve.errors import LoadError
from ovserve.http.middleware import OPEN
from ovserve.http.routes.describe import routes_of
from tests.conftest import eventually, script_graph
from tests.http.conftest import Running, running

SCRIPT = json.dumps(
    {
        "step_seconds": 0.01,
        "replies": [{"match": "endless", "text": "w ", "repeat": 0}, {"text": "one two three"}],
    }
)
A, B, OTHER = "key-of-team-a-0123", "key-of-team-b-0123", "key-for-other-models"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def chat(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
async def guarded(tmp_path: Path) -> Any:
    keys = tmp_path / "keys.toml"
    entries = [
        entry_text("a", A) + "requests_per_minute = 3\ntokens_per_minute = 1000\n",
        entry_text("b", B) + "concurrency = 1\n",
        entry_text("other", OTHER) + "models = ['x*']\n",
    ]
    keys.write_text("".join(entries))
    async with running(script_graph(tmp_path / "graph", SCRIPT), Guard("the-only-admin-key", keys)) as it:
        yield it


@pytest.fixture
async def http(guarded: Running) -> Any:
    async with httpx.AsyncClient(base_url=guarded.url, timeout=230) as client:
        yield client


async def test_every_path_but_those_of_probes_needs_a_key(guarded: Running, http: httpx.AsyncClient) -> None:
    from ovserve.http.app import build_app
    from ovserve.http.connections import RestLimits

    table = routes_of(build_app(guarded.manager, RestLimits(1, 1)))
    paths = {pattern.pattern.replace("\\", "") for _, pattern in table}
    assert set(OPEN) <= paths
    checked = 0
    for method, pattern in table:
        path = pattern.pattern.replace("\\", "")
        if "(" in path:
            path = "/v3/responses/x" if "responses" in path else "/v3/chat/completions"
            path = "/v3/models/m" if "models" in pattern.pattern else path
        if path in OPEN:
            assert (await http.request(method, path)).status_code == 200, path
        else:
            answer = await http.request(method, path)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="ovserve"'
            checked += 1
    assert checked > 30
    assert (await http.get("/no/such/path")).status_code == 401, "nobody can map what is there"


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/v3/chat/completions", {}, {"type": "invalid_request_error", "code": "invalid_api_key"}),
        ("/v1/messages", {"x-api-key": "no"}, {"type": "authentication_error"}),
        ("/chat/completions?api-version=2024-05-01-preview", {"api-key": "no"}, {"code": "unauthorized"}),
    ],
)
async def test_401_in_the_words_of_each_dialect(
    http: httpx.AsyncClient, path: str, headers: dict[str, str], expected: dict[str, str]
) -> None:
    answer = await http.post(path, json=chat(max_tokens=5), headers=headers)
    assert answer.status_code == 401
    wrong = ', error="invalid_token"' if headers else ""
    assert answer.headers["WWW-Authenticate"] == f'Bearer realm="ovserve"{wrong}'
    assert answer.headers["x-should-retry"] == "false", "Claude Code repeats a 401 for minutes"
    assert ("Incorrect API key provided" in answer.text) == bool(headers), "LiteLLM tells a 401 by it"
    body = answer.json()
    told = body["error"] if isinstance(body["error"], dict) and "type" in body["error"] else body
    assert expected.items() <= told.items()


async def test_each_dialects_own_header_lets_in(http: httpx.AsyncClient) -> None:
    for path, headers in (
        ("/v3/chat/completions", bearer(B)),
        ("/v1/messages", {"x-api-key": B}),
        ("/chat/completions?api-version=2024-05-01-preview", {"api-key": B}),
    ):
        answer = await http.post(path, json=chat(max_tokens=5), headers=headers)
        assert answer.status_code == 200, answer.text


async def test_the_real_clients_raise_their_own_error(guarded: Running) -> None:
    async with openai.AsyncOpenAI(base_url=guarded.url + "/v3", api_key="no", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    async with anthropic.AsyncAnthropic(base_url=guarded.url, api_key="no", max_retries=0) as claude:
        with pytest.raises(anthropic.AuthenticationError):
            await claude.messages.create(
                model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
            )


async def test_429_tells_when_to_come_again_and_what_is_left(http: httpx.AsyncClient) -> None:
    left = []
    for _ in range(3):
        answer = await http.post("/v3/chat/completions", json=chat(), headers=bearer(A))
        assert answer.status_code == 200
        left.append(answer.headers["x-ratelimit-remaining-requests"])
    assert left == ["2", "1", "0"]
    used = sum(answer.json()["usage"][kind] for kind in ("prompt_tokens", "completion_tokens"))
    assert 1000 - int(answer.headers["x-ratelimit-remaining-tokens"]) in range(3 * used - 60, 3 * used + 1)

    answer = await http.post("/v3/chat/completions", json=chat(), headers=bearer(A))
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    milliseconds = int(answer.headers["retry-after-ms"])
    assert 10_000 < milliseconds <= 20_000
    assert int(answer.headers["Retry-After"]) == -(-milliseconds // 1000)
    assert (await http.get("/v3/models", headers=bearer(A))).status_code == 200, "looking is free"

    refused = await http.post("/v1/messages", json=chat(max_tokens=5), headers={"x-api-key": A})
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")


async def test_one_at_a_time_and_the_slot_comes_back_when_the_client_leaves(
    guarded: Running, http: httpx.AsyncClient
) -> None:
    body = chat("endless", stream=True)
    async with http.stream("POST", "/v3/chat/completions", json=body, headers=bearer(B)) as stream:
        async for _ in stream.aiter_lines():
            break
        second = await http.post("/v3/chat/completions", json=chat(), headers=bearer(B))
        assert second.status_code == 429
        assert second.headers["Retry-After"] == "1", "no answer of this key has ended yet"
        assert (await http.post("/v3/chat/completions", json=chat(), headers=bearer(A))).status_code == 200
    await eventually(lambda: guarded.engine.stats().running == 0)
    answer = await http.post("/v3/chat/completions", json=chat(), headers=bearer(B))
    assert answer.status_code == 200


async def test_a_model_that_a_key_may_not_use_does_not_exist_for_it(http: httpx.AsyncClient) -> None:
    for method, path, body in (
        ("POST", "/v3/chat/completions", chat()),
        ("POST", "/v3/responses", {"model": "m", "input": "hi"}),
        ("POST", "/v1/messages", chat(max_tokens=5)),
        ("POST", "/v3/tokenize", {"model": "m", "text": "hi"}),
        ("POST", "/v3/tokenize", {"text": "hi"}),
        ("GET", "/v3/models/m", None),
        ("GET", "/v3/capabilities?model=m", None),
        ("GET", "/v3/tokenizer_info", None),
        ("GET", "/info", None),
    ):
        answer = await http.request(method, path, json=body, headers=bearer(OTHER))
        assert answer.status_code == 404, (path, answer.text)
        assert "served: none" in answer.text or "'m'" not in answer.text.partition("served:")[2]
    for path in ("/v3/models", "/v3/capabilities"):
        listed = (await http.get(path, headers=bearer(OTHER))).json()
        assert listed["data"] == [], path


async def test_stored_responses_are_their_owners(tmp_path: Path) -> None:
    """With a real store and real keys; the rules of ownership are tests/serving's."""
    from aiohttp import web

    from ovserve.calculators.shipped import MODULES
    from ovserve.graph import Registry
    from ovserve.http.app import build_app, build_runner
    from ovserve.http.connections import RestLimits
    from ovserve.services.responses.service import ResponsesService
    from ovserve.services.responses.store import ResponseStore
    from ovserve.serving.manager import Manager

    keys = tmp_path / "keys.toml"
    keys.write_text(entry_text("a", A) + entry_text("b", B))
    limits = RestLimits(1 << 20, 2.0)
    manager = Manager(Registry(MODULES))
    service = ResponsesService(manager, ResponseStore(tmp_path / "r.db", ttl=100, max_bytes=1 << 26))
    runner = build_runner(build_app(manager, limits, service, Guard("", keys)), limits)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await manager.load("m", script_graph(tmp_path / "graph", SCRIPT))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{runner.addresses[0][1]}") as http:
            body = {"model": "m", "input": "hi", "background": True}
            made = (await http.post("/v3/responses", json=body, headers=bearer(A))).json()
            path = f"/v3/responses/{made['id']}"
            assert (await http.get(path, headers=bearer(A))).status_code == 200
            for method, at in (("GET", path), ("DELETE", path), ("POST", path + "/cancel")):
                assert (await http.request(method, at, headers=bearer(B))).status_code == 404
            follow = {"model": "m", "input": "more", "previous_response_id": made["id"]}
            assert (await http.post("/v3/responses", json=follow, headers=bearer(B))).status_code in (
                400,
                404,
            )
    finally:
        await service.stop()
        await manager.stop()
        await runner.cleanup()
        await service.close()


async def test_a_key_never_reaches_the_graph_nor_the_log(
    guarded: Running, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    servable = guarded.manager.servables[0]
    start = servable.start
    servable.start = lambda payload: seen.append(payload) or start(payload)  # type: ignore
    with caplog.at_level("DEBUG"):
        headers = {**bearer(B), "api-key": B, "x-api-key": B}
        await http.post("/v3/chat/completions", json=chat("tell-nobody"), headers=headers)
        await http.post("/v3/chat/completions", json=chat("tell-nobody"), headers=bearer("wrong-key"))
    assert seen
    assert B not in str(seen)
    assert caplog.records
    for secret in (B, "wrong-key", "tell-nobody"):
        assert secret not in caplog.text


async def test_only_an_admin_key_is_told_what_is_wrong_with_the_configuration(
    guarded: Running, http: httpx.AsyncClient
) -> None:
    guarded.manager.fault = "/srv/config.json:1: one\n" + "x" * 5000
    told = [
        (await http.get("/v1/config", headers=bearer(key))).headers.get("x-ovserve-configuration-error", "")
        for key in (A, "the-only-admin-key")
    ]
    assert told[0] == ""
    assert told[1].startswith("/srv/config.json:1: one xxx")
    assert len(told[1]) == 2000


async def test_metrics_show_a_key_the_graphs_it_may_use(http: httpx.AsyncClient) -> None:
    for key, shown in ((A, True), ("the-only-admin-key", True), (OTHER, False)):
        answer = await http.get("/metrics", headers=bearer(key))
        assert answer.status_code == 200
        assert ('name="m"' in answer.text) is shown
        assert "process_resident_memory_bytes" in answer.text


async def test_only_an_admin_key_changes_what_is_served(http: httpx.AsyncClient) -> None:
    refused = await http.post("/v1/config/reload", headers=bearer(A))
    assert refused.status_code == 403
    assert "admin = true" in refused.json()["error"]
    assert (await http.post("/v1/config/reload", headers=bearer("the-only-admin-key"))).status_code == 200
    assert list((await http.get("/v1/config", headers=bearer(A))).json()) == ["m"]
    assert (await http.get("/v1/config", headers=bearer(OTHER))).json() == {}


async def test_only_an_admin_is_told_of_files(
    guarded: Running, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Of a change that failed, and of a graph that never was served."""
    (tmp_path / "graph/graph.pbtxt").write_text("nonsense")
    for name in ("m", "never"):
        with pytest.raises(LoadError):
            await guarded.manager.load(name, tmp_path / "graph")
    shown = {}
    for key in ("the-only-admin-key", A):
        listed = (await http.get("/v3/models", headers=bearer(key))).json()["data"]
        states = (await http.get("/v1/config", headers=bearer(key))).json()
        told = {name: m["model_version_status"][0]["status"] for name, m in states.items()}
        assert {each["id"]: each["reason"] for each in listed} == {
            n: t["error_message"] for n, t in told.items()
        }
        assert {t["error_code"] for t in told.values()} == {"FAILED_PRECONDITION"}
        shown[key] = {name: t["error_message"] for name, t in told.items()}
    assert all(str(tmp_path) in reason for reason in shown["the-only-admin-key"].values())
    assert shown[A] == {
        "m": "the last change was not loaded",
        "never": "it could not be loaded, or its engine has failed",
    }

"""The console's calls without a browser: who may make them, what each key sees, files and their headers."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.access.keys import entry_text
from ovserve.console.console import STATIC
from tests.conftest import Server, start_process
from tests.console.stage import five_nodes, script

ADMIN, ALICE, BOB = "ovs-admin-0123456789", "ovs-alice-0123456789", "ovs-bob-0123456789"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "the secret of alice"}]}


def said(text: str) -> dict[str, Any]:
    return CHAT | {"messages": [{"role": "user", "content": text}]}


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keyed")
    five_nodes(folder / "graphs/m")
    five_nodes(folder / "graphs/private")
    entries = [entry_text("admin", ADMIN) + "admin = true\n"]
    entries += [entry_text(name, key) + 'models = ["m"]\n' for name, key in (("alice", ALICE), ("bob", BOB))]
    (folder / "keys.toml").write_text("\n".join(entries))
    server = start_process(
        "--graphs_dir", str(folder / "graphs"), "--api_keys_file", str(folder / "keys.toml")
    )
    yield server
    server.stop()


@pytest.fixture(scope="module")
def open_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("open")
    five_nodes(folder / "m")
    server = start_process("--graphs_dir", str(folder), "--file_system_poll_wait_seconds", "0")
    yield server, folder / "m/graph.pbtxt"
    server.stop()


def first_event(url: str, **options: Any) -> Any:
    with httpx.stream("GET", url, timeout=230, **options) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: "):
                return json.loads(line.removeprefix("data: "))
    raise AssertionError("no event")


# ---- files


def test_a_browser_is_led_to_the_console_and_a_probe_is_not(open_: tuple[Server, Path]) -> None:
    url = open_[0].url
    browser = httpx.get(url, headers={"Accept": "text/html,*/*"})
    assert (browser.status_code, browser.headers["location"]) == (302, "console/")
    assert httpx.get(url).text == "Ollama is running"
    assert httpx.get(f"{url}/console").headers["location"] == "console/"


def test_files_need_no_key_and_are_confined(keyed: Server) -> None:
    page = httpx.get(f"{keyed.url}/console/")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "access-control-allow-origin" not in page.headers
    again = httpx.get(f"{keyed.url}/console/", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304
    assert httpx.get(f"{keyed.url}/console/vendor/ui.js").headers["content-encoding"] == "gzip"
    for path in ("../console.py", "%2e%2e/console.py", "nothing.js", "js", "js/", "x.py"):
        assert httpx.get(f"{keyed.url}/console/{path}").status_code in (401, 404), path


def test_off_removes_it(tmp_path: Path) -> None:
    five_nodes(tmp_path / "m")
    server = start_process("--graphs_dir", str(tmp_path), "--console", "off")
    try:
        for path in ("/console", "/console/", "/console/api/whoami"):
            assert httpx.get(server.url + path).status_code == 404
        assert httpx.get(server.url, headers={"Accept": "text/html"}).text == "Ollama is running"
    finally:
        server.stop()


def test_vendored_files_are_those_that_are_listed() -> None:
    vendor = STATIC / "vendor"
    listed = json.loads((vendor / "vendor.json").read_text())
    assert {p.name for p in vendor.iterdir()} == {*listed, "vendor.json", "LICENSES.txt"}
    texts = (vendor / "LICENSES.txt").read_text()
    for name, about in listed.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == about["sha256"], name
        for package, facts in about["packages"].items():
            assert facts["license"] in ("MIT", "BSD-3-Clause", "Apache-2.0"), package
            assert f"{package} {facts['version']} ({facts['license']})" in texts


def test_own_modules_import_only_what_is_here() -> None:
    for path in (STATIC / "js").rglob("*.js"):
        text = path.read_text()
        for line in text.splitlines():
            if 'from "' in line and line.lstrip().startswith(("import", "export", "}")):
                name = line.split('from "')[1].split('"')[0]
                assert name.startswith("."), f"{path}: {name}"
                assert (path.parent / name).resolve().is_file(), f"{path}: {name}"
        assert text.count("\n") <= 500, f"{path} is too long"


# ---- who may call


def test_a_call_needs_a_key_where_keys_are(keyed: Server) -> None:
    assert httpx.get(f"{keyed.url}/console/api/whoami").status_code == 401
    mine = httpx.get(f"{keyed.url}/console/api/whoami", headers=headers(ALICE)).json()
    assert (mine["name"], mine["admin"], mine["write"], mine["capture"]) == ("alice", False, False, "off")


def test_only_administrators_see_the_server(keyed: Server) -> None:
    api = f"{keyed.url}/console/api"
    calls = [
        ("GET", "/server", None),
        ("GET", "/logs", None),
        ("GET", "/capture", None),
        ("POST", "/capture", {"minutes": 1}),
        ("POST", "/check", {"name": "m", "text": ""}),
        ("PUT", "/graphs/m", {"text": ""}),
    ]
    for method, path, body in calls:
        got = httpx.request(method, api + path, headers=headers(ALICE), json=body)
        assert got.status_code == 403, path
    assert httpx.get(f"{api}/server", headers=headers(ADMIN)).status_code == 200
    secrets = httpx.get(f"{api}/server", headers=headers(ADMIN)).text
    assert "sha256" not in secrets
    assert ALICE not in secrets


def test_one_key_sees_nothing_of_another(keyed: Server) -> None:
    api = f"{keyed.url}/console/api"
    assert httpx.post(f"{api}/capture", json={"minutes": 5}, headers=headers(ADMIN)).json()["active"]
    sent = httpx.post(
        f"{keyed.url}/v3/chat/completions", json=CHAT, headers=headers(ALICE) | {"x-request-id": "of-alice"}
    )
    assert sent.status_code == 200
    own = httpx.get(f"{api}/requests/of-alice", headers=headers(ALICE)).json()
    assert "the secret of alice" in json.dumps(own["capture"])
    assert httpx.get(f"{api}/requests/of-alice", headers=headers(ADMIN)).status_code == 200
    hidden = httpx.get(f"{api}/requests/of-alice", headers=headers(BOB))
    unknown = httpx.get(f"{api}/requests/of-nobody", headers=headers(BOB))
    assert hidden.status_code == unknown.status_code == 404
    assert "alice" not in hidden.text.replace("of-alice", "")
    listed = first_event(f"{api}/requests", headers=headers(BOB))
    assert listed["requests"] == []
    assert listed["captured"] == []
    # An id is the client's choice: one that another key has used opens nothing.
    body = CHAT | {"messages": [{"role": "user", "content": "of bob"}]}
    taken = headers(BOB) | {"x-request-id": "of-alice"}
    assert httpx.post(f"{keyed.url}/v3/chat/completions", json=body, headers=taken).status_code == 200
    assert "secret" not in httpx.get(f"{api}/requests/of-alice", headers=headers(BOB)).text
    still = httpx.get(f"{api}/requests/of-alice", headers=headers(ALICE)).text
    assert "the secret of alice" in still
    assert "of bob" not in still
    everything = first_event(f"{api}/requests", headers=headers(ADMIN))
    assert "of-alice" in everything["captured"]


def test_packets_and_errors_are_for_administrators(keyed: Server) -> None:
    url = f"{keyed.url}/console/api/graphs/m/live"
    with httpx.stream("GET", url, headers=headers(ADMIN), timeout=230) as watching:
        lines = watching.iter_lines()
        next(lines)
        httpx.post(f"{keyed.url}/v3/chat/completions", json=said("fail"), headers=headers(ALICE))
        shown = first_event(url, headers=headers(ADMIN))
        assert shown["packets"]["generate"]["type"] == "GenerateRequest"
        assert shown["errors"]
        hidden = first_event(url, headers=headers(BOB))
    assert hidden["errors"] == {}
    assert "packets" not in hidden


def test_models_that_a_key_may_not_use_do_not_exist_for_it(keyed: Server) -> None:
    api = f"{keyed.url}/console/api"
    names = [m["id"] for m in httpx.get(f"{api}/models", headers=headers(ALICE)).json()["models"]]
    assert names == ["m"]
    body = {"model": "private", "endpoint": "chat/completions", "body": CHAT}
    assert httpx.post(f"{api}/render", json=body, headers=headers(ALICE)).status_code == 404
    for path in ("/graphs/private", "/graphs/private/live"):
        assert httpx.get(api + path, headers=headers(ALICE)).status_code == 404
    mine = httpx.get(f"{api}/graphs/m", headers=headers(ALICE)).json()
    assert len(mine["graph"]["nodes"]) == 5
    assert "text" not in mine
    assert "path" not in mine
    assert all(node["options"] == [] for node in mine["graph"]["nodes"])


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost:80"}, 200),
    ],
)
def test_pages_of_other_sites_are_rejected(
    open_: tuple[Server, Path], given: dict[str, str], status: int
) -> None:
    got = httpx.post(f"{open_[0].url}/console/api/capture", json={"minutes": 0}, headers=given)
    assert got.status_code == status, got.text


@pytest.mark.parametrize("path", ["/v1/config/reload", "/v2/repository/models/m/load", "/v2/logging"])
def test_administration_is_closed_to_other_sites(open_: tuple[Server, Path], path: str) -> None:
    """Without keys the server trusts everyone, and a browser would let any page post to it."""
    url = open_[0].url + path
    assert httpx.post(url, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert httpx.post(url, headers={"Origin": "http://evil.example"}).status_code == 403
    assert httpx.post(url).status_code in (200, 201)


def test_a_body_must_be_json(open_: tuple[Server, Path]) -> None:
    api = f"{open_[0].url}/console/api"
    plain = httpx.post(f"{api}/capture", content='{"minutes": 1}', headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415
    assert httpx.get(f"{api}/render").headers["allow"] == "POST"  # not a file of the console that is absent
    for body in (
        "{",
        '{"minutes": -1}',
        '{"minutes": "x"}',
        '{"minutes": 1, "more": 2}',
        '{"minutes": NaN}',
        b"\xff",
    ):
        got = httpx.post(f"{api}/capture", content=body, headers={"Content-Type": "application/json"})
        assert got.status_code == 400, body
        assert got.json()["error"]["message"].startswith("the body:")


def test_the_list_says_why_a_request_was_rejected(open_: tuple[Server, Path]) -> None:
    url = open_[0].url
    body = CHAT | {"temperature": "warm"}
    answer = httpx.post(
        f"{url}/v3/chat/completions", json=body, headers={"x-request-id": "warm"}, timeout=230
    )
    assert answer.status_code == 400
    rows = first_event(f"{url}/console/api/requests")["requests"]
    [row] = [row for row in rows if row["id"] == "warm"]
    assert (row["status"], row["error"], row["param"]) == (400, "invalid_argument", "temperature")
    assert row["failure"] == answer.json()["error"]["message"]
    assert row["refused"] is True


# ---- requests in progress


def running(url: str, key: str = "") -> list[dict[str, Any]]:
    found = first_event(f"{url}/console/api/running", headers=headers(key) if key else {})
    return list(found["running"])


def until_running(url: str, ready: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Follow the requests in progress until one fits."""
    with httpx.stream("GET", f"{url}/console/api/running", timeout=230) as live:
        for line in live.iter_lines():
            rows = json.loads(line.removeprefix("data: "))["running"] if line.startswith("data: ") else []
            if found := [row for row in rows if ready(row)]:
                return dict(found[0])
    raise AssertionError("no event")


@contextmanager
def asking(url: str, text: str, **options: Any) -> Iterator[list[str]]:
    """A streamed chat that goes on meanwhile; its lines are there at the end."""
    lines: list[str] = []
    body = CHAT | {"messages": [{"role": "user", "content": text}], "stream": True}

    def read() -> None:
        with httpx.stream("POST", f"{url}/v3/chat/completions", json=body, timeout=230, **options) as answer:
            lines.extend(answer.iter_lines())

    thread = threading.Thread(target=read)
    thread.start()
    yield lines
    thread.join()


def test_a_long_prompt_tells_how_much_of_it_is_read(open_: tuple[Server, Path]) -> None:
    url = open_[0].url
    with asking(url, "long prompt " * 500):
        row = until_running(url, lambda row: bool(row["unread_tokens"]))
        assert row["prompt_tokens"] > 990
        assert 0 < row["unread_tokens"] < row["prompt_tokens"]
        later = until_running(url, lambda new: 0 < (new["unread_tokens"] or 0) < row["unread_tokens"])
        assert later["number"] == row["number"]
        assert later["first_token"] is None
        assert httpx.post(f"{url}/console/api/running/{row['number']}/cancel", json={}).json()["cancelled"]


def test_a_running_request_is_cancelled_with_one_error(open_: tuple[Server, Path]) -> None:
    url = open_[0].url
    before = httpx.get(f"{url}/metrics").text
    with asking(url, "endless") as lines:
        row = until_running(url, lambda row: row["generated_tokens"] > 5)
        assert (row["model"], row["path"]) == ("m", "/v3/chat/completions")
        cancel = f"{url}/console/api/running/{row['number']}/cancel"
        assert httpx.post(cancel, json={}).json() == {"cancelled": True}
    error = json.loads(lines[-2].removeprefix("data: "))["error"]
    assert error["code"] == "request_cancelled"
    assert sum('"error"' in line for line in lines) == 1
    assert "data: [DONE]" not in lines
    assert httpx.post(cancel, json={}).status_code == 404
    listed = first_event(f"{url}/console/api/requests")["requests"][-1]
    assert (listed["status"], listed["model"]) == (499, "m")
    assert listed["generated_tokens"] > 5
    assert metric(url, "ovserve_requests_cancelled_total") == 1 + metric_in(
        before, "ovserve_requests_cancelled_total"
    )
    assert running(url) == []


def metric(url: str, name: str) -> float:
    return metric_in(httpx.get(f"{url}/metrics").text, name)


def metric_in(text: str, name: str) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))


def test_a_key_sees_and_cancels_only_its_own_requests(keyed: Server) -> None:
    with asking(keyed.url, "endless", headers=headers(ALICE)):
        mine: list[dict[str, Any]] = []
        while not mine:
            mine = running(keyed.url, ALICE)
        assert running(keyed.url, BOB) == []
        assert [row["key"] for row in running(keyed.url, ADMIN)] == ["alice"]
        cancel = f"{keyed.url}/console/api/running/{mine[0]['number']}/cancel"
        assert httpx.post(cancel, json={}, headers=headers(BOB)).status_code == 404
        assert (
            httpx.post(
                f"{keyed.url}/console/api/running/x/cancel", json={}, headers=headers(ADMIN)
            ).status_code
            == 400
        )
        assert httpx.post(cancel, json={}, headers=headers(ADMIN)).json()["cancelled"]


# ---- graphs


def test_an_edit_is_checked_applied_and_undone_while_a_stream_goes_on(open_: tuple[Server, Path]) -> None:
    server, file = open_
    api = f"{server.url}/console/api"
    before = file.read_text()
    found = httpx.get(f"{api}/graphs/m").json()
    assert found["text"] == before
    wrong = before.replace('"DELTA:delta"', '"DELTTA:delta"', 1)
    line = wrong[: wrong.index("DELTTA")].count("\n") + 1
    (first,) = httpx.post(f"{api}/check", json={"name": "m", "text": wrong}).json()["diagnostics"]
    assert (first["line"], first["node"], first["severity"]) == (line, "LLMExecutor", "error")
    put = lambda text, tag: httpx.put(  # noqa: E731
        f"{api}/graphs/m", json={"text": text}, headers={"If-Match": f'"{tag}"'}, timeout=30
    )
    assert put(wrong, found["hash"]).json()["applied"] is False
    assert file.read_text() == before, "nothing is written that would not load"

    ends: list[str] = []

    def read() -> None:
        body = CHAT | {"messages": [{"role": "user", "content": "endless"}]}
        body |= {"max_tokens": 300, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{server.url}/v3/chat/completions", json=body, timeout=230) as answer:
            ends.append([line for line in answer.iter_lines() if '"usage":{' in line][-1])

    streaming = threading.Thread(target=read)
    streaming.start()
    edited = "# edited\n" + before
    applied = put(edited, found["hash"]).json()
    assert (applied["applied"], applied["loaded"]) == (True, True)
    assert file.read_text() == edited
    streaming.join()
    assert '"completion_tokens":300' in ends[0], "the running answer was not cut"
    assert httpx.get(f"{api}/graphs/m").json()["revision"] > found["revision"]

    assert put(before, found["hash"]).status_code == 412, "the file is another one by now"
    assert put(before, applied["hash"]).json()["loaded"] is True
    assert file.read_text() == before
    assert httpx.get(f"{api}/graphs/m").json()["earlier"] == edited


def test_a_missing_if_match_and_an_edit_on_disk_write_nothing(open_: tuple[Server, Path]) -> None:
    server, file = open_
    url = f"{server.url}/console/api/graphs/m"
    found, before = httpx.get(url).json(), file.read_text()
    assert httpx.put(url, json={"text": before}).status_code == 400
    file.write_text(before + "# on disk\n")
    try:
        late = httpx.put(url, json={"text": "# mine\n" + before}, headers={"If-Match": f'"{found["hash"]}"'})
        assert late.status_code == 412
        assert file.read_text() == before + "# on disk\n"
    finally:
        file.write_text(before)


def test_a_graph_at_work_is_counted_while_it_is_watched(open_: tuple[Server, Path]) -> None:
    server, _ = open_
    counts: list[dict[str, Any]] = []
    with httpx.stream("GET", f"{server.url}/console/api/graphs/m/live", timeout=230) as live:
        for line in live.iter_lines():
            if not line.startswith("data: "):
                continue
            counts.append(json.loads(line.removeprefix("data: ")))
            if len(counts) == 1:
                httpx.post(f"{server.url}/v3/chat/completions", json=said("fail"))
                httpx.post(f"{server.url}/v3/chat/completions", json=CHAT).raise_for_status()
            if len(counts) == 4:
                break
    last = counts[-1]
    assert last["nodes"]["Frontend"][0] == 2
    assert last["nodes"]["LLMExecutor"][0] > 3
    assert last["nodes"]["LLMExecutor"][1] > last["nodes"]["ResponseWriter"][1], "it waits for the engine"
    for calls, _, longest, _, buckets in last["nodes"].values():
        assert sum(buckets.values()) == calls
        top = max(map(int, buckets), default=0)
        assert longest * 1e6 <= 1.2**top * 1.001
        assert top == 0 or longest * 1e6 > 1.2 ** (top - 1) * 0.999
    assert last["streams"]["http"][0] == 2
    packet = last["packets"]["http"]
    assert (packet["type"], packet["text"]) == ("HttpPayload", None), "no text without a capture"
    assert packet["summary"].startswith("chat/completions, ")
    assert 0 <= packet["age"] < 10
    assert last["engines"] == {"llm": "ready"}
    at, message = last["errors"]["LLMExecutor"]
    assert time.time() - at < 20
    assert "the script rejects this" in message
    assert last["streams"]["delta"][0] == last["streams"]["parsed"][0] == last["nodes"]["OutputParser"][0]


def test_the_prompt_is_rendered_without_an_answer(open_: tuple[Server, Path]) -> None:
    api = f"{open_[0].url}/console/api"
    body = CHAT | {"nonsense": 1}
    made = httpx.post(
        f"{api}/render", json={"model": "m", "endpoint": "chat/completions", "body": body}
    ).json()
    assert made["prompt"] == "<|user|>the secret of alice<|assistant|>"
    assert len(made["ids"]) == len(made["pieces"]) == made["tokens"] > 0
    assert made["ignored"] == ["nonsense"]
    wrong = httpx.post(f"{api}/render", json={"model": "m", "endpoint": "embeddings", "body": {}})
    assert wrong.status_code == 404


def test_a_capture_holds_what_each_node_made_and_is_bounded(open_: tuple[Server, Path]) -> None:
    server, _ = open_
    api = f"{server.url}/console/api"
    assert httpx.get(f"{api}/requests/x").status_code == 404
    httpx.post(f"{server.url}/v3/chat/completions", json=CHAT, headers={"x-request-id": "before"})
    httpx.post(f"{api}/capture", json={"minutes": 5})
    httpx.post(f"{server.url}/v3/chat/completions", json=CHAT, headers={"x-request-id": "during"})
    assert httpx.get(f"{api}/requests/before").json()["capture"] is None
    found = httpx.get(f"{api}/requests/during").json()
    kinds = [e["kind"] for e in found["capture"]["entries"]]
    assert kinds[0] == "body"
    assert {"prompt", "delta", "parsed", "answer"} <= set(kinds)
    row = found["request"]
    assert 0 < row["queued"] <= row["admitted"] <= row["first_token"] <= row["seconds"]
    assert row["generated_tokens"] > 0
    ended = httpx.post(f"{api}/capture", json={"minutes": 0, "clear": True}).json()
    assert (ended["active"], ended["records"], ended["bytes"]) == (False, 0, 0)
    assert httpx.get(f"{api}/requests/during").json()["capture"] is None


def test_what_pages_read_has_no_line_in_the_log(open_: tuple[Server, Path]) -> None:
    """A page asks for the prompt at each key that is pressed, rejected or not."""
    server, _ = open_
    api = f"{server.url}/console/api"
    body = {"model": "m", "endpoint": "chat/completions", "body": CHAT}
    assert httpx.post(f"{api}/render", json=body).status_code == 200
    assert httpx.post(f"{api}/render", json=body | {"model": "unread"}).status_code == 404
    assert httpx.post(f"{api}/tokens", json={"model": "m", "text": "a"}).status_code == 200
    assert httpx.post(f"{api}/check", json={"name": "m", "text": ""}).status_code == 200
    assert httpx.get(f"{api}/graphs/unread").status_code == 404
    assert httpx.get(f"{server.v3}/capabilities?model=m").status_code == 200
    assert httpx.post(f"{api}/capture", json={"minutes": 0}).status_code == 200
    httpx.get(f"{server.v3}/models/logged-at-last")
    deadline = time.monotonic() + 230
    while "logged-at-last" not in "".join(server.errors + server.output) and time.monotonic() < deadline:
        time.sleep(0.02)
    text = "".join(server.errors + server.output)
    assert "POST /console/api/capture 200" in text, "what changes the server stays"
    for name in ("api/render", "api/tokens", "api/check", "api/graphs/unread", "v3/capabilities"):
        assert name not in text, name


def test_write_is_off_where_anyone_could_connect(tmp_path: Path) -> None:
    five_nodes(tmp_path / "m", **json.loads(script()))
    flags = ("--console_write", "off", "--console_capture", "off")
    server = start_process("--graphs_dir", str(tmp_path), *flags)
    try:
        api = f"{server.url}/console/api"
        found = httpx.get(f"{api}/graphs/m").json()
        assert not found["writable"]
        put = httpx.put(f"{api}/graphs/m", json={"text": found["text"]}, headers={"If-Match": found["hash"]})
        assert put.status_code == 400
        assert "console_write" in put.json()["error"]["message"]
        assert httpx.post(f"{api}/capture", json={"minutes": 1}).status_code == 400
    finally:
        server.stop()


def test_an_idle_model_is_shown_as_such(tmp_path: Path) -> None:
    five_nodes(tmp_path / "m")
    server = start_process("--graphs_dir", str(tmp_path), "--idle_unload_timeout_seconds", "0.2")
    try:
        deadline, row = time.monotonic() + 230, {"idle": False}
        while not row["idle"] and time.monotonic() < deadline:
            time.sleep(0.1)
            (row,) = httpx.get(f"{server.url}/console/api/models").json()["models"]
        assert (row["id"], row["state"], row["idle"], row["parent"]) == ("m", "AVAILABLE", True, None)
        (model,) = httpx.get(f"{server.url}/console/api/server").json()["models"]
        assert (model["state"], model["parent"]) == ("UNLOADED", None)
        assert (
            httpx.post(f"{server.url}/v3/chat/completions", json=said("hi"), timeout=230).status_code == 200
        )
    finally:
        server.stop()

"""Files and batches through the official client, against the server as its own process."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from ovserve.access.keys import entry_text
from tests.conftest import ROOT, Server, script_graph, start_process, start_server, until
from tests.encoders import graph, tiny

SCRIPT = {
    "replies": [
        {"match": "never", "text": "at last", "wait_steps": 10**9, "step_seconds": 0.02},
        {"match": "poison", "text": "a b", "raise_in_step": 1},
        {"match": "full", "refuse": "resource_exhausted"},
        {"echo": True},
    ]
}
CHAT = "/v1/chat/completions"
A, B = "key-of-team-a-0123", "key-of-team-b-0123"


def start(tmp_path: Path, *flags: str, script: dict[str, Any] | None = None) -> Server:
    graph = script_graph(tmp_path / "graph", json.dumps(script or SCRIPT))
    return start_server(graph, "--response_store_path", str(tmp_path / "r.db"), *flags, name="m")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start(tmp_path_factory.mktemp("batches"))
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as made:
        yield made


def client_of(server: Server, path: str = "/v1", key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + path, api_key=key, max_retries=0)


def line(custom_id: str, text: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": "m"} | body
    if url.endswith("chat/completions"):
        asked.setdefault("messages", [{"role": "user", "content": text}])
    elif url.endswith("responses"):
        asked.setdefault("input", text)
    else:
        asked.setdefault("prompt", text)
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked}


def jsonl(lines: list[Any]) -> bytes:
    return b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in lines)


def create(client: openai.OpenAI, lines: list[Any], endpoint: str = CHAT, **more: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)  # type: ignore[call-overload, no-any-return]


def ended(client: openai.OpenAI, id_: str, seconds: float = 230) -> Batch:
    deadline = time.monotonic() + seconds
    while (batch := client.batches.retrieve(id_)).status in (
        "validating",
        "in_progress",
        "finalizing",
        "cancelling",
    ):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def results(client: openai.OpenAI, batch: Batch) -> dict[str, dict[str, Any]]:
    """Both files by custom_id; none may be there twice."""
    found: dict[str, dict[str, Any]] = {}
    for id_ in (batch.output_file_id, batch.error_file_id):
        for text in client.files.content(id_).text.split("\n")[:-1] if id_ else ():
            one = json.loads(text)
            assert one.keys() == {"id", "custom_id", "response", "error"}
            assert found.setdefault(one["custom_id"], one) is one
    return found


@pytest.mark.parametrize("path", ["/v1", "/v3", "/openai/v1", ""])
@pytest.mark.parametrize("endpoint", ["chat/completions", "completions", "responses"])
def test_each_line_is_answered(server: Server, path: str, endpoint: str) -> None:
    client = client_of(server, path)
    lines = [line(f"n{i}", f"say {i}", f"/v1/{endpoint}", max_tokens=50) for i in range(20)]
    if endpoint == "responses":
        for one in lines:
            one["body"]["max_output_tokens"] = one["body"].pop("max_tokens")
    file = client.files.create(
        file=("in.jsonl", jsonl(lines)),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert file.expires_at == file.created_at + 3600
    assert client.files.wait_for_processing(file.id).status == "processed"
    assert client.files.content(file.id).content == jsonl(lines)
    made = client.batches.create(
        input_file_id=file.id, endpoint=f"/v1/{endpoint}", completion_window="24h", metadata={"a": "b"}
    )  # type: ignore[call-overload]
    batch = ended(client, made.id)
    assert (batch.status, batch.metadata, batch.error_file_id) == ("completed", {"a": "b"}, None)
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (20, 20, 0)
    found = results(client, batch)
    assert [*found] == [f"n{i}" for i in range(20)]
    for number, result in enumerate(found.values()):
        assert result["response"]["status_code"] == 200
        assert f"say {number}" in json.dumps(result["response"]["body"])
    usages = [result["response"]["body"]["usage"] for result in found.values()]
    assert batch.usage is not None
    assert batch.usage.total_tokens == sum(usage["total_tokens"] for usage in usages)
    output = client.files.retrieve(batch.output_file_id or "")
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")


def test_azures_client_is_served(server: Server) -> None:
    client = openai.AzureOpenAI(azure_endpoint=server.url, api_key="none", api_version="2025-03-01-preview")
    made = create(client, [line("a", "say it", "/chat/completions")], "/chat/completions")
    batch = ended(client, made.id)
    assert "say it" in json.dumps(results(client, batch)["a"]["response"]["body"])
    assert client.batches.list(limit=1).data[0].id == batch.id


def test_every_kind_of_endpoint_is_answered_as_a_live_request(tmp_path: Path) -> None:
    """Embeddings, rerank, scores, labels, and a graph of one's own."""
    place = tmp_path / "graphs"
    for name, kind in (("mpnet", "Embeddings"), ("bert", "Rerank"), ("bert-labels", "Classification")):
        tiny(name, place / name)
        (place / name / "graph.pbtxt").write_text(graph("./", kind=kind))
    shutil.copytree(ROOT / "graphs/python_node", place / "words")
    server = start_process("--graphs_dir", str(place), "--response_store_path", str(tmp_path / "r.db"))
    try:
        client = client_of(server)
        for url, body in (
            ("/v1/embeddings", {"model": "mpnet", "input": ["the ship", "left"]}),
            ("/v1/rerank", {"model": "bert", "query": "the ship", "documents": ["left", "the harbour"]}),
            ("/v1/score", {"model": "bert", "text_1": "the ship", "text_2": ["left", "the harbour"]}),
            ("/v1/classify", {"model": "bert-labels", "input": ["left", "the harbour"]}),
            ("/v1/words", {"model": "words"}),
        ):
            lines = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i in range(10)]
            batch = ended(client, create(client, lines, url).id)
            assert (batch.status, batch.request_counts.completed) == ("completed", 10)  # type: ignore[union-attr]
            live = httpx.post(server.url + url, json=body, timeout=230)
            assert live.status_code == 200
            for one in results(client, batch).values():
                assert without_ids(one["response"]["body"]) == without_ids(live.json())
    finally:
        server.stop()


def without_ids(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("id", "created")}


def test_what_is_wrong_with_lines_is_said_by_line_and_field(client: openai.OpenAI) -> None:
    good = line("twice", "hello")
    lines = [
        good,
        b"\n",
        good,
        b"{not json}\n",
        {"custom_id": "x", "method": "POST", "url": CHAT},
        line("y", "hello") | {"method": "GET"},
        line("z", "hello", "/v1/completions"),
        line("s", "hello", stream=True),
        line("m", "hello", model="other"),
        line("t", "hello", temperature=7),
        line("u", "hello") | {"bodi": {}},
        b'{"custom_id": "d", "custom_id": "d", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n',
        b'{"custom_id": "n", "method": "POST", "url": "/v1/chat/completions", "body": {"model": NaN}}\n',
        b'{"custom_id": "b", "body": {"x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}}\n",
        b"\x00\xff\n",
    ]
    batch = ended(client, create(client, lines).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    found = [(error.line, error.code, error.param) for error in batch.errors.data]
    assert found == [
        (3, "duplicate_custom_id", "custom_id"),
        (4, "invalid_json_line", None),
        (5, "missing_required_parameter", "body"),
        (6, "invalid_request", "method"),
        (7, "url_mismatch", "url"),
        (8, "streaming_unsupported", "body.stream"),
        (9, "model_not_found", "body.model"),
        (10, "invalid_request", "body.temperature"),
        (11, "invalid_request", "bodi"),
        (12, "invalid_json_line", "custom_id"),
        (13, "invalid_json_line", None),
        (14, "invalid_json_line", None),
        (15, "invalid_json_line", None),
    ]
    assert batch.output_file_id is None
    assert batch.error_file_id is None


def test_a_mark_line_ends_and_blank_lines_are_fine(client: openai.OpenAI) -> None:
    data = b"\xef\xbb\xbf" + json.dumps(line("a", "x\u2028y"), ensure_ascii=False).encode() + b"\r\n\r\n"
    data += json.dumps(line("b", "z")).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    batch = ended(client, made.id)
    assert [*results(client, batch)] == ["a", "b"], batch


def test_a_line_that_fails_is_in_the_error_file_as_a_live_request_fails(server: Server) -> None:
    client = client_of(server)
    batch = ended(
        client,
        create(client, [line("good", "hi"), line("bad", "hi", max_tokens=10**9), line("full", "full")]).id,
    )
    found = results(client, batch)
    assert batch.request_counts is not None
    assert batch.request_counts.failed == 2 - (found["bad"]["response"]["status_code"] == 200)
    live = httpx.post(server.v3 + "/chat/completions", json=line("", "full")["body"])
    assert found["full"]["response"]["status_code"] == live.status_code
    assert found["full"]["response"]["body"]["error"] == live.json()["error"]


def test_requests_that_are_no_batch(server: Server, client: openai.OpenAI, http: httpx.Client) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a", b"x"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.files.create(file=("a", b""), purpose="batch")
    answer = http.post("/v1/files", data={"purpose": "batch"}, files={"other": b"x"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    file = client.files.create(file=("../\u202eexe.jsonl", jsonl([line("a", "b")])), purpose="batch")
    for more, param in (
        ({"endpoint": "/v1/audio/speech"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ):
        body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | more
        answer = http.post("/v1/batches", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    for call in (
        client.files.retrieve,
        client.files.delete,
        client.files.content,
        client.batches.retrieve,
        client.batches.cancel,
    ):
        with pytest.raises(openai.NotFoundError):
            call("unknown")
    answer = http.post(
        "/v1/batches", json={"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h"}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "input_file_id")
    for path in ("/v1/files", "/v1/batches"):
        assert http.get(path, params={"after": "unknown"}).json()["error"]["param"] == "after"
        assert http.get(path, params={"limit": "0"}).json()["error"]["param"] == "limit"


def test_the_content_of_a_file_is_served_in_ranges(server: Server, client: openai.OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", b"0123456789"), purpose="batch")
    answer = httpx.get(f"{server.url}/v1/files/{file.id}/content", headers={"Range": "bytes=2-4"})
    assert (answer.status_code, answer.content) == (206, b"234")
    assert answer.headers["content-disposition"] == f'attachment; filename="{file.id}.jsonl"'
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)


def test_a_file_without_its_content_says_so(tmp_path: Path) -> None:
    server = start(tmp_path)
    try:
        client = client_of(server)
        file = client.files.create(file=("in.jsonl", jsonl([line("a", "b")])), purpose="batch")
        (tmp_path / "r.db.files" / file.id).unlink()
        with pytest.raises(openai.NotFoundError, match="is gone"):
            client.files.content(file.id)
        made = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        batch = ended(client, made.id)
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [error.message for error in batch.errors.data] == ["the content of the file is gone"]
    finally:
        server.stop()


def test_lists_are_paged(client: openai.OpenAI) -> None:
    ids = [client.files.create(file=(f"{i}", b"x"), purpose="batch").id for i in range(5)]
    listed = [file.id for file in client.files.list(limit=2, purpose="batch")]
    assert listed[:5] == ids[::-1]
    assert len(set(listed)) == len(listed)
    assert [file.id for file in client.files.list(limit=3, order="asc")][-5:] == ids
    batches = [create(client, [line("a", f"hi {i}")]).id for i in range(5)]
    listed = [batch.id for batch in client.batches.list(limit=2)]
    assert listed[:5] == batches[::-1]
    assert len(set(listed)) == len(listed)


def test_a_retry_with_its_key_makes_no_second_batch(server: Server, client: openai.OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", jsonl([line("a", "b")])), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    first, second, other = (
        httpx.post(f"{server.url}/v1/batches", json=body | more, headers={"Idempotency-Key": "k1"})
        for more in ({}, {}, {"metadata": {"a": "b"}})
    )
    assert first.json()["id"] == second.json()["id"]
    assert (other.status_code, other.headers["x-should-retry"]) == (409, "false")


def test_a_cancelled_batch_keeps_its_results(server: Server, client: openai.OpenAI) -> None:
    lines = [line("first", "hello"), *(line(f"w{i}", "never") for i in range(100))]
    batch = create(client, lines)
    until(lambda: counts(client, batch.id)[1] == 1)
    with pytest.raises(openai.ConflictError, match="input of a batch"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = ended(client, batch.id)
    assert batch.status == "cancelled"
    assert counts(client, batch.id) == (101, 1, 0)
    found = results(client, batch)
    assert len(found) == 101
    assert found["first"]["response"]["status_code"] == 200
    assert found["w99"]["response"] is None
    assert found["w99"]["error"]["code"] == "batch_cancelled"
    assert client.batches.cancel(batch.id).status == "cancelled"
    assert client.files.delete(batch.input_file_id).deleted
    with pytest.raises(openai.ConflictError, match="completed"):
        client.batches.cancel(ended(client, create(client, [line("a", "b")]).id).id)


def test_batches_end_with_their_time(tmp_path: Path) -> None:
    """One with the results that it has, and one whose input vanished while its server was killed: both wait at once."""
    flags = ("--batch_window_seconds", "12")
    lines = [line("a", "hello"), line("b", "never")]
    with ExitStack() as stack:
        server = start(tmp_path / "lives", *flags)
        stack.callback(server.stop)
        client = client_of(server)
        batch = create(client, lines)
        until(lambda: counts(client, batch.id)[1] == 1)
        killed = start(tmp_path / "killed", *flags)
        stack.callback(lambda: killed.stop())  # whichever it is then
        other = create(client_of(killed), lines)
        until(lambda: counts(client_of(killed), other.id)[1] == 1)
        killed.stop(signal.SIGKILL)
        (tmp_path / "killed/r.db.files" / other.input_file_id).unlink()
        killed = start(tmp_path / "killed", *flags)

        batch = ended(client, batch.id)
        found = results(client, batch)
        assert batch.status == "expired"
        assert counts(client, batch.id) == (2, 1, 0)
        assert found["a"]["response"]["status_code"] == 200
        assert found["b"]["error"]["code"] == "batch_expired"

        other = ended(client_of(killed), other.id)
        assert other.status == "expired"
        assert results(client_of(killed), other).keys() == {"a", "b"}
        assert sum("waits" in text for text in killed.errors) == 1


def test_half_a_character_in_a_line_is_read_as_in_a_live_request(client: openai.OpenAI) -> None:
    halves = jsonl([line("a", "x\ud83d"), line("b", "y\ud83d\ude00")])
    batch = ended(client, create(client, [halves]).id)
    texts = [
        one["response"]["body"]["choices"][0]["message"]["content"] for one in results(client, batch).values()
    ]
    assert ["\ufffd" in text for text in texts] == [True, False]
    batch = ended(client, create(client, [jsonl([line("a\ud83d", "x")])]).id)
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.param) for error in batch.errors.data] == [("invalid_request", "custom_id")]


def test_a_line_that_ends_engines_fails_alone(tmp_path: Path) -> None:
    server = start(tmp_path)
    try:
        client = client_of(server)
        lines = [line(f"n{i}", f"say {i}" if i != 7 else "poison") for i in range(30)]
        batch = ended(client, create(client, lines).id, 110)
        found = results(client, batch)
        assert counts(client, batch.id) == (30, 29, 1)
        assert found["n7"]["response"]["body"]["error"]["code"] == "request_ends_engine"
        restarts = re.search(r'ovserve_engine_restarts_total\{name="m"\} (\d+)', metrics(server))
        assert restarts is not None
        assert int(restarts[1]) <= 3
    finally:
        server.stop()


def test_keys_see_only_their_own_and_are_bounded(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(entry_text("a", A) + "concurrency = 2\n" + entry_text("b", B) + "models = ['other']\n")
    flags = (
        "--api_keys_file",
        str(keys),
        "--max_files_per_key",
        "3",
        "--max_file_bytes",
        "5000",
        "--max_batch_requests",
        "10",
    )
    server = start(tmp_path, *flags)
    try:
        a, b = client_of(server, key=A), client_of(server, key=B)
        batch = ended(a, create(a, [line(f"n{i}", f"say {i}") for i in range(8)]).id)
        assert counts(a, batch.id) == (8, 8, 0), "its concurrency paces lines and rejects none"
        for call, id_ in (
            (b.files.retrieve, batch.input_file_id),
            (b.files.content, batch.output_file_id),
            (b.files.delete, batch.output_file_id),
            (b.batches.retrieve, batch.id),
            (b.batches.cancel, batch.id),
        ):
            with pytest.raises(openai.NotFoundError):
                call(id_ or "")
        assert [*b.files.list()] == [*b.batches.list()] == []
        with pytest.raises(openai.NotFoundError):
            b.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
        not_its_model = ended(b, create(b, [line("x", "hi")]).id)
        assert not_its_model.errors
        assert not_its_model.errors.data
        assert not_its_model.errors.data[0].code == "model_not_found"
        with pytest.raises(openai.APIStatusError, match="more than 5000"):
            a.files.create(file=("in", b"x" * 5001), purpose="batch")
        too_many = ended(a, create(a, [line(f"n{i}", "hi") for i in range(11)]).id)
        assert too_many.errors
        assert too_many.errors.data
        assert too_many.errors.data[0].code == "too_many_tasks"
        with pytest.raises(openai.InternalServerError, match="3 files"):
            a.files.create(file=("in", b"x"), purpose="batch")
        held = {path.name for path in (tmp_path / "r.db.files").iterdir()}
        assert held == {file.id for client in (a, b) for file in client.files.list()}, (
            "nothing else is left on the disk"
        )
        for file in a.files.list():
            a.files.delete(file.id)
        orphan = create(a, [line("x", "never")])
        until(lambda: counts(a, orphan.id)[0] == 1)
        keys.write_text(entry_text("b", B))
        until(lambda: httpx.get(server.url + "/v1/files", headers={"api-key": A}).status_code == 401)
        until(lambda: 'ovserve_batches{status="in_progress"} 0' in metrics(server, B))
        keys.write_text(entry_text("a", A) + entry_text("b", B))
        until(lambda: httpx.get(server.url + "/v1/files", headers={"api-key": A}).status_code == 200)
        assert ended(a, orphan.id).status == "cancelled", "its key was deleted"
    finally:
        server.stop()


def test_sigterm_leaves_the_rest_to_the_next_start(tmp_path: Path) -> None:
    script = {"replies": [{"echo": True, "step_seconds": 0.05}]}
    server = start(tmp_path, "--shutdown_timeout", "1", script=script)
    lines = [line(f"n{i}", f"say {i} and more words for some steps") for i in range(150)]
    try:
        client = client_of(server)
        batch = create(client, lines)
        until(lambda: counts(client, batch.id)[1] > 0)
    finally:
        assert server.stop(signal.SIGTERM) == 0
    server = start(tmp_path, script=script)
    try:
        client = client_of(server)
        batch = ended(client, batch.id, 110)
        assert batch.status == "completed"
        assert counts(client, batch.id) == (150, 150, 0)
        assert len(results(client, batch)) == 150
    finally:
        server.stop()


def metrics(server: Server, key: str = "") -> str:
    return httpx.get(server.url + "/metrics", headers={"api-key": key}).text


def counts(client: openai.OpenAI, id_: str) -> tuple[int, int, int]:
    found = client.batches.retrieve(id_).request_counts
    assert found is not None
    return found.total, found.completed, found.failed


def test_what_the_console_polls_has_no_line_in_the_log(tmp_path: Path) -> None:
    running = start_server(script_graph(tmp_path / "g", "{}"), name="m")
    try:
        listed = httpx.get(f"{running.url}/v1/batches?limit=5").json()
        assert httpx.get(f"{running.url}/console/api/batches?limit=5").json() == listed
        assert httpx.get(f"{running.url}/console/api/batches?limit=x").status_code == 400
    finally:
        assert running.stop() == 0
    lines = [line for line in running.errors if "/batches" in line]
    assert len(lines) == 1
    assert "/v1/batches" in lines[0]

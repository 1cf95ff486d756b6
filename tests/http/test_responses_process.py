"""The server as its own process: kill -9 and restart, its options, and the real model."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from ovserve.server.settings import Settings
from tests.api.openai.test_responses_writer import check_order, events
from tests.conftest import Server, script_graph, start_server
from tests.http.responses_harness import REPLIES


def start(tmp_path: Path, *flags: str) -> Server:
    graph = script_graph(tmp_path / "graph", json.dumps({"replies": REPLIES}))
    return start_server(graph, "--response_store_path", str(tmp_path / "r.db"), *flags, name="m")


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0)


def create(of: openai.OpenAI, text: Any, **more: Any) -> Any:
    return of.responses.create(model=more.pop("model", "m"), input=text, **more)


def written_down(path: Path, *ids: str) -> None:
    """Wait until some events of these are in the file."""
    deadline = time.monotonic() + 230
    missing = set(ids)
    while missing and time.monotonic() < deadline:
        with contextlib.closing(sqlite3.connect(path)) as db:
            missing -= {id_ for (id_,) in db.execute("SELECT response FROM parts WHERE length(log) > 3000")}
        time.sleep(0.05)
    assert not missing


def test_kill_9(tmp_path: Path) -> None:
    server = start(tmp_path)
    try:
        with client(server) as before:
            done = create(before, "one")
            chained = create(before, "two", previous_response_id=done.id)
            background = create(before, "endless", background=True)
            stream = create(before, "endless", stream=True)
            cut = next(iter(stream)).response.id
            written_down(tmp_path / "r.db", background.id, cut)
            server.stop(signal.SIGKILL)
            with pytest.raises(Exception, match=r".*"):  # the stream ends without a word
                for _ in stream:
                    pass
    finally:
        server.stop(signal.SIGKILL)
    server = start(tmp_path)
    try:
        with client(server) as after:
            assert after.responses.retrieve(done.id).to_dict() == done.to_dict()
            for id_ in (background.id, cut):
                failed = after.responses.retrieve(id_)
                Response.model_validate(failed.to_dict(), strict=True)
                assert failed.status == "failed"
                assert failed.error is not None
                assert "server ended" in failed.error.message
                assert failed.output_text.startswith("word word")
                raw = after.responses.with_raw_response.retrieve(id_, stream=True)
                again = check_order(events(raw.http_response.read()))
                assert again == failed.to_dict()
                later = [*after.responses.retrieve(id_, stream=True, starting_after=4)]
                assert later[0].sequence_number == 5
                ahead = after.responses.retrieve(id_, stream=True, starting_after=10**6)
                assert [(e.type, e.sequence_number) for e in ahead] == [("response.failed", 10**6 + 1)]
            third = create(after, "three", previous_response_id=chained.id)
            assert third.output_text.count("user: one") == 4
            assert after.responses.cancel(background.id).status == "failed"
    finally:
        assert server.stop() == 0


def test_a_graceful_stop_waits_for_background_responses(tmp_path: Path) -> None:
    server = start(tmp_path)
    with client(server) as before:
        id_ = create(before, "slowly", background=True).id
    assert server.stop() == 0
    server = start(tmp_path)
    with client(server) as after:
        assert after.responses.retrieve(id_).output_text == "a b c d e f g h"
    assert server.stop() == 0
    assert not list(tmp_path.glob("*.lock"))


def test_the_options(tmp_path: Path) -> None:
    server = start(tmp_path, "--response_store", "off")
    with client(server) as off:
        assert create(off, "say").store is False
    server.stop()
    assert not (tmp_path / "r.db").exists()
    server = start(tmp_path, "--response_store_ttl", "4", "--response_store_max_bytes", "1000000")
    with client(server) as short:
        id_ = create(short, "say").id
        short.responses.retrieve(id_)
        time.sleep(4.2)
        with pytest.raises(openai.NotFoundError):
            short.responses.retrieve(id_)
    server.stop()


@pytest.mark.parametrize("kind", ["below a file", "a directory", "another schema"])
def test_a_store_that_cannot_be_used_stops_the_start(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "r2.db"
    if kind == "below a file":
        path.write_text("")
        path = path / "r.db"
    elif kind == "a directory":
        path.mkdir()
    else:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
    with pytest.raises(RuntimeError, match=rf"--response_store_path: {path}: "):
        start(tmp_path, "--response_store_path", str(path))


def test_the_default_store_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    graph = script_graph(tmp_path / "graph", json.dumps({"replies": REPLIES}))
    default = Settings.response_store_path
    server = start_server(graph, "--response_store_path", default, name="m")
    with client(server) as made:
        answer = made.responses.with_raw_response.create(model="m", input="say")
        assert answer.headers["x-ovserve-not-stored"]
        assert answer.parse().output_text == "all is well"
    assert any("responses are not stored" in line for line in server.errors)
    server.stop()


def test_a_broken_store_is_moved_aside_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "r.db").write_bytes(b"\xa5" * 8192)
    server = start(tmp_path)
    with client(server) as made:
        made.responses.retrieve(create(made, "say").id)
    server.stop()
    assert list(tmp_path.glob("r.db.broken-*"))


def test_a_second_server_on_the_store_cancels_and_deletes_a_background_response(tmp_path: Path) -> None:
    one, two = start(tmp_path), start(tmp_path)
    try:
        with client(one) as first, client(two) as second:
            cancelled, deleted = (create(first, "endless", background=True).id for _ in range(2))
            assert second.responses.cancel(cancelled).status == "cancelled"
            assert first.responses.retrieve(cancelled).status == "cancelled"
            assert second.responses.cancel(cancelled).status == "cancelled"
            second.responses.delete(deleted)
            for of in (first, second):
                with pytest.raises(openai.NotFoundError):
                    of.responses.retrieve(deleted)
    finally:
        assert (one.stop(), two.stop()) == (0, 0)


# ---- the real engine and model


@pytest.fixture(scope="module")
def real(server: Server) -> Iterator[openai.OpenAI]:
    with client(server) as made:
        yield made


FRANCE = "What is the capital of France?"


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """Without how much of it the prefix cache had, which goes by what was asked before."""
    return {name: value for name, value in usage.items() if name != "input_tokens_details"}


def test_a_real_answer(real: openai.OpenAI) -> None:
    response = create(real, FRANCE, model="smollm2", temperature=0, max_output_tokens=24)
    Response.model_validate(response.to_dict(), strict=True)
    assert "Paris" in response.output_text
    streamed = real.responses.with_raw_response.create(
        model="smollm2", input=FRANCE, temperature=0, max_output_tokens=24, stream=True
    )
    final = check_order(events(streamed.http_response.read()))
    assert final["output"][0]["content"][0]["text"] == response.output_text
    assert counts(final["usage"]) == counts(response.usage.to_dict())


def test_a_real_conversation_chained_is_the_one_sent_whole(real: openai.OpenAI) -> None:
    """Greedy answers and token counts are the same, so the prompts were. Drafts would differ by what pays."""
    options: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_output_tokens": 16}
    options |= {"instructions": "Be brief.", "extra_body": {"num_assistant_tokens": 0}}
    whole: list[Any] = []
    previous = None
    for question in (FRANCE, "And of Italy?", "Which of them is larger?"):
        chained = create(real, question, previous_response_id=previous, **options)
        whole.append({"role": "user", "content": question})
        sent = create(real, whole, store=False, **options)
        assert chained.output_text == sent.output_text
        assert counts(chained.usage.to_dict()) == counts(sent.usage.to_dict())
        whole += [item.to_dict() for item in sent.output]
        previous = chained.id


def test_real_logprobs_and_sampling(real: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "smollm2",
        "max_output_tokens": 8,
        "include": ["message.output_text.logprobs"],
    }
    response = create(real, FRANCE, temperature=0, **options)
    part = response.output[0].content[0]
    assert "".join(t.token for t in part.logprobs).strip() == part.text.strip()
    assert all(t.logprob <= 0 for t in part.logprobs)
    create(real, "Tell me a story", temperature=1.5, **options)  # a prompt of the cache is rounded otherwise
    seeded = [
        create(real, "Tell me a story", temperature=1.5, extra_body={"seed": s}, **options).output_text
        for s in (1, 1, 2, 3)
    ]
    assert seeded[0] == seeded[1]
    assert len(set(seeded)) > 1

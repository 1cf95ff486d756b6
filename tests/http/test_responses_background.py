"""Background responses, resumed streams, and a store that fails: the real application, a scripted engine."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from ovserve.services.responses.store import ResponseStore, StoreError
from tests.api.openai.test_responses_writer import check_order, events
from tests.conftest import eventually
from tests.http.responses_harness import Serving, serving
from tests.http.test_responses import strict, wait_for

SLOW_SAY = "slowly"  # eight words, 50 ms each


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path) as made:
        yield made


async def replay(server: Serving, id_: str, after: int | None = None) -> list[dict[str, Any]]:
    query = "" if after is None else f"&starting_after={after}"
    answer = await server.http.get(f"/v3/responses/{id_}?stream=true{query}", timeout=230)
    assert answer.status_code == 200, answer.text
    return events(answer.content)


async def test_queued_then_in_progress_then_completed(server: Serving) -> None:
    response = strict(await server.create("never", background=True))
    assert (response.status, response.background, response.usage) == ("queued", True, None)
    assert strict(await server.client.responses.retrieve(response.id)).status == "queued"
    await server.client.responses.cancel(response.id)
    slow = await server.create("unhurried", background=True)  # 4 s
    running = await wait_for(server, slow.id, "in_progress")
    assert running.status == "in_progress"
    assert (await wait_for(server, slow.id, "completed")).output_text == "a b c d e f g h"


async def test_what_is_wrong_is_refused_at_once(server: Serving) -> None:
    for fields in ({"include": 5}, {"temperature": 9}, {"model": "no"}):
        answer = await server.post("x", background=True, **fields)
        assert answer.status_code in (400, 404)
    assert (await server.post("word " * 5000, background=True)).status_code == 400
    assert not server.service._tasks


async def test_it_survives_its_client(server: Serving) -> None:
    stream = await server.create(SLOW_SAY, background=True, stream=True)
    first = await anext(aiter(stream))
    await stream.close()
    assert first.response.status == "queued"
    assert (await wait_for(server, first.response.id, "completed")).output_text == "a b c d e f g h"


async def test_a_client_that_leaves_before_it_knows_the_id_ends_it_without_a_trace_in_the_log(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        asked = asyncio.create_task(server.post("never", background=True))
        await eventually(lambda: server.service._tasks, pause=0)
        asked.cancel()
        await eventually(lambda: not server.service._tasks)
        with suppress(asyncio.CancelledError):
            await asked
    gc.collect()
    await asyncio.sleep(0)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_running_stream_is_resumed_after_any_event(server: Serving) -> None:
    stream = await server.create(SLOW_SAY, background=True, stream=True)
    seen: list[Any] = []
    async for event in stream:
        seen.append(event)
        if len(seen) == 7:
            break
    await stream.close()
    id_, after = seen[0].response.id, seen[-1].sequence_number
    resumed = [
        event
        async for event in await server.client.responses.retrieve(id_, stream=True, starting_after=after)
    ]
    numbers = [e.sequence_number for e in seen + resumed]
    assert numbers == list(range(len(numbers)))
    assert resumed[-1].type == "response.completed"
    whole = await replay(server, id_)
    assert check_order(whole)["output"][0]["content"][0]["text"] == "a b c d e f g h"
    assert [e.to_dict() for e in seen + resumed] == whole
    assert whole[1]["type"] == "response.queued"
    for after in (0, 3, len(whole) - 2, len(whole) - 1, len(whole) + 5):
        assert await replay(server, id_, after) == whole[after + 1 :]


async def test_many_follow_one_running_response(server: Serving) -> None:
    id_ = (await server.create(SLOW_SAY, background=True)).id
    streams = await asyncio.gather(*(replay(server, id_, after) for after in (None, None, 2, 9, 12)))
    assert streams[0] == streams[1]
    check_order(streams[0])
    for stream, after in zip(streams[2:], (2, 9, 12), strict=True):
        assert stream == streams[0][after + 1 :]


async def test_unary_and_streamed_answers_are_replayed_too(server: Serving) -> None:
    data = (await server.post("say", stream=True)).content
    streamed = events(data)
    assert await replay(server, streamed[0]["response"]["id"]) == streamed
    assert await replay(server, streamed[0]["response"]["id"], 4) == streamed[5:]
    unary = (await server.post("say")).json()
    assert check_order(await replay(server, unary["id"])) == unary
    for query in (
        "stream=maybe",
        "stream=true&starting_after=x",
        "stream=true&starting_after=-1",
        "starting_after=x",
        "starting_after=3",
    ):
        answer = await server.http.get(f"/v3/responses/{unary['id']}?{query}")
        assert answer.status_code == 400


async def test_cancel(server: Serving) -> None:
    response = await server.create("endless", background=True)
    await eventually(lambda: server.engine.stats().generated_tokens > 3)
    follower = asyncio.create_task(replay(server, response.id))
    await asyncio.sleep(0.1)
    cancelled = strict(await server.client.responses.cancel(response.id))
    assert cancelled.status == "cancelled"
    assert cancelled.output_text.startswith("word")
    assert cancelled.usage.output_tokens > 3
    assert server.engine.stats().running == 0
    last = check_order(await follower)
    assert last["status"] == "cancelled"
    for _ in range(2):  # again, and after it was stored
        assert strict(await server.client.responses.cancel(response.id)).to_dict() == cancelled.to_dict()
        await asyncio.sleep(0.1)
    done = await server.create("say", background=True)
    await wait_for(server, done.id, "completed")
    assert (await server.client.responses.cancel(done.id)).status == "completed"


async def test_cancel_is_for_background_responses(server: Serving) -> None:
    response = await server.create("say")
    with pytest.raises(openai.BadRequestError, match="background"):
        await server.client.responses.cancel(response.id)
    with pytest.raises(openai.NotFoundError):
        await server.client.responses.cancel("resp_nothing")


async def test_delete_ends_a_running_one(server: Serving) -> None:
    response = await server.create("endless", background=True)
    await server.client.responses.delete(response.id)
    assert server.engine.stats().running == 0
    with pytest.raises(openai.NotFoundError):
        await server.client.responses.retrieve(response.id)
    await asyncio.sleep(0.2)
    assert (await server.http.get(f"/v3/responses/{response.id}")).status_code == 404


async def test_a_stream_deleted_while_it_runs_goes_on_and_is_not_kept(server: Serving) -> None:
    stream = await server.create("unhurried", stream=True)
    seen = [await anext(aiter(stream))]
    id_ = seen[0].response.id
    assert (await server.client.responses.retrieve(id_)).status == "in_progress"
    await server.client.responses.delete(id_)
    seen += [event async for event in stream]
    assert seen[-1].response.output_text == "a b c d e f g h"
    await asyncio.sleep(0.2)
    assert (await server.http.get(f"/v3/responses/{id_}")).status_code == 404


async def test_a_stream_deleted_through_a_second_server_is_not_kept_either(tmp_path: Path) -> None:
    def open_store() -> ResponseStore:
        return ResponseStore(tmp_path / "shared.db", ttl=1000, max_bytes=1 << 26)

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with (
        serving(tmp_path / "one", store=open_store()) as one,
        serving(tmp_path / "two", store=open_store()) as two,
    ):
        stream = await one.create("late", stream=True)
        seen = [await anext(aiter(stream))]
        id_ = seen[0].response.id
        await two.client.responses.delete(id_)
        seen += [event async for event in stream]
        assert seen[-1].response.output_text == "at last"
        await asyncio.sleep(0.5)
        for server in (one, two):
            assert (await server.http.get(f"/v3/responses/{id_}")).status_code == 404


async def test_an_engine_that_dies(server: Serving) -> None:
    response = await server.create("raise", background=True)
    failed = await wait_for(server, response.id, "failed")
    assert "engine" in failed.error.message
    assert failed.usage.input_tokens == 3
    assert check_order(await replay(server, response.id))["status"] == "failed"


async def test_a_running_response_is_no_previous_one_yet(server: Serving) -> None:
    response = await server.create("never", background=True)
    answer = await server.post("x", previous_response_id=response.id)
    assert answer.status_code == 400
    assert "still queued" in answer.json()["error"]["message"]
    await server.client.responses.cancel(response.id)
    assert (await server.post("say", previous_response_id=response.id)).status_code == 200


async def test_a_server_that_stops_fails_what_runs(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        response = await server.create("endless", background=True)
        await eventually(lambda: server.engine.stats().generated_tokens > 3)
    async with serving(tmp_path) as server:
        stopped = strict(await server.client.responses.retrieve(response.id))
        assert stopped.status == "failed"
        assert "stopped" in stopped.error.message
        assert stopped.output_text.startswith("word")
        assert check_order(await replay(server, response.id))["status"] == "failed"


async def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        first = await server.create("one")
        streamed = events((await server.post("two", previous_response_id=first.id, stream=True)).content)
    async with serving(tmp_path) as server:
        assert (await server.client.responses.retrieve(first.id)).to_dict() == first.to_dict()
        id_ = streamed[0]["response"]["id"]
        assert await replay(server, id_, 3) == streamed[4:]
        third = await server.create("three", previous_response_id=id_)
        assert third.output_text.count("user: one") == 4


# ---- a store that fails


class Failing(ResponseStore):
    """Fails from the n-th write on, or hangs until `released`."""

    def __init__(self, path: Path, *, after: int = 0, hangs: bool = False) -> None:
        super().__init__(path, ttl=1000, max_bytes=1 << 26)
        self.left, self.hangs, self.released = after, hangs, threading.Event()
        self.gave_up = False

    async def put(self, record: Any, item_ids: Any = (), *, again: bool = False) -> None:
        self.left -= 1
        if self.left >= 0:
            await super().put(record, item_ids, again=again)
        elif not self.hangs:
            raise StoreError("database or disk is full")
        else:
            self.gave_up |= not await self._call(lambda db: self.released.wait(60))


async def test_answers_do_not_need_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path, store=Failing(tmp_path / "r.db")) as server:
        unary = await server.post("say")
        assert unary.status_code == 200
        assert unary.json()["output"][0]["content"][0]["text"] == "all is well"
        assert unary.json()["store"] is False
        assert unary.headers["x-ovserve-not-stored"] == "the response store failed"
        stream = await server.post("say", stream=True)
        assert stream.headers["x-ovserve-not-stored"]
        assert check_order(events(stream.content))["status"] == "completed"
        assert "disk is full" in caplog.text
        assert (await server.http.get(f"/v3/responses/{unary.json()['id']}")).status_code == 404
        background = await server.post("say", background=True)
        assert background.status_code == 503
        assert server.engine.stats().running == 0
        asked = await server.post("say", store=False)
        assert "x-ovserve-not-stored" not in asked.headers


async def test_a_background_answer_that_cannot_be_stored_at_its_end_is_still_found(tmp_path: Path) -> None:
    async with serving(tmp_path, store=Failing(tmp_path / "r.db", after=1)) as server:
        response = await server.create("say", background=True)
        assert (await wait_for(server, response.id, "completed")).output_text == "all is well"
        await asyncio.sleep(0.1)
        assert (await server.client.responses.retrieve(response.id)).status == "completed"


async def test_a_stream_that_cannot_be_stored_at_its_end_is_not_in_progress_for_ever(tmp_path: Path) -> None:
    async with serving(tmp_path, store=Failing(tmp_path / "r.db", after=1)) as server:
        response = check_order(events((await server.post("slowly", stream=True)).content))
        assert response["status"] == "completed"
        await eventually(lambda: not server.service._runs)
        stored = strict(await server.client.responses.retrieve(response["id"]))
        assert stored.status == "failed"
        assert "could not be stored" in stored.error.message


async def test_a_hanging_disk_holds_nobody_for_long(tmp_path: Path) -> None:
    store = Failing(tmp_path / "r.db", hangs=True)
    async with serving(tmp_path, store=store) as server:
        try:
            stream = await server.post("say", stream=True)
            assert check_order(events(stream.content))["status"] == "completed"
        finally:
            store.released.set()
    assert not store.gave_up


async def test_a_database_that_breaks_under_way(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        first = await server.create("one")
        assert server.store is not None
        await server.store._call(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        await server.store._call(lambda db: db.execute("PRAGMA cache_size = 0").fetchall())
        with (tmp_path / "responses.db").open("r+b") as file:
            file.write(b"\x00" * 65536)
        for _ in range(2):
            assert (await server.create("say")).output_text == "all is well"
        assert (await server.http.get(f"/v3/responses/{first.id}")).status_code in (404, 503)
        kept = await server.create("say")
        assert (await server.client.responses.retrieve(kept.id)).id == kept.id


async def test_a_store_that_is_switched_off(tmp_path: Path) -> None:
    async with serving(tmp_path, store=None) as server:
        response = strict(await server.create("say", store=True))
        assert response.store is False
        answer = await server.http.get(f"/v3/responses/{response.id}")
        assert answer.status_code == 404
        assert "--response_store" in answer.json()["error"]["message"]
        for fields, param in (
            ({"background": True}, "background"),
            ({"previous_response_id": "r"}, "previous_response_id"),
        ):
            refused = await server.post("x", **fields)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == param
        stream = events((await server.post("say", stream=True)).content)
        assert check_order(stream)["store"] is False


async def test_many_at_once(server: Serving) -> None:
    """Streams, unary and background side by side; each is whole, stored and its own."""

    async def one(i: int) -> None:
        kind = i % 3
        answer = await server.post(f"echo {i}", stream=kind == 1, background=kind == 2)
        body = events(answer.content)[-1]["response"] if kind == 1 else answer.json()
        done = await wait_for(server, body["id"], "completed")
        assert done.output_text == f"user: echo {i}\nassistant:"

    await asyncio.gather(*(one(i) for i in range(60)))
    assert server.engine.stats().running == 0
    await eventually(lambda: not server.service._runs)


async def test_a_slow_follower_costs_only_itself(server: Serving) -> None:
    id_ = (await server.create("endless", background=True)).id
    async with (
        httpx.AsyncClient(base_url=server.url) as idle,
        idle.stream("GET", f"/v3/responses/{id_}?stream=true"),
    ):
        for _ in range(5):
            assert (await server.create("say")).output_text == "all is well"
    await server.client.responses.cancel(id_)
    Response.model_validate_json(
        json.dumps((await server.http.get(f"/v3/responses/{id_}")).json()), strict=True
    )

"""A full server: bounded queues, deadlines, and who is told what (a scripted engine in a real child process)."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest

from ovserve.access import Guard
from ovserve.access.keys import entry_text
from tests.conftest import eventually, script_graph
from tests.http.conftest import Running, running

STEPS = range(50, 110, 2)
SCRIPT = json.dumps(
    {
        "step_seconds": 0.005,
        "replies": [
            {"match": "endless", "text": "word ", "repeat": 0},
            {"match": "long", "text": "word ", "repeat": 30},
            {"match": "stuck", "text": "word", "step_seconds": 60},
            {"match": "full", "refuse": "resource_exhausted"},
            *({"match": f" {i} steps", "wait_steps": i, "step_seconds": 0.02} for i in STEPS),
            {"text": "one two"},
        ],
    }
)
Limited = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def limited(tmp_path: Path) -> Limited:
    """A server whose graph has these options: `async with limited(max_num_seqs=1) as server`."""

    def start(guard: Guard | None = None, **options: float) -> AbstractAsyncContextManager[Running]:
        directory = script_graph(tmp_path / "graph", SCRIPT)
        lines = "".join(f"      {name}: {value}\n" for name, value in options.items())
        text = (directory / "graph.pbtxt").read_text()
        assert "      models_path:" in text
        text = text.replace("      models_path:", f"{lines}      models_path:", 1)
        (directory / "graph.pbtxt").write_text(text)
        return running(directory, guard)

    return start


async def post(client: httpx.AsyncClient, word: str, **more: object) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": word}], **more}
    return await client.post("/v3/chat/completions", json=body, timeout=230)


def client_of(server: Running) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, limits=httpx.Limits(max_connections=None))


async def begin(client: httpx.AsyncClient, server: Running, word: str) -> asyncio.Task[httpx.Response]:
    """A request that the engine is generating for."""
    before = server.engine.stats().running
    task = asyncio.create_task(post(client, word, stream=True))
    await eventually(lambda: server.engine.stats().running == before + 1)
    return task


async def wait_in_line(
    client: httpx.AsyncClient, server: Running, word: str, **more: object
) -> asyncio.Task[httpx.Response]:
    meter = server.manager.metrics.of("m").meter
    before = meter.queued
    task = asyncio.create_task(post(client, word, **more))
    await eventually(lambda: meter.queued == before + 1)
    return task


async def end(*tasks: asyncio.Task[httpx.Response]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_no_more_run_than_max_num_seqs_and_none_is_lost(limited: Limited) -> None:
    async with limited(max_num_seqs=2) as server, client_of(server) as client:
        most = 0
        tasks = [asyncio.create_task(post(client, "long" if i % 3 else "hi")) for i in range(12)]
        while not all(task.done() for task in tasks):
            most = max(most, server.engine.stats().running)
            await asyncio.sleep(0)
        assert {task.result().status_code for task in tasks} == {200}
        assert most == 2
        metrics = server.manager.metrics.of("m")
        assert metrics.finished == 12
        assert (metrics.meter.queued, metrics.meter.queued_tokens, server.engine.in_flight) == (0, 0, 0)


async def test_a_full_queue_refuses_and_says_when_to_come_again(limited: Limited) -> None:
    async with limited(max_num_seqs=1, max_queue=2) as server, client_of(server) as client:
        running_one = await begin(client, server, "endless")
        waiting = [await wait_in_line(client, server, "hi") for _ in range(2)]
        refused = await post(client, "hi")
        assert refused.status_code == 503
        error = refused.json()["error"]
        assert error["code"] == "server_overloaded"
        assert "2 requests are waiting" in error["message"]
        milliseconds = int(refused.headers["retry-after-ms"])
        assert 100 <= milliseconds <= 600_000
        assert int(refused.headers["retry-after"]) == -(-milliseconds // 1000)
        assert "x-should-retry" not in refused.headers
        streamed = await post(client, "hi", stream=True)
        assert streamed.status_code == 503, "before the first byte a stream has its proper status too"
        metrics = server.manager.metrics.of("m")
        assert metrics.refused["queue_full"] == 2
        assert sum(metrics.rejected.values()) == 2
        await end(running_one)
        assert [(await task).status_code for task in waiting] == [200, 200]


async def test_anthropic_calls_it_overloaded(limited: Limited) -> None:
    async with limited(max_num_seqs=1, max_queue=0) as server, client_of(server) as client:
        running_one = await begin(client, server, "endless")
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        refused = await client.post("/v1/messages", json=body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (529, "overloaded_error")
        assert "retry-after" in refused.headers
        await end(running_one)


async def test_the_queue_is_bounded_by_tokens_too(limited: Limited) -> None:
    async with limited(max_num_seqs=1, max_queue_tokens=100) as server, client_of(server) as client:
        running_one = await begin(client, server, "endless")
        large = await wait_in_line(client, server, "word " * 200)
        refused = await post(client, "word " * 200)
        assert refused.status_code == 503
        assert "prompt tokens are waiting" in refused.json()["error"]["message"]
        assert server.manager.metrics.of("m").refused["queue_tokens"] == 1
        await end(running_one)
        assert (await large).status_code == 200, "one alone may wait, however large"


async def test_who_waits_too_long_is_refused(limited: Limited) -> None:
    async with limited(max_num_seqs=1, queue_timeout=0.2) as server, client_of(server) as client:
        running_one = await begin(client, server, "endless")
        refused = await post(client, "hi")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_overloaded")
        assert "not admitted within 0.2 s" in refused.json()["error"]["message"]
        assert "retry-after" in refused.headers
        metrics = server.manager.metrics.of("m")
        assert metrics.refused["queue_timeout"] == 1
        assert server.engine.stats().running == 1, "the one that runs is left alone"
        assert metrics.meter.queued == 0
        await end(running_one)


async def test_the_timer_does_not_wait_for_an_engine_that_hangs(limited: Limited) -> None:
    async with limited(queue_timeout=0.3) as server, client_of(server) as client:
        os.kill(server.engine.pid, signal.SIGSTOP)
        try:
            refused = await post(client, "hi")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_overloaded")
            await eventually(lambda: server.engine.in_flight == 0)
        finally:
            os.kill(server.engine.pid, signal.SIGCONT)
        assert (await post(client, "hi")).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_has_a_deadline(limited: Limited, stream: bool) -> None:
    async with limited(request_timeout=4) as server, client_of(server) as client:
        late = await post(client, "endless", stream=stream)
        if stream:
            assert late.status_code == 200
            last = late.text.strip().split("\n\n")[-1].removeprefix("data: ")
            assert json.loads(last)["error"]["code"] == "request_timeout"
            assert "[DONE]" not in late.text
            assert "word" in late.text
        else:
            assert late.status_code == 504
            assert late.headers["x-should-retry"] == "false", "it would take as long again"
        await eventually(lambda: server.engine.stats().running == 0)
        assert server.manager.metrics.of("m").cancelled["timeout"] == 1
        assert (await post(client, "hi")).status_code == 200


async def test_a_prompt_the_cache_cannot_hold_is_not_worth_repeating(limited: Limited) -> None:
    async with limited() as server, client_of(server) as client:
        refused = await post(client, "full")
        assert refused.status_code == 503
        assert refused.headers["x-should-retry"] == "false"


async def test_who_leaves_while_waiting_leaves_no_trace(limited: Limited) -> None:
    async with limited(max_num_seqs=1) as server, client_of(server) as client:
        running_one = await begin(client, server, "endless")
        waiting = [await wait_in_line(client, server, "hi") for _ in range(3)]
        sent = server.engine.stats().requests
        await end(*waiting)
        metrics = server.manager.metrics.of("m")
        await eventually(lambda: metrics.meter.queued == 0)
        assert server.engine.stats().requests == sent
        await eventually(lambda: metrics.cancelled["disconnect"] == 3)
        await end(running_one)
        await eventually(lambda: server.engine.in_flight == 0)
        assert (await post(client, "hi")).status_code == 200


async def test_one_request_larger_than_the_engine_is_served_alone(limited: Limited) -> None:
    async with limited(max_num_seqs=2) as server, client_of(server) as client:
        answers = await asyncio.gather(*(post(client, "hi", n=4, temperature=1) for _ in range(3)))
        assert [len(a.json()["choices"]) for a in answers] == [4, 4, 4]
        assert server.engine.in_flight == 0


async def test_who_waits_survives_the_engine(limited: Limited) -> None:
    async with limited(max_num_seqs=1) as server, client_of(server) as client:
        running_one = await begin(client, server, "endless")
        waiting = [await wait_in_line(client, server, "hi") for _ in range(3)]
        os.kill(server.engine.pid, signal.SIGKILL)
        assert "engine" in (await running_one).text
        assert [(await task).status_code for task in waiting] == [200, 200, 200]
        assert server.engine.stats().restarts == 1


async def test_a_short_call_does_not_wait_behind_long_ones(limited: Limited) -> None:
    async with limited(max_num_seqs=1) as server, client_of(server) as client:
        running_one = await begin(client, server, "endless")
        done: list[str] = []

        async def ask(name: str, word: str) -> None:
            assert (await post(client, word)).status_code == 200
            done.append(name)

        meter = server.manager.metrics.of("m").meter
        tasks = []
        for i, (name, word) in enumerate(
            (("long", "word " * 300), ("longer", "word " * 900), ("title", "hi"))
        ):
            tasks.append(asyncio.create_task(ask(name, word)))
            await eventually(lambda i=i: meter.queued == i + 1)
        await end(running_one)
        await asyncio.gather(*tasks)
        assert done == ["title", "long", "longer"]


@pytest.mark.long
async def test_who_waits_for_prompts_is_let_in_with_others(limited: Limited) -> None:
    """Each step with a newcomer may cost the engine a copy of its cache, so they should come together."""
    async with limited(max_num_batched_tokens=60, max_num_seqs=60) as server, client_of(server) as client:
        meter = server.manager.metrics.of("m").meter
        # A first token every other step: without the others there would be room for one more each time.
        texts = [f"after {i} steps " + "word " * 80 for i in STEPS]
        tasks = [asyncio.create_task(post(client, text)) for text in texts]
        await eventually(lambda: meter.queued + server.engine.stats().running == len(tasks))
        together = server.engine.stats().running
        lengths = [meter.queued]
        assert together >= 8, "the room that this test takes for given"
        assert lengths[0] >= 2 * together
        while meter.queued:
            if meter.queued != lengths[-1]:
                lengths.append(meter.queued)
            await asyncio.sleep(0)
        let_in = [before - after for before, after in itertools.pairwise(lengths)]
        # The last may be fewer: those that are left.
        assert min(let_in[:-1], default=together) >= together // 3, let_in
        assert {(await task).status_code for task in tasks} == {200}


@pytest.mark.parametrize("path", ["/v3/chat/completions", "/v3/completions", "/v3/responses"])
async def test_one_user_does_not_starve_another(limited: Limited, path: str) -> None:
    text = {"/v3/completions": "prompt", "/v3/responses": "input"}
    async with limited(max_num_seqs=1) as server, client_of(server) as client:
        running_one = await begin(client, server, "endless")
        done: list[str] = []

        async def ask(user: str) -> None:
            body: dict[str, object] = {"model": "m", "user": user}
            body |= {text[path]: "hi"} if path in text else {"messages": [{"role": "user", "content": "hi"}]}
            answer = await client.post(path, json=body, timeout=230)
            assert (answer.status_code, answer.headers.get("x-ovserve-ignored-params")) == (200, None)
            done.append(user)

        meter = server.manager.metrics.of("m").meter
        tasks = []
        for i, user in enumerate(["flood"] * 8 + ["late"] * 2):
            tasks.append(asyncio.create_task(ask(user)))
            await eventually(lambda i=i: meter.queued == i + 1)
        await end(running_one)
        await asyncio.gather(*tasks)
        assert done[:5].count("late") == 2


async def test_the_engine_stopping_ends_who_waits(limited: Limited) -> None:
    async with limited(max_num_seqs=1) as server, client_of(server) as client:
        running_one = await begin(client, server, "endless")
        waiting = [await wait_in_line(client, server, "hi") for _ in range(2)]
        await server.engine.stop()
        await running_one
        assert [(await task).status_code for task in waiting] == [503, 503]
        metrics = server.manager.metrics.of("m")
        await eventually(lambda: metrics.running == 0)
        assert server.engine.in_flight == 0


@pytest.mark.long
async def test_a_graph_has_its_own_stall_timeout(limited: Limited) -> None:
    """The server's is two minutes."""
    async with limited(stall_timeout=0.5) as server, client_of(server) as client:
        answer = await post(client, "stuck")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_restarting")
        assert "did not end a step within 0.5 s" in answer.json()["error"]["message"]
        assert server.engine.stats().stalls == 2


async def test_a_flood_from_one_key_has_no_other_refused(limited: Limited, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(entry_text("flood", "key-of-the-flood") + entry_text("late", "key-of-the-late-one"))
    async with (
        limited(Guard("", keys), max_num_seqs=1, max_queue=3) as server,
        client_of(server) as flood,
        client_of(server) as late,
    ):
        flood.headers["Authorization"] = "Bearer key-of-the-flood"
        late.headers["Authorization"] = "Bearer key-of-the-late-one"
        running_one = await begin(flood, server, "endless")
        waiting = [await wait_in_line(flood, server, "hi") for _ in range(3)]
        assert (await post(flood, "hi")).status_code == 503
        one = asyncio.create_task(post(late, "hi"))
        loser = await waiting.pop()  # the last that came gave way
        assert (loser.status_code, loser.json()["error"]["code"]) == (503, "server_overloaded")
        assert "this caller's" in loser.json()["error"]["message"]
        assert "retry-after-ms" in loser.headers
        metrics = server.manager.metrics.of("m")
        assert (metrics.refused["queue_full"], metrics.refused["queue_share"]) == (1, 1)
        await end(running_one)
        assert [(await task).status_code for task in (*waiting, one)] == [200, 200, 200]


async def test_a_key_can_have_shorter_limits_than_the_graph(limited: Limited, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    own = "max_queue = 1\nqueue_timeout = 3\nrequest_timeout = 4\n"
    keys.write_text(
        entry_text("short", "key-of-short-patience") + own + entry_text("other", "key-of-another")
    )
    async with (
        limited(Guard("", keys), max_num_seqs=1) as server,
        client_of(server) as short,
        client_of(server) as other,
    ):
        short.headers["Authorization"] = "Bearer key-of-short-patience"
        other.headers["Authorization"] = "Bearer key-of-another"
        assert (await post(short, "endless")).json()["error"]["code"] == "request_timeout"
        running_one = await begin(other, server, "endless")
        waiting = await wait_in_line(short, server, "hi")
        refused = await post(short, "hi")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "retry-after-ms" in refused.headers
        late = await waiting
        assert (late.status_code, "not admitted within 3 s" in late.text) == (503, True)
        patient = await wait_in_line(other, server, "hi")
        await end(running_one)
        assert (await patient).status_code == 200

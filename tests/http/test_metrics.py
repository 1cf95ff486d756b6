"""/metrics after known requests: what is counted, under which names, with which labels and buckets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ovserve.errors import InvalidArgument
from ovserve.services.monitoring.families import ENGINE_PROCESS, FAMILIES, NAMES, PROCESS, choose, parse_list
from scripts.metrics_docs import FILE, text
from tests.conftest import ROOT, Server, eventually, start_server
from tests.http.conftest import Running, Scripted

SCRIPT = json.dumps(
    {
        "step_seconds": 0.005,
        "cache_usage": 0.25,
        "replies": [
            {"match": "endless", "text": "word ", "repeat": 0},
            {"match": "prefill", "text": "late", "wait_steps": 100_000},
            {"match": "full", "refuse": "resource_exhausted"},
            {"match": "two", "pieces": ["a", "b", "c", "d"], "burst": 2},
            {"text": "one two three"},
        ],
    }
)
OVMS_BUCKETS = re.findall(
    r"\S+",
    "10 18 32 58 104 188 340 612 1101 1983 3570 6426 11568 20822 37481 67466 121439 218591 393464 708235 "
    "1274823 2294682 4130428 7434771 13382588 24088659 43359586 78047255 140485060 252873108 455171596 "
    "819308872 1474755971 +Inf",
)
VLLM = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens_total": "counter",
    "vllm:generation_tokens_total": "counter",
    "vllm:request_success_total": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
}


class Scrape:
    """What Prometheus makes of the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        # The parser adds _total to the name of every counter; here each has the name it came with.
        self.samples = {
            (self._own(s.name), frozenset(s.labels.items())): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
        }
        self.names = {name for name, _ in self.samples}

    def _own(self, name: str) -> str:
        plain = name.removesuffix("_total")
        return plain if plain in self.kinds else name

    def __call__(self, name: str, /, **labels: str) -> float:
        """The one sample of that name that has all these labels."""
        found = [v for (n, have), v in self.samples.items() if n == name and labels.items() <= set(have)]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0]


async def scrape(client: httpx.AsyncClient) -> Scrape:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(answer.text)


async def post(client: httpx.AsyncClient, word: str, **more: object) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": word}], **more}
    return await client.post("/v3/chat/completions", json=body, timeout=230)


UNARY = {"api": "V3", "interface": "REST", "method": "Unary", "name": "m"}
STREAM = UNARY | {"method": "Stream"}


async def test_unary_streamed_failed_and_refused_requests_are_counted(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        before = await scrape(client)
        assert before("ovms_requests_accepted", **UNARY) == 0
        assert (await post(client, "hi", colour="blue")).status_code == 200
        streamed = await post(client, "hi", stream=True)
        assert (await post(client, "full")).status_code == 503
        assert (await post(client, "hi", temperature="hot")).status_code == 400
        assert (await client.post("/v3/chat/completions", json={"model": "other"})).status_code == 404
        seen = await scrape(client)

    assert seen("ovms_requests_accepted", **UNARY) == 3
    assert seen("ovms_requests_accepted", **STREAM) == 1
    assert seen("ovms_responses", **UNARY) == 1
    assert seen("ovms_responses", **STREAM) == len([e for e in streamed.text.split("\n\n") if e]) - 1, (
        "the last piece holds the end and [DONE]"
    )
    assert seen("ovms_graph_error", **UNARY) == 2
    assert seen("ovms_current_graphs", name="m") == 0
    assert seen("ovms_graph_processing_time_us_count", name="m", method="Unary") == 1
    assert seen("ovms_graph_processing_time_us_count", name="m", method="Stream") == 1
    assert seen("ovms_graph_processing_time_us_sum", name="m", method="Stream") > 4 * 5000
    latency = "ovms_graph_request_latency_us"
    assert before(f"{latency}_count", name="m", method="Stream") == 0
    assert seen(f"{latency}_count", name="m", method="Stream") == 1
    processing = seen("ovms_graph_processing_time_us_sum", name="m", method="Stream")
    assert 0 < seen(f"{latency}_sum", name="m", method="Stream") < processing
    assert seen("ovserve_requests_finished_total", name="m") == 2
    assert seen("ovserve_requests_failed_total", name="m", reason="resource_exhausted") == 1
    assert seen("ovserve_requests_failed_total", name="m", reason="invalid_argument") == 1
    assert seen("ovserve_choices_finished_total", name="m", finished_reason="stop") == 2
    assert seen("vllm:request_success_total", model_name="m", engine="0", finished_reason="stop") == 2
    assert seen("ovserve_ignored_params_total", name="m") == 1
    assert seen("ovserve_http_responses_total", status="404") == 1
    assert seen("ovserve_servable_state", name="m", state="AVAILABLE") == 1
    assert seen("ovserve_servable_state", name="m", state="LOADING") == 0
    assert seen("ovserve_servable_error", name="m") == 0
    assert seen("ovserve_reloads_total", result="failed") == 0
    assert 'name="other"' not in seen.text, "a name from a body must not become a label"


async def test_tokens_and_times_are_those_of_the_requests(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        usage = (await post(client, "hi you")).json()["usage"]
        await post(client, "two")
        seen = await scrape(client)
    assert usage["completion_tokens"] == 3
    tokens = 3 + 4
    assert seen("ovserve_generated_tokens_total", name="m") == tokens
    assert seen("vllm:generation_tokens_total", model_name="m") == tokens
    # A word of the script's prompt is a token: "user: hi you assistant:" and "user: two assistant:".
    assert usage["prompt_tokens"] == 4
    assert seen("vllm:prompt_tokens_total", model_name="m") == 4 + 3
    assert seen("ovserve_request_prompt_tokens_sum", name="m") == 4 + 3
    assert seen("ovserve_request_generated_tokens_bucket", name="m", le="2") == 0
    assert seen("ovserve_request_generated_tokens_bucket", name="m", le="5") == 2
    for name in ("queue_time", "time_to_first_token", "prefill_time", "request_latency", "decode_time"):
        assert seen(f"ovserve_{name}_seconds_count", name="m") == 2, name
    # Every token but the first of a request; two that come together share their gap.
    assert seen("ovserve_inter_token_latency_seconds_count", name="m") == 2 + 2
    gaps = seen("ovserve_inter_token_latency_seconds_sum", name="m")
    assert gaps == pytest.approx(seen("ovserve_decode_time_seconds_sum", name="m"))
    first = seen("ovserve_time_to_first_token_seconds_sum", name="m")
    waited = seen("ovserve_queue_time_seconds_sum", name="m")
    assert waited + seen("ovserve_prefill_time_seconds_sum", name="m") == pytest.approx(first)
    assert first + gaps < seen("ovserve_request_latency_seconds_sum", name="m"), (
        "the end is a step of its own"
    )


async def test_choices_of_one_request_share_its_prompt(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        await post(client, "hi", n=3, temperature=1)
        seen = await scrape(client)
    assert seen("vllm:prompt_tokens_total", model_name="m") == 3
    assert seen("ovserve_queue_time_seconds_count", name="m") == 1
    assert seen("vllm:generation_tokens_total", model_name="m") == 9
    assert seen("ovserve_choices_finished_total", name="m", finished_reason="stop") == 3
    assert seen("ovserve_requests_finished_total", name="m") == 1


async def leave(client: httpx.AsyncClient, server: Running, *, stream: bool) -> None:
    task = asyncio.create_task(post(client, "endless", stream=stream))
    generated = server.engine.stats().generated_tokens
    await eventually(lambda: server.engine.stats().generated_tokens > generated)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_a_cancellation(scripted: Scripted, stream: bool) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        await leave(client, server, stream=stream)
        await eventually(lambda: server.engine.stats().running == 0)
        metrics = server.manager.metrics.of("m")
        await eventually(lambda: metrics.running == 0)
        seen = await scrape(client)
    assert seen("ovserve_requests_cancelled_total", name="m", cause="disconnect") == 1
    assert seen("ovserve_requests_cancelled_total", name="m", cause="shutdown") == 0
    assert seen("ovserve_requests_finished_total", name="m") == 0
    assert seen("ovms_graph_error", **(STREAM if stream else UNARY)) == 1
    assert seen("vllm:num_requests_running", model_name="m") == 0


async def test_gauges_while_requests_run_and_wait(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        tasks = [asyncio.create_task(post(client, word)) for word in ("endless", "endless", "prefill")]

        async def until(condition: Callable[[Scrape], bool]) -> Scrape:
            async with asyncio.timeout(60):
                while not condition(seen := await scrape(client)):
                    pass
            return seen

        # The engine tells how full its cache is with a step, which the requests do not wait for.
        await until(lambda s: s("vllm:kv_cache_usage_perc", model_name="m") == 0.25)
        seen = await until(lambda s: s("vllm:num_requests_waiting", model_name="m") == 1)
        assert seen("vllm:num_requests_running", model_name="m") == 2
        assert seen("ovms_current_graphs", name="m") == 3
        assert seen("ovserve_kv_cache_bytes", name="m") == 1 << 20
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        seen = await until(lambda s: s("ovms_current_graphs", name="m") == 0)
        seen = await until(lambda s: s("vllm:kv_cache_usage_perc", model_name="m") == 0)
        assert seen("vllm:num_requests_running", model_name="m") == 0
        assert seen("vllm:num_requests_waiting", model_name="m") == 0


async def test_an_engine_that_dies_is_a_failure_and_a_restart(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        task = asyncio.create_task(post(client, "endless", stream=True))
        await eventually(lambda: server.engine.stats().generated_tokens > 2)
        os.kill(server.engine.pid, signal.SIGKILL)
        await task
        await eventually(lambda: server.engine.stats().restarts == 1)
        seen = await scrape(client)
    assert seen("ovserve_engine_restarts_total", name="m") == 1
    assert seen("ovserve_requests_failed_total", name="m", reason="engine_restarting") == 1
    assert seen("vllm:num_requests_running", model_name="m") == 0


async def test_every_accepted_request_ends_in_one_way(scripted: Scripted) -> None:
    """accepted = finished + failed + cancelled + refused, once nothing runs."""
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        words = ["hi", "full", "two", "nothing"] * 5
        await asyncio.gather(*(post(client, word, stream=i % 2 == 0) for i, word in enumerate(words)))
        await asyncio.gather(*(leave(client, server, stream=i % 2 == 0) for i in range(4)))
        metrics = server.manager.metrics.of("m")
        await eventually(lambda: metrics.running == 0)
        ended = metrics.finished + sum((metrics.failed + metrics.cancelled + metrics.refused).values())
        assert sum(metrics.accepted.values()) == ended == 24
        assert metrics.meter.in_engine == 0


async def test_names_types_labels_and_buckets(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        await post(client, "hi")
        seen = await scrape(client)
    for name, kind in VLLM.items():
        assert seen.kinds[name] == kind, name
    for name in ("ovms_requests_accepted", "ovms_requests_rejected", "ovms_responses", "ovms_graph_error"):
        assert seen.kinds[name] == "counter"
        assert f"{name}_total" not in seen.text, "OVMS's counters end without it"
    pattern = r'^ovms_graph_processing_time_us_bucket\{name="m",method="Unary",le="([^"]+)"\} '
    assert re.findall(pattern, seen.text, re.MULTILINE) == OVMS_BUCKETS
    for family in FAMILIES:
        for name in filter(None, (family.name, family.vllm)):
            assert seen.kinds[name] == family.kind, name
    assert not {n for n in NAMES - {PROCESS, ENGINE_PROCESS} if n not in seen.kinds}
    assert seen("process_resident_memory_bytes") > 1 << 20
    assert seen("ovserve_engine_process_resident_memory_bytes", name="m") > 1 << 20
    bounds = re.findall(
        r'^vllm:inter_token_latency_seconds_bucket\{.*le="([^+"]+)"\}', seen.text, re.MULTILINE
    )
    assert [float(b) for b in bounds] == sorted({float(b) for b in bounds})


def test_a_list_replaces_the_default() -> None:
    assert parse_list("all") == NAMES
    assert parse_list("ovms_responses, vllm:num_requests_waiting") == {
        "ovms_responses",
        "vllm:num_requests_waiting",
    }
    assert choose(["ovms_streams"]) == {"ovms_streams"}
    with pytest.raises(InvalidArgument, match="'ovms_response' is not .*did you mean ovms_responses"):
        parse_list("ovms_response")


async def test_what_is_not_listed_is_not_shown(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        server.manager.metrics.enabled = choose(["ovms_responses", "vllm:num_requests_waiting"])
        assert set((await scrape(client)).kinds) == {"ovms_responses", "vllm:num_requests_waiting"}
        server.manager.metrics.enabled = frozenset()
        off = await client.get("/metrics")
        assert off.status_code == 404
        assert "--metrics_enable" in off.json()["error"]["message"]


def test_the_real_engine_tells_of_its_cache(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=230) as client:
        before = Scrape(client.get("/metrics").text)
        # The engine reports ten times a second, and 12 tokens take less.
        body = {"model": "smollm2", "prompt": "The capital of France is " * 40, "max_tokens": 200}
        seen_cache = 0.0
        with client.stream("POST", "/v3/completions", json={**body, "stream": True, "ignore_eos": True}) as s:
            for _ in s.iter_lines():
                now = Scrape(httpx.get(f"{server.url}/metrics").text)
                seen_cache = max(seen_cache, now("vllm:kv_cache_usage_perc", model_name="smollm2"))
        after = Scrape(client.get("/metrics").text)
    assert 0 < seen_cache < 0.5, "this cache may grow to gigabytes, of which a prompt of 240 tokens is little"
    assert after("vllm:kv_cache_usage_perc", model_name="smollm2") == 0
    assert after("ovserve_kv_cache_bytes", name="smollm2") > 0
    label = {"model_name": "smollm2"}
    gained = after("vllm:generation_tokens_total", **label) - before("vllm:generation_tokens_total", **label)
    assert gained == 200


def queried(path: Path) -> set[str]:
    """Every metric name in the expressions of a dashboard."""
    text = json.dumps([p.get("targets", []) for p in json.loads(path.read_text())["panels"]])
    return set(re.findall(r"\b(?:ovms_|ovserve_|process_|vllm:)\w+", text))


async def test_the_dashboard_queries_only_what_there_is(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        await post(client, "hi")
        await post(client, "full")
        seen = await scrape(client)
    names = queried(ROOT / "examples/grafana/dashboard.json")
    assert len(names) > 15
    assert names <= seen.names, names - seen.names


def test_the_document_is_what_make_docs_writes() -> None:
    assert FILE.read_text() == text(), "stale: run make docs"


def test_a_family_nobody_knows_stops_the_server(tmp_path: Path, model: Path) -> None:
    with pytest.raises(RuntimeError, match="ovms_respones.* is not a known metric family"):
        start_server(ROOT / "graphs/smollm2", "--metrics_list", "ovms_respones")

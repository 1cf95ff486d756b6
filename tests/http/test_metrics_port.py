"""--metrics_port as an endpoint picker and Prometheus use it: no key, twenty times a second, four families."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ovserve.access import as_system
from ovserve.server.settings import Settings, problem
from ovserve.services.monitoring import scrape
from ovserve.services.monitoring.scrape import Scraper
from ovserve.serving.manager import Manager
from tests.conftest import Server, script_graph, start_server
from tests.http.conftest import Scripted
from tests.ports import free_port

KEY = "correct-horse-battery"
HEADERS = {"Authorization": f"Bearer {KEY}"}
PICKER = {
    "vllm:num_requests_waiting",
    "vllm:num_requests_running",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
}


async def measure_scrape(manager: Manager, times: int = 100) -> float:
    """Return the median CPU seconds of a page."""
    scraper, took = Scraper(manager), []
    with as_system():
        for _ in range(times):
            before = time.process_time()
            await scraper.scrape()
            took.append(time.process_time() - before)
    return sorted(took)[times // 2]


@contextmanager
def served(tmp_path: Path, *flags: str) -> Iterator[tuple[Server, str]]:
    """A server with a key, and the URL of its metrics."""
    graph, port = script_graph(tmp_path / "g", '{"replies": [{"text": "one two"}]}'), free_port()
    text = (graph / "graph.pbtxt").read_text()
    (graph / "graph.pbtxt").write_text(text.replace('.script.json"', '.script.json"\n cache_size: 1'))
    (tmp_path / "key").write_text(KEY)
    given = ("--api_key_file", str(tmp_path / "key"), "--metrics_port", str(port), *flags)
    server = start_server(graph, *given, name="m")
    try:
        yield server, f"http://127.0.0.1:{port}"
    finally:
        server.stop()


def test_a_picker_reads_its_families_without_a_key(tmp_path: Path) -> None:
    with served(tmp_path) as (server, metrics), httpx.Client() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert client.get(f"{server.url}/metrics").status_code == 401
        assert client.post(f"{metrics}/v3/chat/completions", json=body).status_code == 404
        assert client.get(f"{metrics}/v1/config", headers=HEADERS).status_code == 404
        assert client.post(f"{metrics}/metrics").status_code == 405
        assert client.get(f"{metrics}/v2/health/ready").status_code == 200
        assert client.head(f"{metrics}/health").status_code == 200
        answered = 0
        for round_ in range(20):
            if round_ % 5 == 0:
                answer = client.post(f"{server.url}/v3/chat/completions", json=body, headers=HEADERS)
                answered += answer.status_code == 200
            page = client.get(f"{metrics}/metrics")
            assert page.status_code == 200
            families = {f.name: f for f in text_string_to_metric_families(page.text)}
            assert families.keys() >= PICKER
            assert {families[name].type for name in PICKER} == {"gauge"}
            [finished] = [
                s.value
                for s in families["vllm:e2e_request_latency_seconds"].samples
                if s.name.endswith("_count")
            ]
            assert finished == answered, "kept lines are renewed with every observation"
        [info] = families["vllm:cache_config_info"].samples
        assert (info.value, info.labels["model_name"], info.labels["block_size"]) == (1.0, "m", "32")
        assert info.labels["num_gpu_blocks"].isdecimal()


async def test_a_page_is_cheap_and_the_same_as_a_new_one(scripted: Scripted) -> None:
    async with scripted(json.dumps({"replies": [{"text": "one two three"}]})) as server:
        kept = Scraper(server.manager)
        async with httpx.AsyncClient(base_url=server.url) as client:
            for stream in (False, True):
                with as_system():
                    await kept.scrape()
                body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
                assert (await client.post("/v3/chat/completions", json=body)).status_code == 200
        with as_system():
            scrapers = (kept, Scraper(server.manager))
            pages = [(await scraper.scrape()).decode().splitlines() for scraper in scrapers]
        old, new = ([line for line in page if "process_" not in line] for page in pages)
        assert old == new
        assert await measure_scrape(server.manager) < 0.005, "twenty a second are less than 10 % of a core"


async def test_others_have_turns_while_the_page_of_many_models_is_written(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the event loop for half a second with 500 models, for each scrape and each look of the console."""
    async with scripted(json.dumps({"replies": [{"text": "one"}]})) as server:
        [model] = scrape._models(server.manager)
        monkeypatch.setattr(scrape, "_models", lambda manager: [model] * 300)
        with as_system():
            page = asyncio.create_task(Scraper(server.manager).scrape())
        turns = 0
        while not page.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > page.result().count(b"# HELP"), "one model's samples of a family are few"


def test_ports_that_exclude_each_other_and_one_that_is_taken(tmp_path: Path) -> None:
    assert problem(Settings(metrics_port=8000)) == "--metrics_port: 8000 is --rest_port too"
    assert problem(Settings(metrics_port=9000, grpc_port=9000)) == "--metrics_port: 9000 is --grpc_port too"
    assert "0 to 65535" in str(problem(Settings(metrics_port=70_000)))
    assert "expected an address" in str(problem(Settings(metrics_bind_address=" ")))
    with served(tmp_path) as (_, metrics), pytest.raises(RuntimeError, match="cannot listen on"):
        start_server(tmp_path / "g", "--metrics_port", metrics.rpartition(":")[2])

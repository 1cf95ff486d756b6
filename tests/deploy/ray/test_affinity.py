"""Conversations with the default model on two replicas: how much of their prompts is found in a cache."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import MODEL, ROOT, until
from tests.deploy.ray.conftest import DATA_PLANE, Ray, plan_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]
NAME = "talk"  # deployments that the proxy knew before reject requests for an instant: docs/clusters.md
TURNS = 5
TOPICS = ("ships", "birds", "bread", "clocks", "rivers")  # odd: turns in rotation are not affinity


@pytest.fixture(params=["none", "session"])
def app(request: pytest.FixtureRequest, ray: Ray, tmp_path: Path) -> Iterator[tuple[str, Ray]]:
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    text = text.replace(
        'models_path: "../../models/smollm2"', f'models_path: "{MODEL.parent}"\n      cache_size: 1'
    )
    (tmp_path / "talk").mkdir()
    (tmp_path / "talk/graph.pbtxt").write_text(text)
    options = {"min_replicas": 2, "max_replicas": 2, "max_num_seqs": 8}
    ray.deploy(plan_for(tmp_path, name=NAME, affinity=request.param, **options))
    until(lambda: ray.replicas(NAME) == 2)
    until(lambda: httpx.get(f"{ray.url}/v2/health/ready").status_code == 200)
    yield request.param, ray
    ray.delete(NAME)
    until(lambda: not ray.servers())


RATES: dict[str, float] = {}


def test_a_session_finds_its_prefix_in_the_cache(app: tuple[str, Ray]) -> None:
    affinity, ray = app
    hits, answered = converse(ray.url, headers=DATA_PLANE == "python")
    assert all(answered.values()), "a replica got nothing"
    RATES[affinity] = hits
    sys.stderr.write(f"{DATA_PLANE}, affinity {affinity}: {hits:.0%} of prompt tokens cached, {answered}\n")
    if affinity == "session":
        assert hits >= RATES["none"] + 0.1, RATES


def converse(url: str, headers: bool) -> tuple[float, dict[str, int]]:
    """Hold all conversations by turns, one request at a time; return the part of prompt tokens that was
    cached, and the requests of each replica. With `headers` clients name their session."""
    talks = {t: [{"role": "system", "content": f"You know about {t}."}] for t in TOPICS}
    cached = tokens = 0
    for turn in range(TURNS):
        for topic, messages in talks.items():
            messages.append({"role": "user", "content": f"{topic} {turn} " * 40 + "?"})
            body = {"model": "talk", "messages": messages, "max_tokens": 16, "temperature": 0}
            given = {"x-session-id": topic} if headers else {}
            answer = httpx.post(f"{url}/v3/chat/completions", json=body, headers=given, timeout=230).json()
            tokens += answer["usage"]["prompt_tokens"]
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            messages.append(answer["choices"][0]["message"])
    return cached / tokens, by_replica(url)


def by_replica(url: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith("ovserve_requests_finished_total{"):
            found[line.partition('replica="')[2].partition('"')[0]] = int(float(line.split()[-1]))
    return found

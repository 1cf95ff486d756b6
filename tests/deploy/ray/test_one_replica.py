"""The default model behind Ray Serve: answers, streams, cancellation, and what is refused or merged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from ovserve.deploy.ray.plan import Plan
from ovserve.deploy.ray.rollout import pack
from ovserve.serving.config.file import SingleGraph
from ovserve.serving.settings import ServableSpec
from tests.conftest import ROOT, until
from tests.deploy.ray.conftest import DATA_PLANE, Ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]
CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 16}


@pytest.fixture(scope="module")
def url(ray: Ray) -> Iterator[str]:
    repository = SingleGraph(ServableSpec.of_directory("smollm2", ROOT / "graphs/smollm2"))
    plan = Plan(
        pack(repository),
        {"response_store": "off", "sse_ping_interval": "0.2"},
        data_plane=DATA_PLANE,
        affinity="none",
    )
    ray.deploy(plan)
    until(lambda: httpx.get(f"{ray.url}/v2/health/ready").status_code == 200)
    yield ray.url
    ray.delete()
    until(lambda: not ray.servers())


def requests_cancelled(url: str) -> float:
    page = httpx.get(f"{url}/metrics").text
    lines = [line for line in page.splitlines() if line.startswith("ovserve_requests_cancelled_total{")]
    assert all('replica="' in line for line in lines)
    return sum(float(line.split()[-1]) for line in lines)


def test_an_answer_is_the_servers_own(url: str) -> None:
    answer = httpx.post(
        f"{url}/v3/chat/completions",
        json=CHAT | {"temperature": 0},
        headers={"x-request-id": "mine"},
        timeout=230,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert len(answer.headers.get_list("date")) == 1
    wrong = httpx.post(
        f"{url}/v3/chat/completions", content=b"{", headers={"content-type": "application/json"}
    )
    assert wrong.status_code == 400
    assert "error" in wrong.json()


def test_a_stream_arrives_in_pieces_with_pings(url: str) -> None:
    times, lines = [], []
    with httpx.stream(
        "POST", f"{url}/v3/chat/completions", json=CHAT | {"stream": True, "max_tokens": 64}, timeout=230
    ) as got:
        assert got.headers["content-type"].startswith("text/event-stream")
        for line in got.iter_lines():
            times.append(time.monotonic())
            lines.append(line)
    assert [line for line in lines if line][-1] == "data: [DONE]"
    assert len({round(moment, 2) for moment in times}) > 3


def leave_after(seconds: float, url: str, body: dict[str, object]) -> None:
    began = time.monotonic()
    with httpx.stream("POST", url, json=body, timeout=seconds) as got:
        for _ in got.iter_lines():
            if time.monotonic() - began > seconds:
                return


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_request(url: str, stream: bool) -> None:
    before = requests_cancelled(url)
    body = CHAT | {"stream": stream, "max_tokens": 4000, "ignore_eos": True}
    with suppress(httpx.ReadTimeout):
        leave_after(0.5, f"{url}/v3/chat/completions", body)
    until(lambda: requests_cancelled(url) == before + 1)


def test_what_would_change_one_replica_is_refused(url: str) -> None:
    answer = httpx.post(f"{url}/v1/config/reload")
    assert answer.status_code == 409
    assert "deployment" in answer.json()["error"]
    assert httpx.post(f"{url}/v2/repository/models/smollm2/unload", json={}).status_code == 409
    states = httpx.get(f"{url}/v1/config").json()
    [version] = states["smollm2"]["model_version_status"]
    assert (version["state"], version["status"]["error_code"]) == ("AVAILABLE", "OK")


def test_large_bodies_and_odd_paths_pass(url: str) -> None:
    text = "x" * (31 << 20)
    large = httpx.post(
        f"{url}/v3/chat/completions",
        content=json.dumps(CHAT | {"user": text}),
        headers={"content-type": "application/json"},
        timeout=230,
    )
    assert large.status_code in (200, 400), large.text[:200]
    too_large = httpx.post(
        f"{url}/v3/chat/completions",
        content=b" " * (33 << 20),
        headers={"content-type": "application/json"},
        timeout=230,
    )
    assert too_large.status_code == 413, too_large.text[:200]
    odd = httpx.get(f"{url}/v3/models/no%2Fsuch%20model?a=%C3%A9")
    assert odd.status_code == 404
    assert "no/such model" in odd.text

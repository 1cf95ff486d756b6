"""Replicas follow the queue: 1, then 3, then 1; scripted engines with answers of some seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.conftest import script_graph, until
from tests.deploy.ray.conftest import Ray, plan_for, script
from tests.deploy.ray.load import DONE, Load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]
FINISHED = "ovserve_requests_finished_total"
SEQUENCES = 2  # that a replica computes at the same time


@pytest.fixture
def app(ray: Ray, tmp_path: Path) -> Iterator[Ray]:
    graph = script_graph(tmp_path / "words", script(0.05, " ".join(["w"] * 60)))
    file = graph / "graph.pbtxt"
    file.write_text(
        file.read_text().replace('script.json"', f'script.json"\n      max_num_seqs: {SEQUENCES}')
    )
    plan = plan_for(tmp_path, max_replicas=3, max_num_seqs=SEQUENCES, upscale_delay=1.0, downscale_delay=4.0)
    ray.deploy(replace(plan, max_queue=1000))
    until(lambda: httpx.get(f"{ray.url}/v2/health/ready").status_code == 200)
    yield ray
    ray.delete()
    until(lambda: not ray.servers())


def test_replicas_follow_the_queue_and_no_answer_is_lost(app: Ray) -> None:
    assert app.replicas() == 1
    with Load(app.url, 9) as load:
        until(lambda: app.replicas() == 3, seconds=90)
        # With HAProxy what waits in the first replica stays there, so it takes until clients ask again.
        until(lambda: len(shares := app.metric(FINISHED)) == 3 and min(shares.values()) >= 2, seconds=60)
    before = len(load.ended)
    with Load(app.url, 1) as few:
        until(lambda: app.replicas() == 1 and len(app.servers()) == 1, seconds=150)
    assert before
    assert load.count().keys() == few.count().keys() == {DONE}, (load.failed(), few.failed())

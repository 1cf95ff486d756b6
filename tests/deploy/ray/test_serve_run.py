"""The YAML that `ovserve deploy ray --write_yaml` writes, given to Ray's own `serve run`, with keys."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ovserve.access.keys import entry_text
from tests.conftest import script_graph, until
from tests.deploy.ray.conftest import DATA_PLANE, Ray, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
KEY = "a-key-that-is-long-enough"


@pytest.fixture
def file(ray: Ray, tmp_path: Path) -> Iterator[Path]:
    graph = script_graph(tmp_path / "words", script(0.005, "hello"))
    (tmp_path / "keys.toml").write_text(entry_text("me", KEY))
    written = tmp_path / "app.yaml"
    command = [sys.executable, "-m", "ovserve", "deploy", "ray", "--model_path", str(graph)]
    command += ["--api_keys_file", str(tmp_path / "keys.toml"), "--data_plane", DATA_PLANE]
    subprocess.run([*command, "--write_yaml", str(written)], check=True, timeout=230)
    yield written
    ray.delete()
    until(lambda: not ray.servers())


def test_serve_run_takes_the_file_and_keys_hold(file: Path, ray: Ray) -> None:
    assert KEY not in file.read_text()
    serve = [
        str(Path(sys.executable).parent / "serve"),
        "run",
        "--non-blocking",
        "--address",
        ray.cluster.address,
    ]
    subprocess.run(
        [*serve, str(file)], check=True, timeout=230, env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    )
    until(lambda: ray.replicas() == 1, seconds=90)
    until(lambda: httpx.get(f"{ray.url}/v2/health/ready").status_code == 200, seconds=90)
    body = {"model": "words", "messages": [{"role": "user", "content": "go"}]}
    assert httpx.post(f"{ray.url}/v3/chat/completions", json=body).status_code == 401
    key = {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{ray.url}/v3/chat/completions", json=body, headers=key, timeout=230)
    assert answer.json()["choices"][0]["message"]["content"].strip() == "hello"
    assert httpx.get(f"{ray.url}/metrics").status_code == 401
    assert 'replica="' in httpx.get(f"{ray.url}/metrics", headers=key).text
    assert ray.status()[1] == [], "the replica has a key of its own"

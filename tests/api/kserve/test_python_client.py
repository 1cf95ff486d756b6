"""KServe's Python package, which needs an environment of its own: its client (client.py) against the server, and
its models (manifest.py) against the manifest in examples/deploy.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, start_server
from tests.ports import free_port

PYTHON = Path(os.environ.get("OVSERVE_TEST_KSERVE_PYTHON", ROOT / ".venv-kserve/bin/python"))


pytestmark = pytest.mark.slow


def run(module: str, *arguments: str) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing; `make kserve` makes it")
    command = [str(PYTHON), "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_client_works_over_both_wires() -> None:
    port = free_port()
    server = start_server(ROOT / "examples/04_tensor_graph", "--grpc_port", str(port), name="m")
    try:
        run("tests.api.kserve.client", f"127.0.0.1:{port}", server.url)
    finally:
        assert server.stop() == 0


def test_every_field_of_the_manifest_is_one_of_kserves() -> None:
    run("tests.api.kserve.manifest")

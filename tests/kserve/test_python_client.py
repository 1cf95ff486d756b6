"""KServe's Python client, which needs an environment of its own; see client.py for what it does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, start_server
from tests.reload.site import free_port

PYTHON = Path(os.environ.get("OVSERVE_TEST_KSERVE_PYTHON", ROOT / ".venv-kserve/bin/python"))


@pytest.mark.slow
def test_the_client_works_over_both_wires() -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing; `make kserve` makes it")
    port = free_port()
    server = start_server(ROOT / "examples/04_tensor_graph", "--grpc_port", str(port), name="m")
    try:
        command = [str(PYTHON), "-m", "tests.kserve.client", f"127.0.0.1:{port}", server.url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
    finally:
        assert server.stop() == 0

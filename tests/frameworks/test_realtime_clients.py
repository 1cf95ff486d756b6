"""OpenAI's JavaScript client and its agents, unchanged, in sessions of the Realtime API with a scripted model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import trustme

from tests.conftest import ROOT, start_process
from tests.frameworks.test_ollama import PACKAGES
from tests.http.test_realtime import SCRIPT, text_graph

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_javascript_clients(tmp_path: Path) -> None:
    node, needed = shutil.which("node"), ("openai", "@openai/agents-realtime")
    if node is None or not all((PACKAGES / name).is_dir() for name in needed):
        pytest.skip(f"needs node, and {' and '.join(needed)} in {PACKAGES}; `make frameworks` installs them")
    (tmp_path / "graphs").mkdir()
    graph = text_graph(tmp_path / "graphs/talk", "model.script.json")
    (graph / "model.script.json").write_text(json.dumps(SCRIPT))
    ca = trustme.CA()  # the client of OpenAI speaks wss alone
    certificate = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls = ["--tls_cert_file", str(tmp_path / "cert.pem"), "--tls_key_file", str(tmp_path / "key.pem")]
    server = start_process("--graphs_dir", str(tmp_path / "graphs"), *tls)
    try:
        (tmp_path / "node_modules").symlink_to(PACKAGES.resolve())
        script = shutil.copy(ROOT / "tests/frameworks/realtime_clients.mjs", tmp_path)
        done = subprocess.run(
            [node, str(script), server.url, "talk"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(tmp_path / "ca.pem")},
        )
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["plain"] == {"status": "completed", "text": "Arr, matey."}
    for way in ("agents", "secret"):
        assert found[way] == {
            "calls": ["Oslo"],
            "answers": ["a call", "It rains in Oslo."],
            "errors": [],
            "updates": 2,
        }, way

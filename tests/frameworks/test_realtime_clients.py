"""OpenAI's JavaScript client and its agents, unchanged, in sessions of the Realtime API with a scripted model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from tests.conftest import ROOT, Server, start_process
from tests.console.conftest import ARGUMENTS, CHROMIUM
from tests.frameworks.test_ollama import PACKAGES
from tests.http.test_realtime import SCRIPT, text_graph

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def node(*needed: str) -> str:
    found = shutil.which("node")
    if found is None or not all((PACKAGES / name).is_dir() for name in needed):
        pytest.skip(f"needs node, and {' and '.join(needed)} in {PACKAGES}; `make frameworks` installs them")
    return found


@contextmanager
def served(tmp_path: Path) -> Iterator[Server]:
    """The graph `talk` over TLS."""
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
        yield server
    finally:
        server.stop()


def test_the_javascript_clients(tmp_path: Path) -> None:
    runtime = node("openai", "@openai/agents-realtime")
    with served(tmp_path) as server:
        (tmp_path / "node_modules").symlink_to(PACKAGES.resolve())
        script = shutil.copy(ROOT / "tests/frameworks/realtime_clients.mjs", tmp_path)
        done = subprocess.run(
            [runtime, str(script), server.url, "talk"],
            capture_output=True,
            text=True,
            timeout=230,
            check=False,
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(tmp_path / "ca.pem")},
        )
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


def test_the_javascript_client_in_a_browser(tmp_path: Path) -> None:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: make setup-dev"
    )
    if not CHROMIUM:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    node("openai", "esbuild")
    script = shutil.copy(ROOT / "tests/frameworks/realtime_browser.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(PACKAGES.resolve())
    bundle = tmp_path / "bundle.js"
    esbuild = [str(PACKAGES / ".bin/esbuild"), script, "--bundle", f"--outfile={bundle}"]
    subprocess.run(esbuild, check=True, capture_output=True, timeout=230)
    with served(tmp_path) as server, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_context(ignore_https_errors=True).new_page()
        page.goto(f"{server.url}/console/")  # else the page's origin is another one
        page.evaluate(bundle.read_text())
        found = page.evaluate("([url, model]) => talk(url, model)", [f"{server.url}/v1", "talk"])
        browser.close()
    assert found == {"status": "completed", "text": "Arr, matey."}

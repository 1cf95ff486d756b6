"""The walk in docs/operations.md, command by command, as somebody who pastes it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import MODEL, ROOT, script_graph
from tests.ports import free_port

TEXT = (ROOT / "docs/operations.md").read_text()
WALK = TEXT[TEXT.index("## From one graph to a service") : TEXT.index("## What is served")]
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", WALK, re.MULTILINE | re.DOTALL)
SCRIPT = '{"replies": [{"text": "Hello there"}]}'


def repository(top: Path, *, real: bool) -> None:
    """What the walk finds at the top of the repository."""
    bin_ = top / ".venv/bin"
    bin_.mkdir(parents=True)
    (bin_ / "ovserve").write_text(f'#!/bin/sh\nexec {sys.executable} -m ovserve "$@"\n')
    (bin_ / "ovserve").chmod(0o755)
    models = top / "models/smollm2"
    models.mkdir(parents=True)
    graph = script_graph(top / "graphs/smollm2", SCRIPT)
    made = graph / "model.script.json"
    if real:
        made.unlink()
        made = MODEL
    (models / made.name).symlink_to(made) if real else made.rename(models / made.name)
    text = (graph / "graph.pbtxt").read_text()
    (graph / "graph.pbtxt").write_text(text.replace("model.script.json", f"../../models/smollm2/{made.name}"))


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["script", "model"])
def test_the_walk(real: bool, tmp_path: Path) -> None:
    repository(tmp_path, real=real)
    commands = "\n".join(f"echo; echo '== {i}'\n{block}" for i, block in enumerate(BLOCKS))
    for port in ("8000", "8443", "9443"):
        commands = re.sub(rf"\b{port}\b", str(free_port()), commands)
    commands = commands.replace(" 0.0.0.0", " 127.0.0.1").replace(
        "ovserve serve --config", "ovserve serve --response_store off --config"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OVSERVE_RESPONSE_STORE_PATH": f"{tmp_path}/r.db"}
    # 8000 is the first server's default; here it has another.
    environment["OVSERVE_REST_PORT"] = re.findall(r"http://127.0.0.1:(\d+)", commands)[0]
    with (tmp_path / "output").open("w") as file:
        process = subprocess.Popen(
            ["bash", "-eu", "-o", "pipefail", "-c", commands],
            cwd=tmp_path,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(100)
        finally:
            with suppress(ProcessLookupError):  # its servers, if it did not get to the end
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output = (tmp_path / "output").read_text()
    assert code == 0, output
    said = dict(re.findall(r"^== (\d+)\n(.*?)(?=^== |\Z)", output, re.MULTILINE | re.DOTALL))
    for word in ("chat: would be served", "0 errors"):
        assert word in said["0"]
    assert '"finish_reason":' in said["1"]
    assert "an API key is needed" in said["7"]
    assert '"id":"chat"' in said["7"]
    assert "ANYONE" not in output
    assert re.search(r"^ovserve_generated_tokens_total\{.*\} [1-9]", said["8"], re.MULTILINE)
    for block in ("9", "11", "12"):
        assert re.search(r"^chat +AVAILABLE +OK", said[block], re.MULTILINE), said[block]
    assert "exit code 1" in said["10"]
    assert '"state":"AVAILABLE","status":{"error_code":"FAILED_PRECONDITION"' in said["10"]
    assert "did you mean LLMExecutorCalculator?" in said["10"]
    assert said["12"].rstrip().rpartition("\n")[0].count("nothing had changed") >= 1
    log = (tmp_path / "site/server.log").read_text()
    assert "key=team-a" in log
    assert all((tmp_path / f"site/{key}.key").read_text().strip() not in log for key in ("admin", "team-a"))

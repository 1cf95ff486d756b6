"""The log has the status of what ended a stream, not the 200 that it began with."""

from __future__ import annotations

import json
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.http.connections import RestLimits
from tests.conftest import script_graph
from tests.http.conftest import running

SCRIPT = json.dumps(
    {
        "step_seconds": 0.01,
        "replies": [
            {"match": "breaks", "text": "a b", "wait_steps": 2, "refuse": "resource_exhausted"},
            {"match": "raise", "text": "a b c d e f", "raise_in_step": 3},
            {"text": "all is well"},
        ],
    }
)
PATHS = ["chat/completions", "completions", "messages", "responses"]


def body(path: str, word: str) -> dict[str, Any]:
    shared = {"model": "m", "stream": True}
    if path == "completions":
        return shared | {"prompt": word}
    if path == "responses":
        return shared | {"input": word, "store": False}
    return shared | {"messages": [{"role": "user", "content": word}], "max_tokens": 20}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("word", ["breaks", "raise", "fine"])
async def test_what_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, word: str) -> None:
    limits = RestLimits(1 << 20, 2.0, ping_seconds=0.1)
    with caplog.at_level(logging.INFO, "ovserve.access"):
        async with running(script_graph(tmp_path / "graph", SCRIPT), limits=limits) as server:
            os.kill(pid := server.engine.pid, signal.SIGSTOP)  # so that a ping begins each
            try:
                async with (
                    httpx.AsyncClient(base_url=server.url, timeout=230) as client,
                    client.stream("POST", f"/v3/{path}", json=body(path, word)) as answer,
                ):
                    assert answer.status_code == 200
                    os.kill(pid, signal.SIGCONT)
                    await answer.aread()
            finally:
                with suppress(ProcessLookupError):  # it has ended
                    os.kill(pid, signal.SIGCONT)
            metrics = server.manager.metrics.responses
            assert dict(metrics) == {200: 1}, "what was sent is what is counted"
    (line,) = [r for r in caplog.records if r.name == "ovserve.access"]
    fields: dict[str, Any] = line.fields()  # type: ignore[attr-defined]
    if word == "fine":
        assert (fields["status"], "sent_status" in fields) == (200, False)
        return
    assert "error" in answer.text
    assert fields["status"] == (529 if path == "messages" else 503)
    assert fields["sent_status"] == 200
    assert f"{fields['status']} sent_status=200" in line.getMessage()

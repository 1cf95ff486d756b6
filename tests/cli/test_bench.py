"""`ovserve bench` against a real server, and its percentiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ovserve.cli.bench import Answer, report
from tests.conftest import ROOT, script_graph, start_server

SCRIPT = json.dumps({"replies": [{"match": "fail", "refuse": "resource_exhausted"}, {"text": "a b c d"}]})


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ovserve", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_it_asks_as_often_as_told_and_fails_when_a_request_does(tmp_path: Path) -> None:
    server = start_server(script_graph(tmp_path / "g", SCRIPT), name="m")
    try:
        done = bench(server.v3, "--model", "m", "--requests", "7", "--concurrency", "3")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("7 answers, 0 failed")
        assert [line.split("  ")[0] for line in done.stdout.splitlines()[4:]] == [
            "first token",
            "between tokens",
            "whole answer",
        ]
        done = bench(server.v3, "--model", "m", "--requests", "3", "--prompt", "fail")
        assert done.returncode == 1
        assert done.stdout.startswith("0 answers, 3 failed")
        assert "failed: {'message': 'the script refuses this" in done.stdout
    finally:
        server.stop()
    done = bench(server.v3, "--model", "m", "--requests", "1")
    assert done.returncode == 1
    assert "ConnectionRefusedError" in done.stdout


def test_wrong_numbers_are_refused() -> None:
    for arguments, says in (
        (["ftp://x", "--model", "m"], "'ftp://x'"),
        (["http://x", "--model", "m", "--requests", "0"], "--requests: expected at least 1, got 0"),
    ):
        done = bench(*arguments)
        assert done.returncode == 1
        assert says in done.stderr


def test_percentiles() -> None:
    answers = [Answer(first=i / 1000, total=1.0, gaps=[0.002], tokens=10) for i in range(1, 101)]
    lines = report([*answers, Answer(error="503: no")], 10.0).splitlines()
    assert lines[:3] == [
        "100 answers, 1 failed, in 10.00 s",
        "10.00 answers/s, 100.0 tokens/s",
        "failed: 503: no",
    ]
    assert lines[5].split() == ["first", "token", "51.0", "91.0", "100.0", "100.0"]
    assert lines[6].split() == ["between", "tokens", "2.0", "2.0", "2.0", "2.0"]
    assert "p50" not in report([Answer(error="x")], 1.0)

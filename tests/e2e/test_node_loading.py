"""A calculator whose `load()` fails, hangs or takes long, in the real command."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT

CODE = """
import asyncio, time
from ovserve.graph import Calculator, Context, Input, LoadContext, Output, calculator

@calculator("Slow")
class Slow(Calculator):
    a = Input("REQUEST", object)
    b = Output("RESPONSE", object)

    @classmethod
    %s

    def process(self, cc: Context) -> None:
        cc.send(self.b, cc[self.a])
"""
GRAPH = 'input_stream: "REQUEST:a" output_stream: "RESPONSE:b"\nnode { calculator: "Slow" input_stream: "REQUEST:a" output_stream: "RESPONSE:b" }'
HANGS = ("def load(cls, lc): time.sleep(1000)", "async def load(cls, lc): await asyncio.sleep(1000)")


@contextmanager
def serving(directory: Path, load: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    (directory / "calculators.py").write_text(CODE % load)
    (directory / "graph.pbtxt").write_text(GRAPH)
    command = [sys.executable, "-m", "ovserve", "serve", "--rest_port", "0", "--model_name", "slow"]
    command += ["--model_path", str(directory), "--response_store_path", str(directory / "r.db"), *flags]
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def line_with(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"the log ended without {text!r}")


@pytest.mark.parametrize(("load", "moment"), [(HANGS[0], "loading slow"), (HANGS[1], "listening on")])
def test_a_hanging_load_does_not_keep_the_server_from_stopping(
    tmp_path: Path, load: str, moment: str
) -> None:
    with serving(tmp_path, load) as process:
        line_with(process, moment)
        time.sleep(0.3)
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("load", HANGS)
def test_a_load_has_the_time_that_an_engine_has(tmp_path: Path, load: str) -> None:
    with serving(tmp_path, load, "--load_timeout", "1") as process:
        assert "load() of its nodes took longer than 1 s" in line_with(process, "took longer")


def test_a_failing_load_is_told_with_its_line(tmp_path: Path) -> None:
    with serving(tmp_path, "def load(cls, lc): open('/no/such/index')") as process:
        line = line_with(process, "FileNotFoundError")
    assert "graph.pbtxt:2: node 'Slow': calculator: Slow: load() raised FileNotFoundError" in line
    assert "calculators.py:11)" in line

"""docs/tutorial.md, run as a reader would: its commands in order, with the files and outputs that it shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.long

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str, str]]:
    """The prose before each block, its language, and the block."""
    text = (ROOT / "docs/tutorial.md").read_text()
    found, at = [], 0
    for match in FENCE.finditer(text):
        found.append((text[at : match.start()], match[1], match[2]))
        at = match.end()
    return found


class Reader:
    """Follows the page in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.server: subprocess.Popen[bytes] | None = None
        bin_ = directory / "bin"
        bin_.mkdir()
        for name, call in (("ovserve", "-m ovserve"), ("python", "")):
            (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
            (bin_ / name).chmod(0o755)
        paths = {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.environment = os.environ | paths

    def run(self, command: str) -> str:
        command = command.replace("localhost:8000", f"127.0.0.1:{self.port}")
        if command.endswith("&"):
            line = command.rstrip("& ").replace("--rest_port 8000", f"--rest_port {self.port}")
            self.server = subprocess.Popen(
                shlex.split(line), cwd=self.directory, env=self.environment, stderr=subprocess.DEVNULL
            )
            return self.wait()
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return done.stdout + done.stderr

    def wait(self) -> str:
        for _ in range(600):
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/v2/health/ready").status_code == 200:
                    return ""
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError("the server of the tutorial is not ready")

    def write(self, before: str, language: str, body: str) -> None:
        graph = self.directory / "guard/graph.pbtxt"
        if language == "python":
            name = re.findall(r"`(guard/\w+\.py)`", before)[-1]
            (self.directory / name).write_text(body)
            return
        text = graph.read_text()
        assert "Replace that node by" in before
        parts = re.split(r"(?<=\n}\n)\n", text)
        kept = [
            body if '"RequestParser"' in part else part for part in parts if '"GuardCalculator"' not in part
        ]
        graph.write_text("\n".join(kept).replace("PARSED:changed", "PARSED:parsed"))


@pytest.fixture
def reader(tmp_path: Path, model: Path) -> Iterator[Reader]:
    (tmp_path / "models/smollm2").mkdir(parents=True)
    (tmp_path / "models/smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").symlink_to(model)
    made = Reader(tmp_path)
    yield made
    if made.server is not None:
        made.server.send_signal(signal.SIGTERM)
        made.server.wait(60)


def test_every_step_works(reader: Reader) -> None:
    ran = 0
    for before, language, body in steps():
        if language != "sh":
            reader.write(before, language, body)
            continue
        commands = [part for part in re.split(r"^\$ ", body, flags=re.M) if part]
        for part in commands:
            command, _, shown = part.partition("\n")
            if command.startswith("ovserve pull"):
                continue  # the model is there, see the fixture
            printed = reader.run(command)
            for line in shown.splitlines():
                assert line.strip() in printed, f"{command}\n{printed}"
            ran += 1
    assert ran == 9

"""docs/tutorial.md, run as a reader would: its commands in order, with the files and outputs that it shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT
from tests.ports import free_port

pytestmark = pytest.mark.long

SET_UP = ("make setup", ". .venv/bin/activate", "pip install pytest")
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
        self.port = free_port()
        self.server: subprocess.Popen[bytes] | None = None
        home = directory / "home"
        home.mkdir()
        commands = Path(sys.executable).parent  # what activating the environment puts first
        self.environment = {"HOME": str(home), "PATH": f"{commands}:/usr/bin:/bin"}
        self.environment["XDG_CACHE_HOME"] = os.environ["XDG_CACHE_HOME"]  # see conftest.py

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
            timeout=230,
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


def commands(block: str) -> list[str]:
    """The commands of a block that can be copied as it stands."""
    return re.sub(r"\\\n *", "", block).splitlines()


def test_every_step_works(reader: Reader) -> None:
    ran, printed = 0, ""
    for before, language, body in steps():
        if language == "sh":
            todo = [
                command for command in commands(body) if command not in SET_UP
            ]  # done before any test runs
            printed = "".join(reader.run(command) for command in todo)
            ran += len(todo)
        elif language == "text":
            for line in body.splitlines():
                assert line.strip() in printed, f"{line}\n{printed}"
        else:
            reader.write(before, language, body)
    assert ran == 9
    assert tuple(commands(steps()[0][2])) == SET_UP

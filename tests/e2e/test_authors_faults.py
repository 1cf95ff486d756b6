"""A graph whose `calculators.py` ends the process: the server goes on, and says which graph it was."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, Server, script_graph, start_process

NODE = """
node { calculator: "Hostile" input_stream: "PARSED:parsed" output_stream: "PARSED:mine" }
"""
CODE = """
import asyncio
import sys
from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.llm.output import Parsed

async def work():
    sys.exit(3)

@calculator("Hostile")
class Hostile(Calculator):
    a = Input("PARSED", Parsed)
    b = Output("PARSED", Parsed)

    def process(self, cc: Context) -> None:
        %s
        cc.send(self.b, cc[self.a])
"""


def hostile(directory: Path, code: str) -> None:
    script_graph(directory, json.dumps({"replies": [{"text": "fine"}]}))
    graph = directory / "graph.pbtxt"
    before, writer = graph.read_text().rsplit("node {", 1)
    graph.write_text(f"{before}{NODE}\nnode {{{writer.replace('PARSED:parsed', 'PARSED:mine')}")
    (directory / "calculators.py").write_text(code)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("graphs")
    script_graph(root / "good", json.dumps({"replies": [{"text": "fine"}]}))
    hostile(root / "exits", CODE % "sys.exit()")
    hostile(root / "interrupts", CODE % "raise KeyboardInterrupt")
    hostile(root / "task", CODE % "self.task = asyncio.ensure_future(work())")
    hostile(root / "callback", CODE % "asyncio.get_running_loop().call_soon(sys.exit, 4)")
    running = start_process("--graphs_dir", str(root))
    running.root = root  # type: ignore[attr-defined]
    yield running
    running.stop()


def ask(server: Server, model: str, **more: object) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], **more}
    return httpx.post(f"{server.v3}/chat/completions", json=body, timeout=230)


@pytest.mark.parametrize("model", ["exits", "interrupts"])
def test_an_exit_in_process_is_the_failure_of_its_request(server: Server, model: str) -> None:
    failed = ask(server, model)
    assert (failed.status_code, "internal error" in failed.text) == (500, True)
    streamed = ask(server, model, stream=True)
    assert streamed.status_code == 500 or '"error"' in streamed.text
    assert ask(server, "good").status_code == 200
    assert server.process.poll() is None


@pytest.mark.parametrize("model", ["task", "callback"])
def test_an_exit_in_a_task_of_a_calculator_ends_that_task_alone(server: Server, model: str) -> None:
    assert [ask(server, model).status_code for _ in range(3)] == [200] * 3
    assert ask(server, "good").status_code == 200
    assert server.process.poll() is None
    assert any("which does not end the server" in line for line in server.errors)


@pytest.mark.parametrize("fault", ["sys.exit()", "raise KeyboardInterrupt", "1 / 0", "class :"])
def test_an_exit_at_a_reload_is_the_failure_of_that_graph(server: Server, fault: str) -> None:
    root: Path = server.root  # type: ignore[attr-defined]
    hostile(root / "new", f"import sys\n\n{fault}\n")
    answer = httpx.post(f"{server.url}/v1/config/reload", timeout=230)
    assert answer.status_code in (200, 201, 412, 500), answer.text
    assert ask(server, "good").status_code == 200
    assert "new/calculators.py:3: " in httpx.get(f"{server.url}/v1/config").text
    assert server.process.poll() is None


def test_check_says_what_a_calculators_py_raised(tmp_path: Path) -> None:
    hostile(tmp_path / "g", "import sys\n\nsys.exit()\n")
    script_graph(tmp_path / "h", "{}")
    command = [sys.executable, "-m", "ovserve", "check", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 1
    assert re.search(r"g/calculators\.py:3: error: .*SystemExit", done.stdout)
    assert "h: would be served" in done.stdout
    assert "1 errors" in done.stdout

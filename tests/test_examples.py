"""The examples run as their docstrings say, with the output they promise."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from ovserve.calculators.shipped import MODULES
from ovserve.graph import Registry
from ovserve.serving.loader import check_graph
from tests.conftest import Server

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
MINE = EXAMPLES / "02_my_calculator"


def run(*arguments: str) -> str:
    """The standard output of this Python with these arguments."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=230, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def test_every_example_is_tested_here() -> None:
    found = {p.name for p in EXAMPLES.iterdir() if not p.name.startswith((".", "__"))}
    # checked against a running server's metrics and routes; a task for lm-eval, whose requests
    # tests/http/test_parameters.py sends; a client of graphs/ocr, in tests/inference/test_ocr.py; Python nodes
    # around a model, in tests/inference/test_python_examples.py; a client of graphs/voice_assistant, in
    # tests/test_voice_assistant.py
    elsewhere = {"grafana", "deploy", "evaluation", "05_ocr_client.py", "06_python_picture"}
    elsewhere |= {"09_chat_log", "10_two_models"}  # in tests/test_author_graphs.py
    elsewhere |= {"08_vad_client.py"}  # in tests/inference/test_vad.py
    elsewhere |= {"11_realtime_talker.py"}  # a microphone's client of graphs/realtime
    elsewhere |= {"07_voice_assistant.py", "place.json"}  # the latter is a schema for `ovserve run`
    assert found - elsewhere == {
        "01_echo_graph.py",
        "02_my_calculator",
        "03_openai_client.py",
        "04_tensor_graph",
    }


def test_the_commands_in_docstrings_name_files_that_exist() -> None:
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/*.py")]:
        named = re.findall(r"(?:^|\s)(examples/[\w./]+)", docstring(path))
        assert named, f"{path} does not say how it is run"
        for name in named:
            assert (ROOT / name).exists(), f"{path} names {name}"


def test_01_prints_what_it_says() -> None:
    printed = run("examples/01_echo_graph.py")
    assert printed == "0: hello, hello\n1: graph, graph\n"
    for line in printed.splitlines():
        assert f"`{line}`" in docstring(EXAMPLES / "01_echo_graph.py")


def test_02_its_own_test_passes() -> None:
    printed = run("-m", "pytest", "-p", "no:cacheprovider", "examples/02_my_calculator")
    assert re.search(r"^4 passed", printed, re.MULTILINE), printed


def test_02_the_graph_loads_with_its_calculator_in_the_middle(model: Path) -> None:
    graph, engines = check_graph(MINE, Registry(MODULES))
    assert list(engines) == ["llm"]
    shipped, _ = check_graph(ROOT / "graphs/smollm2", Registry(MODULES))
    names = [plan.node.name for plan in graph.plan.nodes]
    assert names == [*(p.node.name for p in shipped.plan.nodes[:-1]), "MaskDigits", "ResponseWriter"]
    mask, writer = graph.plan.nodes[-2:]
    assert [i.stream for i in mask.inputs] == [o.stream for o in graph.plan.nodes[-3].outputs]
    assert mask.outputs[0].stream in [i.stream for i in writer.inputs]


def test_03_streams_an_answer(server: Server) -> None:
    printed = run("examples/03_openai_client.py", server.v3)
    answer, usage = printed.splitlines()
    assert re.fullmatch(r"smollm2: .*Paris.*", answer)
    counts = re.fullmatch(r"(\d+) tokens in, (\d+) out", usage)
    assert counts is not None
    assert 0 < int(counts[2]) <= 40

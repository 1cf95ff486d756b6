"""The server as a process: start, kills, exit codes, orphans. How it stops: test_stopping.py."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ovserve.cli import main
from tests.conftest import ROOT, alive, script_graph, start_process, start_server, until

SCRIPT = json.dumps(
    {
        "step_seconds": 0.05,
        "replies": [
            {"match": "long", "text": "w ", "repeat": 4},
        ],
    }
)


def run(*arguments: str, timeout: float = 230) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ovserve", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


def wait_gone(pid: int, seconds: float = 230) -> None:
    until(lambda: not alive(pid), f"process {pid} is still there", seconds)


def chat(word: str) -> dict[str, object]:
    return {"model": "m", "stream": True, "messages": [{"role": "user", "content": word}]}


def test_start_says_address_servables_and_a_line_to_paste(tmp_path: Path) -> None:
    server = start_server(script_graph(tmp_path / "g", SCRIPT), name="m")
    try:
        until(lambda: "-d '" in "".join(server.output))
        text = "".join(server.output)
        assert f"ready at {server.url}/v3" in text
        assert "  m  context" in text
        curl = text[text.index("curl") :].split("\n\n")[0]
        done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=230, check=True)
        assert done.stdout.rstrip().endswith("data: [DONE]")
    finally:
        assert server.stop() == 0


def test_a_killed_server_leaves_no_process(tmp_path: Path) -> None:
    server = start_server(script_graph(tmp_path / "g", SCRIPT), name="m")
    engine = server.engine_pid()
    (renderer,) = server.children("ovserve.sandbox.rendering")
    server.process.kill()
    server.stop()
    wait_gone(engine)
    wait_gone(renderer)


def of_session(leader: int) -> list[int]:
    """Processes that one and its descendants have started, itself included."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int((place / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(place.name))
    return found


@contextlib.contextmanager
def starting(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A server that has begun to start, with an engine process already."""
    command = [sys.executable, "-m", "ovserve", "serve", "--rest_port", "0", "--response_store", "off"]
    process = subprocess.Popen(
        [*command, "--model_name", "m", "--model_path", str(directory)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until(
            lambda: len(of_session(process.pid)) > 1 or process.poll() is not None,
            "no engine process was started",
        )
        yield process
    finally:
        for pid in of_session(process.pid):
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=230)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_server_that_is_ended_while_it_starts_leaves_no_process(tmp_path: Path, number: int) -> None:
    directory = script_graph(tmp_path / "g", json.dumps({"load": "hang"}))
    with starting(directory) as process:
        process.send_signal(number)
        process.wait(60)
        for pid in of_session(process.pid):
            wait_gone(pid)


def test_the_end_of_a_terminal_ends_no_process(tmp_path: Path) -> None:
    """It sends SIGHUP to the whole group, to the server as early as its first engine process is there."""
    with starting(script_graph(tmp_path / "g", SCRIPT)) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGHUP)
        (url,) = next(filter(None, (re.findall(r"listening on (\S+),", line) for line in process.stderr)))

        def answers() -> bool:
            answer = httpx.post(f"{url}/v3/chat/completions", json=chat("long"), timeout=230)
            return "[DONE]" in answer.text

        until(answers)  # it still loads
        for pid in of_session(process.pid):  # the next engine is started by a server that takes SIGHUP itself
            if b"engine.worker.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        assert answers()
        before = {pid for pid in of_session(process.pid) if alive(pid)}
        os.killpg(process.pid, signal.SIGHUP)
        assert any("reloading: SIGHUP" in line for line in process.stderr)
        assert answers()
        assert all(map(alive, before))


def test_a_second_interrupt_does_not_interrupt_the_end() -> None:
    """Ctrl-C under a shell or a wrapper comes twice; the second one printed a traceback."""
    program = """
import os, signal
from ovserve import cli
from ovserve.cli import commands
from ovserve.engine.client.spawn import Child
def interrupt(*_): os.kill(os.getpid(), signal.SIGINT)
end, commands.run = Child.end, interrupt
def end_interrupted(child): interrupt(); end(child)
Child.end = end_interrupted
cli.main(["serve"])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_a_bad_graph_leaves_no_process(tmp_path: Path) -> None:
    """The engine's process is there before the graph is read."""
    directory = script_graph(tmp_path / "g", SCRIPT)
    (directory / "graph.pbtxt").write_text("node {")
    with starting(directory) as process:
        assert process.wait(60) == 1
        for pid in of_session(process.pid):
            wait_gone(pid)
        assert process.stderr is not None
        assert process.stderr.read().splitlines()[-1].startswith("ovserve: ")


def test_a_graph_without_a_model_has_no_engine_process() -> None:
    server = start_server(ROOT / "examples/04_tensor_graph", name="sum")
    try:
        assert server.children("ovserve.engine.worker.main") == []
    finally:
        assert server.stop() == 0


def test_a_killed_engine_comes_back(tmp_path: Path) -> None:
    server = start_server(script_graph(tmp_path / "g", SCRIPT), name="m")
    try:
        os.kill(server.engine_pid(), signal.SIGKILL)
        answer = httpx.post(f"{server.v3}/chat/completions", json=chat("long"), timeout=230)
        assert answer.text.endswith("data: [DONE]\n\n")
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["serve", "--model_name", "m"], 2, "--model_name: needs --model_path or SOURCE"),
        (["serve", "--model_pth", "x"], 2, "did you mean --model_path?"),
        (
            ["serve", "--model_name", "m", "--model_path", "x", "--rest_port", "99999"],
            2,
            "expected 0 to 65535, got 99999",
        ),
        (["serve", "--model_name", "m", "--model_path", "x", "--log_level", "LOUD"], 2, "LOUD"),
        (["serve", "--model", "m"], 2, "--model"),
        (["pull", "gpt5"], 1, "'gpt5' is not a packaged model; known: smollm2"),
        (["nonsense"], 2, "nonsense"),
        ([], 2, "command"),
    ],
)
def test_wrong_usage_says_what_is_wrong(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["serve", "smolm2"], 1, "did you mean smollm2"),
        (
            ["serve", "--model_name", "m", "--model_path", "/nowhere"],
            1,
            "--model_path: /nowhere does not exist",
        ),
    ],
)
def test_the_process_ends_with_the_code_and_the_reason(arguments: list[str], code: int, says: str) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_help_lists_every_option_with_its_default() -> None:
    from ovserve.server.settings import OPTIONS

    text = run("serve", "--help").stdout
    for option in OPTIONS:
        assert f"--{option.name}" in text
    assert run("--version").stdout.strip() == run("version").stdout.strip()


def test_a_taken_port_costs_no_model_load(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run("serve", "--model_name", "m", "--model_path", "graphs/smollm2", "--rest_port", port)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "loading" not in done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('calculator: "LLMExecutorCalculator"', 'calculator: "LLMExecutrCalculator"'), "did you mean LLMExecutorCalculator?"),
        (("model.script.json", "nothing.gguf"), "models_path"),
        (('models_path: "', "plugin_config: '[]' models_path: \""), "plugin_config"),
        (('models_path: "model.script.json"', ""), "models_path: required, but missing"),
        (("input_side_packet: \"LLM_NODE_RESOURCES:llm\"", "input_side_packet: \"LLM_NODE_RESOURCES:other\""), ""),
        (("HTTP_REQUEST_PAYLOAD:http", "REQUEST:http"), "HTTP_REQUEST_PAYLOAD"),
    ],
)  # fmt: skip
def test_a_bad_graph_is_one_clear_line(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    directory = script_graph(tmp_path / "g", SCRIPT)
    path = directory / "graph.pbtxt"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change) if says else text.replace(*change, 1))
    done = run("serve", "--rest_port", "0", "--model_name", "m", "--model_path", str(directory))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ovserve: ")
    assert says in last
    assert str(path) in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("load", "says", "seconds"),
    [("fail", "", 60), ("exit", "exit status 13", 60), ("hang", "not ready after 1 s", 1)],
)
def test_an_engine_that_does_not_load_ends_the_server_with_the_reason(
    tmp_path: Path, load: str, says: str, seconds: int
) -> None:
    directory = script_graph(tmp_path / "g", json.dumps({"load": load}))
    done = run(
        "serve",
        "--rest_port",
        "0",
        "--model_name",
        "m",
        "--model_path",
        str(directory),
        "--load_timeout",
        str(seconds),
    )
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("engine", ["script", pytest.param("model", marks=pytest.mark.slow)])
def test_single_node_graph_of_ovms_answers_like_the_explicit_one(
    engine: str, model: Path, tmp_path: Path
) -> None:
    path = model
    if engine == "script":
        path = tmp_path / "model.script.json"
        path.write_text(SCRIPT)
    for graph in ("single_node", "smollm2"):
        text = (ROOT / "graphs" / graph / "graph.pbtxt").read_text()
        (tmp_path / graph).mkdir()
        (tmp_path / graph / "graph.pbtxt").write_text(
            re.sub(r'models_path: "[^"]*"', f'models_path: "{path}"', text)
        )
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0, "max_tokens": 12}  # fmt: skip
    answers = []
    server = start_process("--graphs_dir", str(tmp_path))
    try:
        for name in ("single_node", "smollm2"):
            url, named = f"{server.v3}/chat/completions", body | {"model": name}
            unary = httpx.post(url, json=named, timeout=230).json()
            streamed = httpx.post(url, json=named | {"stream": True}, timeout=230).text
            answers.append((unary["choices"], unary["usage"], streamed.count("data: ")))
    finally:
        assert server.stop() == 0
    assert answers[0] == answers[1]

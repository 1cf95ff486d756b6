"""`ovserve run`: one prompt for scripts, and the chat on a terminal, with the real model."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import encoders
from tests.conftest import CONVERTED, ROOT, Server, script_graph, start_process, start_server, until

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-m", "ovserve", "run"]
FRANCE = "What is the capital of France?"


def elsewhere(**more: str) -> dict[str, str]:
    """The environment with a directory of models that is not the checkout's."""
    return os.environ | {"OVSERVE_MODEL_REPOSITORY_PATH": CONVERTED.name, "PYTHONPATH": str(ROOT), **more}


def run(*flags: str, stdin: str = "", url: str = "") -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--temperature", "0", *(["--url", url] if url else []), *flags]
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=230,
        cwd=ROOT,
        env=elsewhere(),
        check=False,
    )


def test_one_prompt_of_a_running_server(server: Server) -> None:
    done = run("-p", FRANCE, url=server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout
    assert done.stdout.endswith("\n")


def test_stdin_is_the_prompt_or_part_of_it(server: Server, tmp_path: Path) -> None:
    assert "Paris" in run(stdin=FRANCE, url=server.v3).stdout
    echo = start_server(script_graph(tmp_path / "echo", '{"replies": [{"echo": true}]}'), name="echo")
    try:
        said = run("-p", "Answer in one word.", stdin=FRANCE, url=echo.url).stdout
    finally:
        echo.stop()
    assert "Answer in one word." in said
    assert FRANCE in said
    empty = run(url=server.url)
    assert empty.returncode == 1
    assert "stdin is empty" in empty.stderr


def test_an_answer_that_fits_a_schema(server: Server, tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    for text in (json.dumps(schema), str(tmp_path / "schema.json")):
        done = run("-p", FRANCE, "--json-schema", text, "--verbose", url=server.url)
        assert json.loads(done.stdout)["city"] in ("Paris", "Rome")
        assert "tokens/s" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-p", "x", "--json-schema", "{"], "--json-schema: is not JSON"),
        (["-p", "x", "--json-schema", '{"type": 5}'], "response_format"),
        (["-p", "x", "--image", "docs/api.md"], "expected an image"),
        (["-p", "x", "--temperature", "9"], "temperature"),
        (["-p", "x", "no-such-model"], "does not serve 'no-such-model', but smollm2"),
    ],
)
def test_errors_go_to_stderr(flags: list[str], message: str, server: Server) -> None:
    done = run(*flags, url=server.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr


def test_a_wrong_image_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    done = run("-p", "x", "--image", str(tmp_path / "no.png"), url="http://127.0.0.1:9")
    assert "no.png: cannot be read" in done.stderr


def test_text_that_is_not_utf_8_is_told_before_anything_is_loaded() -> None:
    for flags, stdin, what in (
        ([b"-p", b"Repeat"], b"caf\xe9", "stdin is not UTF-8: byte 3 is 0xe9"),
        ([b"-p", b"\xff"], b"", "--prompt is not UTF-8: byte 0 is 0xff"),
    ):
        command = [*map(os.fsencode, COMMAND), b"--url", b"http://127.0.0.1:9", *flags]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=230, cwd=ROOT, check=False)
        assert done.returncode == 1
        assert what in done.stderr.decode()


def test_a_server_that_is_not_there() -> None:
    done = run("-p", "x", url="http://127.0.0.1:9")
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr


def test_a_server_on_another_port_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "runtime/ovserve"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(listed.parent))
    first = start_server(script_graph(tmp_path / "one", '{"replies": [{"text": "I am one"}]}'), name="one")
    second = start_server(script_graph(tmp_path / "two", '{"replies": [{"text": "I am two"}]}'), name="two")
    try:
        for name in ("one", "two"):
            assert run(name, "-p", "x").stdout == f"I am {name}\n"
        assert run("-p", "x").stdout == "I am two\n", "the youngest, where no model is named"
        second.process.kill()
        second.process.wait()
        assert run("-p", "x").stdout == "I am one\n"
        assert [file.name for file in listed.iterdir()] == [str(first.process.pid)], "the killed one is off"
    finally:
        first.stop()
        second.stop()
    assert not list(listed.iterdir())


def test_without_a_name_it_is_a_model_that_chats(tmp_path: Path) -> None:
    directory = tmp_path / "graphs/a"
    encoders.tiny("mpnet", directory)
    (directory / "graph.pbtxt").write_text(encoders.graph("./"))
    server = start_process("--graphs_dir", str(directory.parent))
    try:
        assert "does not serve a model that chats, but a" in run("-p", "x", url=server.url).stderr
        script_graph(tmp_path / "graphs/b", '{"replies": [{"text": "I am b"}]}')
        while run("-p", "x", "b", url=server.url).returncode:
            time.sleep(0.2)
        assert run("-p", "x", url=server.url).stdout == "I am b\n"
    finally:
        server.stop()


def processes_with(text: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_server_of_its_own_ends_with_it(model: Path, tmp_path: Path) -> None:
    link = tmp_path / "only-here.gguf"
    link.symlink_to(model)
    done = run(str(link), "-p", FRANCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert processes_with(link.name) == []
    assert Path(CONVERTED.name, "only-here/openvino_model.xml").is_file()
    assert not (ROOT / "models/only-here").exists()


def test_a_server_of_its_own_ends_when_it_is_killed(short_model: Path, tmp_path: Path) -> None:
    link = tmp_path / "killed-one"
    link.symlink_to(short_model)
    with Terminal(str(link)) as terminal:
        terminal.expect(">>> ")
        os.kill(terminal.pid, signal.SIGKILL)
        until(lambda: not processes_with(link.name), "the server outlived it")


# Makes its terminal the one that controls it, so that Ctrl-C is a signal, and becomes the command.
TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """`ovserve run` on a terminal of its own."""

    def __init__(self, *flags: str, home: Path | None = None) -> None:
        # Not pty.fork(): a copy of this process, with pytest's threads and sockets, has ended a worker of xdist.
        command = [sys.executable, "-c", TERMINAL, *COMMAND, "--temperature", "0", *flags]
        environment = elsewhere(TERM="xterm", HOME=str(home or "/nonexistent"))
        self._fd, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs,
            stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.pid = self._process.pid

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def expect(self, text: str, seconds: float = 230) -> str:
        """Read until `text` comes."""
        got, deadline = "", time.monotonic() + seconds
        while text not in got:
            assert time.monotonic() < deadline, f"no {text!r} in {got!r}"
            if select.select([self._fd], [], [], 0.2)[0]:
                part = os.read(self._fd, 65536).decode("utf-8", "replace")
                if "\x1b[6n" in part:
                    self.send("\x1b[1;1R")  # where the cursor is, which the editor asks a terminal
                got += part
        return got

    def wait(self) -> int:
        return self._process.wait(60)


@pytest.fixture
def terminal(server: Server, tmp_path: Path) -> Iterator[Terminal]:
    with Terminal("--url", server.url.removeprefix("http://"), home=tmp_path) as made:
        banner = made.expect(">>> ")
        assert f"{server.url}/console" in banner
        assert "for real answers take qwen2.5-coder-1.5b (1117 MB" in banner
        yield made


def test_a_chat(terminal: Terminal, tmp_path: Path) -> None:
    terminal.send(FRANCE + "\r")
    terminal.expect("Paris")
    terminal.expect(">>> ")
    terminal.send("/stats\r")
    terminal.expect("in all: 1 answers")
    terminal.send("/system You are a pirate.\r")
    terminal.expect("system: You are a pirate.")
    terminal.send("/set temprature 1\r")
    terminal.expect("is not one of temperature")
    terminal.send("/hlp\r")
    terminal.expect("did you mean /help?")
    terminal.send('"""one\rtwo"""\r')
    terminal.expect("\x1b[?2004l")
    terminal.expect(">>> ")
    terminal.send(f"/save {tmp_path}/talk.json\r")
    terminal.expect("saved to")
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert saved["system"] == "You are a pirate."
    assert [m["role"] for m in saved["messages"]] == ["user", "assistant"] * 2
    assert saved["messages"][2]["content"] == "one\ntwo"
    terminal.send(f"/clear\r/load {tmp_path}/talk.json\r")
    terminal.expect("loaded 4 messages")
    (tmp_path / "mine.md").write_text("mine")
    terminal.send(f"/save {tmp_path}/mine.md\r")
    terminal.expect("mine.md exists; overwrite it? [y/N]")
    terminal.send("\r")
    terminal.expect("not saved")
    assert (tmp_path / "mine.md").read_text() == "mine"
    terminal.send(f"/save {tmp_path}/mine.md\r")
    terminal.expect("[y/N]")
    terminal.send("y\r")
    terminal.expect("saved to")
    assert "## user" in (tmp_path / "mine.md").read_text()
    terminal.send("/image cat.png\r")
    terminal.expect("smollm2 takes no images")
    terminal.send("/bye\r")
    assert terminal.wait() == 0
    history = tmp_path / ".local/state/ovserve/history"
    assert FRANCE in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    terminal.send("Write a very long story about a lighthouse with many chapters.\r")
    terminal.expect("\x1b[?2004l")
    terminal.expect("the ")
    terminal.send("zzqq")
    terminal.expect("the ")
    terminal.send("\x03")
    assert "zzqq" not in terminal.expect("(stopped)")
    terminal.expect(">>> ")
    terminal.send("/stats\r")
    stats = re.search(r"answer (\d+) tokens \(stopped\)", terminal.expect("in all: 1 answers"))
    assert stats is not None
    assert int(stats[1]) > 0
    terminal.expect(">>> ")
    terminal.send("\x03")
    terminal.expect("Ctrl-D or /bye ends")
    terminal.expect(">>> ")
    terminal.send("\x04")
    assert terminal.wait() == 0

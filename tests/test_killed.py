"""What a process leaves that is killed: neither children nor, after the next start, what it wrote for itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread

import httpx
import pytest

from tests.conftest import ROOT, alive, script_graph, start_process, until
from tests.pull import tiny_gguf

HANG = "while :; do sleep 1000; done\n"


def running(words: str) -> list[int]:
    """Processes with these words in their command, which are unique to a test. One of `bound_command` has it
    only when it has become the command."""
    pids = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if words in " ".join(command) and "-I" not in command:
                pids.append(int(place.name))
    return pids


@contextmanager
def killed(command: list[str], *words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run it until each of these processes runs; kill it after the block; all of them must end, although
    they are stopped, so that none ends by itself."""
    out = subprocess.DEVNULL
    parent = subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, stdout=out, stderr=out)
    pids: list[int] = []
    try:
        yield parent
        for each in words:
            until(partial(running, each), f"{each} was not started")
        pids += (pid for each in words for pid in running(each))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
        parent.wait(60)
        until(lambda: not any(map(alive, pids)), f"it outlived {command[:4]}")
    finally:
        parent.kill()
        parent.wait(60)
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def index() -> Iterator[str]:
    """The address of a package index that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/simple"


def pull(source: str, repository: Path, *flags: str) -> list[str]:
    flags = ("--model_repository_path", str(repository), *flags)
    return [sys.executable, "-m", "ovserve", "pull", source, *flags]


def left(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob(".*-*")]


def test_a_killed_pull_leaves_no_converter_and_the_next_one_removes_its_files(tmp_path: Path) -> None:
    file, repository = tiny_gguf.write(tmp_path / "tiny.gguf"), tmp_path / "r"
    command = pull(str(file), repository, "--convert")
    with killed(command, f"ovserve.kinds.text.worker.gguf.convert {file}"):
        pass
    assert left(repository)
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert not left(repository)
    assert (repository / "tiny/openvino_model.xml").is_file()


def test_a_killed_pull_leaves_no_download(tmp_path: Path, index: str) -> None:
    command = pull("smollm2", tmp_path)
    for _ in range(2):
        with killed(command, f"-d {tmp_path}", PIP_INDEX_URL=index):
            pass
        assert len(left(tmp_path)) == 1  # that of the second alone, after the second


def test_a_killed_server_leaves_no_pull(tmp_path: Path, index: str) -> None:
    repository = tmp_path / "r"
    graph = script_graph(repository / "m", '{"replies": [{"text": "hi"}]}')
    address = tmp_path / "socket"
    command = [sys.executable, "-m", "ovserve", "serve", "--model_name", "m", "--model_path", str(graph)]
    command += ["--rest_bind_address", f"unix:{address}", "--model_repository_path", str(repository)]
    command += ["--response_store", "off"]
    words = (f"--json --model_repository_path {repository}", f"-d {repository}")

    def ask() -> None:
        with (
            suppress(httpx.HTTPError),
            httpx.Client(transport=httpx.HTTPTransport(uds=str(address)), timeout=230) as http,
        ):
            http.post("http://local/api/pull", json={"model": "smollm2"})

    with killed(command, *words, PIP_INDEX_URL=index):
        until(address.exists, "the server did not start")
        asking = Thread(target=ask)
        asking.start()
    asking.join(60)
    assert not asking.is_alive()


def test_a_killed_engine_leaves_no_compiler(tmp_path: Path) -> None:
    """The driver starts the compiler proper, which uses the memory."""
    driver, proper, cache = tmp_path / "c++", tmp_path / "cc1plus", tmp_path / "ovserve/kernels"
    for file, text in ((driver, f"{proper}\n"), (proper, HANG)):
        file.write_text(f"#!/bin/sh\n{text}")
        file.chmod(0o755)
    command = [sys.executable, "-c"]
    command += ["from ovserve.kinds.text.worker.kernels import library; library.open_library()"]
    environment = {"CXX": str(driver), "XDG_CACHE_HOME": str(tmp_path)}
    with killed(command, f"/bin/sh {driver}", f"/bin/sh {proper}", **environment):
        pass
    assert left(cache)
    driver.write_text("#!/bin/sh\nexit 1\n")
    failed = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, check=False)
    assert b"KernelError" in failed.stderr
    assert not list(cache.iterdir())


def test_the_next_server_removes_uploads_of_a_killed_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "from ovserve.scratch import scratch_file; import sys; file = scratch_file(); "
        "print(file[1], flush=True); sys.stdin.read()"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    graph = script_graph(tmp_path / "g", '{"replies": [{"text": "hi"}]}')
    owners = [
        subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, cwd=ROOT) for _ in range(2)
    ]
    try:
        ended, used = (Path(os.fsdecode(owner.stdout.readline().strip())) for owner in owners if owner.stdout)
        owners[0].kill()
        owners[0].wait(60)
        assert ended.is_file()
        server = start_process("--model_name", "m", "--model_path", str(graph))
        try:
            assert (ended.exists(), used.exists()) == (False, True)
        finally:
            server.stop()
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()

"""Real child processes throughout. `start` makes clients and stops them; `script` writes scripted engines."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ovserve.engine.client.requests import DeltaStream
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.specs import SCRIPT_SUFFIX, ScriptSpec, TextSpec
from ovserve.llm.request import Delta, GenerateRequest, Sampling
from tests.conftest import eventually as eventually
from tests.engine import tiny

FAST_RESTARTS = RestartPolicy(first_pause=0.02, longest_pause=0.2, max_load_failures=3)

Start = Callable[..., Awaitable[TextClient]]
Script = Callable[..., str]


def text_spec(model_path: str, **options: Any) -> TextSpec:
    """The spec of a batched model; a path that ends in `.script.json` is a scripted one."""
    return (ScriptSpec if model_path.endswith(SCRIPT_SUFFIX) else TextSpec)(model_path, **options)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    clients: list[TextClient] = []

    async def start_(path: str, **options: Any) -> TextClient:
        if not path.endswith(
            ".script.json"
        ):  # a model may load for half a minute while others use the machine
            options = {"ready_timeout": 100.0, "restart_wait": 100.0} | options
        options.setdefault("ready_timeout", 100.0)
        options.setdefault("restarts", FAST_RESTARTS)
        if "grammar_limits" in options:
            options["grammars"] = options.pop("grammar_limits")
        spare = options.pop("spare", None)
        client = await TextClient.start(text_spec(path), EngineSettings(**options), spare)
        clients.append(client)
        return client

    yield start_
    for client in clients:
        await client.stop()


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def write(*replies: dict[str, Any], name: str = "engine", **fields: Any) -> str:
        path = tmp_path / f"{name}.script.json"
        path.write_text(json.dumps({"replies": replies, **fields}))
        return str(path)

    return write


MAKE_IR = (
    "import sys, openvino_genai\nopenvino_genai.LLMPipeline(sys.argv[1], 'CPU', enable_save_ov_model=True)\n"
)


def make_ir(file: Path, directory: Path) -> None:
    """Have the library itself write a .gguf file as openvino_model.xml and its tokenizers, nothing else."""
    directory.mkdir()
    copy = directory / file.name
    shutil.copy(file, copy)
    subprocess.run([sys.executable, "-c", MAKE_IR, str(copy)], check=True, timeout=230)
    copy.unlink()


@pytest.fixture(scope="session")
def ir_directory(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model in that form. Not to be changed: `shutil.copytree` it."""
    make_ir(model, made := tmp_path_factory.mktemp("ir") / "model")
    return made


@pytest.fixture(scope="session")
def erring_draft(ir_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a hole in its weights: speaks the language, but is often wrong about the next word."""
    made = tmp_path_factory.mktemp("erring") / "draft"
    shutil.copytree(ir_directory, made)
    weights = made / "openvino_model.bin"
    with weights.open("r+b") as file:
        file.seek(int(weights.stat().st_size * 0.6))
        file.write(bytes(200_000))
    return made


@pytest.fixture(scope="session")
def model_path(model: Path) -> str:
    """As `ovserve pull` laid it, which loads in half of the CPU time that its .gguf file takes."""
    return str(model.parent)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that loads in 0.2 s of CPU time, where the default one takes 4.5, for what any model shows."""
    file = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    tiny.write(file, tiny.table())
    return str(file)


def request(prompt: str | tuple[int, ...] = "hello", **sampling: Any) -> GenerateRequest:
    """One whose admission is told before the first token, so that a test can wait for it."""
    return GenerateRequest(
        id="test-1",
        prompts=(prompt,),
        add_special_tokens=True,
        sampling=Sampling(**{"temperature": 0.0, **sampling}),
        reports_admission=True,
    )


async def read_all(stream: DeltaStream) -> tuple[str, Delta]:
    """The whole text, and the last delta with the tokens of all."""
    text, tokens = "", 0
    while True:
        delta = await stream.next()
        text += delta.text
        tokens += delta.tokens
        if delta.finish_reason is not None:
            return text, Delta("", tokens, delta.finish_reason, stop_string=delta.stop_string)


def is_running(pid: int) -> bool:
    """False for a zombie too: in a container nobody may collect an orphan."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


async def reaches(client: TextClient, *states: str) -> None:
    for _ in range(6000):
        if client.state.name in states:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{states} not reached: {client.state}")


async def kill_engine(client: TextClient) -> None:
    os.kill(client.pid, signal.SIGKILL)
    await reaches(client, "restarting", "failed")


@pytest.fixture(params=["lookup", "draft"])
def assisted(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The engines of the test's module, one after the other; each is idle afterwards."""
    engine = request.getfixturevalue(request.param)
    yield engine
    for id_ in engine.live():
        engine.abort(id_)
    if engine.busy:
        engine.step()
    assert not engine.busy

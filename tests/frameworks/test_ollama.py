"""langchain-ollama and Ollama's JavaScript client against the running server, with a real model.

Slow: `make frameworks` installs both in the environment of the frameworks.
"""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest

from tests.conftest import ROOT, Server, start_process
from tests.frameworks.test_frameworks import PATH

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),  # the framework's own
]
PACKAGES = ROOT / ".venv-frameworks/node_modules"
MODEL = "coder"
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "num_predict": 60}


class City(pydantic.BaseModel):
    """A city."""

    name: str
    capital: bool


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    assert PATH.exists(), f"{PATH} is missing; `make frameworks` fetches it"
    running = start_process("--model_name", MODEL, "--model_path", str(PATH), timeout=300)
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def left_open() -> Iterator[None]:
    """langchain-ollama never closes its connections: their warnings come here, where they are no errors."""
    yield
    gc.collect()


def test_langchain_chats_streams_and_structures(server: Server) -> None:
    from langchain_ollama import ChatOllama, OllamaLLM

    chat = ChatOllama(base_url=server.url, validate_model_on_init=True, **GREEDY)
    whole = chat.invoke("What is the capital of France?")
    assert "Paris" in whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["input_tokens"] > 5
    assert "".join(part.content for part in chat.stream("What is the capital of France?")) == whole.content
    assert chat.with_structured_output(City).invoke("Describe Paris.").name
    assert OllamaLLM(base_url=server.url, **GREEDY).invoke("Say hello")


def test_langchain_binds_tools(server: Server) -> None:
    from langchain_core.tools import tool
    from langchain_ollama import ChatOllama

    @tool
    def get_weather(city: str) -> str:
        """The weather in a city now."""
        return "rain"

    chat = ChatOllama(base_url=server.url, **GREEDY).bind_tools([get_weather])
    answer = chat.invoke("What is the weather in Oslo? Call get_weather.")
    if answer.tool_calls:  # small models write calls as text now and then
        assert answer.tool_calls[0]["args"] == {"city": "Oslo"}
    assert answer.tool_calls or "Oslo" in answer.content


def test_the_javascript_client(server: Server, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (PACKAGES / "ollama").is_dir():
        pytest.skip(f"needs node, and the package ollama in {PACKAGES}; `make frameworks` installs it")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    script = shutil.copy(ROOT / "tests/frameworks/ollama_client.mjs", tmp_path)
    done = subprocess.run(
        [node, str(script), server.url, MODEL], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["listed"] == [f"{MODEL}:latest"]
    assert "Paris" in found["whole"]
    assert found["whole"] == found["streamed"] == found["generated"]
    assert "completion" in found["capabilities"]
    assert found["failure"].startswith("404 model 'none' not found")

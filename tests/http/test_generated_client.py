"""A client that openapi-python-client generates from /openapi.json: complete, importable, and it works."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server

NAME = "generated_ovserve"


@pytest.fixture(scope="module")
def client(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    place = tmp_path_factory.mktemp("client")
    command = [
        sys.executable,
        "-m",
        "openapi_python_client",
        "generate",
        "--url",
        f"{server.url}/openapi.json",
    ]
    command += ["--meta", "none", "--output-path", str(place / NAME), "--config", str(_config(place))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout, f"some operations are missing:\n{done.stdout}"
    sys.path.insert(0, str(place))
    try:
        with importlib.import_module(NAME).Client(base_url=server.url, timeout=230) as made:
            yield made
    finally:
        sys.path.remove(str(place))
        for module in [name for name in sys.modules if name.startswith(NAME)]:
            del sys.modules[module]


def _config(place: Path) -> Path:
    """No formatter afterwards: it takes longer than all the rest."""
    file = place / "config.yml"
    file.write_text("post_hooks: []\n")
    return file


def operation(name: str) -> Any:
    return importlib.import_module(f"{NAME}.api.default.{name}")


def test_models_are_listed(client: Any) -> None:
    found = operation("get_models").sync(client=client)
    assert [model.id for model in found.data] == ["smollm2"]


def test_a_chat_is_answered(client: Any) -> None:
    fields = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 24,
    }
    module = operation("post_chat_completions")
    made = module.sync_detailed.__annotations__["body"].from_dict(fields)
    answer = module.sync(client=client, body=made)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.prompt_tokens == 37
    wrong = module.sync_detailed(client=client, body=type(made).from_dict(fields | {"model": "none"}))
    assert wrong.status_code == 404
    assert "not served" in wrong.parsed.error.message


def test_every_operation_is_there(client: Any) -> None:
    package = Path(importlib.import_module(f"{NAME}.api.default").__file__ or "").parent
    names = {path.stem for path in package.glob("*.py")}
    assert {"post_responses", "post_messages", "post_fim_completions", "get_capabilities"} <= names
    for name in names - {"__init__"}:
        operation(name)

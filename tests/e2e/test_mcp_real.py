"""MCP tools with the default model, in the command as its own process: the main path, and a kill -9."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.conftest import ROOT, start_server, until

pytestmark = pytest.mark.long
SERVER = ROOT / "tests/mcp_servers/server.py"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_real_model_calls_a_tool_and_the_child_dies_with_its_server(model: Path, tmp_path: Path) -> None:
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text().replace("../../models", str(ROOT / "models"))
    node = (
        'node { name: "Mcp" calculator: "McpServersCalculator" node_options: {'
        " [type.googleapis.com / google.protobuf.Struct]: {"
        f' servers: {{ label: "tools" command: ["{sys.executable}", "{SERVER}"] }} connect_seconds: 100 }} }} }}'
    )
    (tmp_path / "graph.pbtxt").write_text(text + node)
    server = start_server(tmp_path)
    try:
        with openai.OpenAI(base_url=server.url + "/v3", api_key="none", timeout=230) as client:
            tools: Any = [{"type": "mcp", "server_label": "tools", "require_approval": "never"}]
            choice: Any = {"type": "mcp", "server_label": "tools", "name": "add"}
            common: Any = {"model": "smollm2", "tools": tools, "temperature": 0, "max_output_tokens": 200}
            whole = client.responses.create(input="What is 2 plus 3?", tool_choice=choice, **common)
            listed, call = whole.output[:2]
            assert (listed.type, call.type) == ("mcp_list_tools", "mcp_call")
            assert call.name == "add"  # type: ignore[union-attr]
            assert call.error is None  # type: ignore[union-attr]
            assert whole.output[-1].type in ("message", "mcp_call")
            with client.responses.stream(input="What is 2 plus 3?", tool_choice=choice, **common) as stream:
                kinds = [event.type for event in stream]
            assert "response.mcp_call.completed" in kinds
            choice["name"] = "pid"
            child = client.responses.create(input="Which process?", tool_choice=choice, **common).output[1]
            pid = int(child.output)  # type: ignore[union-attr, arg-type]
        os.kill(pid, signal.SIGSTOP)  # so it does not see that its stdin is closed
        server.process.kill()
        until(lambda: not alive(pid), "the child outlived its server")
    finally:
        server.stop()

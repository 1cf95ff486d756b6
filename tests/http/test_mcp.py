"""Tools of MCP servers in the Responses API: real servers of the official package, the real OpenAI client.

The engine is scripted: it calls a tool when the prompt asks for it, and answers when it has a result.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.responses import Response

from ovserve.access import as_system
from ovserve.api.openai.body import LOOP_NODES
from ovserve.errors import LoadError
from tests.conftest import eventually
from tests.http.responses_harness import Serving, serving
from tests.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVER = Path(__file__).parents[1] / "mcp_servers" / "server.py"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}\n{% endfor %}"
    "{% for t in tools or [] %}offers {{ t.function.name }}\n{% endfor %}assistant:"
)


def calling(name: str, arguments: str = "{}") -> dict[str, Any]:
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    return {"match": f"please {name}", "text": call}


SCRIPT: dict[str, Any] = {
    "chat_template": TEMPLATE,
    "replies": [
        {"match": "tool: 5", "text": "it is five"},
        {"match": "tool:", "text": "done"},
        *(calling(name) for name in ("pid", "wrong", "hang", "die", "large", "picture")),
        calling("add", '{"a": 2, "b": 3}'),
        calling("environment", '{"name": "TOKEN"}'),
        {"match": "forever", "text": calling("add", '{"a": 2, "b": 3}')["text"]},
        {"echo": True},
    ],
}
NEVER = {"type": "mcp", "server_label": "tools", "require_approval": "never"}


@asynccontextmanager
async def with_servers(
    directory: Path, servers: str, more: str = "", **script: Any
) -> AsyncIterator[Serving]:
    async with serving(directory, script=SCRIPT | script, options='tool_parser: "hermes3"') as made:
        graph = directory / "graph/graph.pbtxt"
        node = (
            'node { name: "Mcp" calculator: "McpServersCalculator" node_options: {\n'
            f"[type.googleapis.com / google.protobuf.Struct]: {{ {servers} {more} connect_seconds: 100 }} }} }}\n"
        )
        graph.write_text(graph.read_text() + node)
        await made.manager.load("m", graph.parent)
        yield made


def stdio(more: str = "") -> str:
    return f'servers: {{ label: "tools" command: ["{sys.executable}", "{SERVER}"] {more} }}'


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """Shared by tests that leave it as it was: the import of the package takes 0.6 s of each server."""
    with as_system():
        async with with_servers(tmp_path_factory.mktemp("shared"), stdio(), "call_seconds: 60") as made:
            yield made


@pytest_asyncio.fixture(loop_scope="module")
async def own(tmp_path: Path) -> AsyncIterator[Serving]:
    async with with_servers(tmp_path, stdio('env: "TOKEN=s3cret"'), "call_seconds: 60") as made:
        yield made


async def ask(server: Serving, text: Any, **more: Any) -> Any:
    response = await server.create(text, tools=[NEVER], **more)
    Response.model_validate(response.to_dict(), strict=True)
    return response


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


async def test_a_call_is_run_and_its_result_answered(server: Serving) -> None:
    response = await ask(server, "please add")
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    listed, call, _ = response.output
    assert {tool.name for tool in listed.tools} >= {"add", "pid", "hang"}
    assert (call.name, call.server_label, call.output) == ("add", "tools", "5")
    assert (call.arguments, call.error, call.status) == ('{"a": 2, "b": 3}', None, "completed")
    assert response.output_text == "it is five"
    items = (await server.client.responses.input_items.list(response.id)).data
    assert [item.type for item in items] == ["message"], "the client's own input"
    # The next response continues it, and the tools are not listed again.
    again = await ask(server, "and?", previous_response_id=response.id)
    assert kinds(again) == ["message"]
    assert response.usage.output_tokens > again.usage.output_tokens


async def test_the_events_of_a_stream(server: Serving) -> None:
    async with server.client.responses.stream(model="m", input="please add", tools=[NEVER]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    names = [event.type for event in events if "mcp" in event.type]
    deltas = names.count("response.mcp_call_arguments.delta")
    assert deltas, [event.type for event in events]
    assert [name for name in names if not name.endswith("delta")] == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    assert kinds(final) == ["mcp_list_tools", "mcp_call", "message"]
    assert final.output[1].output == "5"
    stored = await server.client.responses.retrieve(final.id)
    assert stored.output[1].to_dict() == final.output[1].to_dict()
    assert [event.type for event in events].count("response.created") == 1


async def test_what_the_client_may_not_say(server: Serving) -> None:
    for tool, param in (
        ({"server_url": "http://127.0.0.1/mcp"}, "tools[0].server_url"),
        ({"headers": {"Authorization": "x"}}, "tools[0].headers"),
        ({"server_label": "other"}, "tools[0].server_label"),
        ({"require_approval": "sometimes"}, "tools[0].require_approval"),
        ({"allowed_tools": 3}, "tools[0].allowed_tools"),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            await server.create("x", tools=[NEVER | tool])
        assert error.value.param == param


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("wrong", "Error executing tool wrong"),
        ("die", "the server's process ended"),
        ("large", "more than 4194304"),
    ],
)
async def test_a_call_that_fails_is_an_item_and_the_response_goes_on(
    server: Serving, name: str, error: str
) -> None:
    response = await ask(server, f"please {name}")
    call = response.output[1]
    assert (call.status, call.output) == ("failed", None)
    assert error in call.error.content[0]["text"]
    assert (response.status, response.output_text) == ("completed", "done")
    assert (await ask(server, "please add")).output_text == "it is five", "the server is started again"


async def test_a_server_that_hangs(tmp_path: Path) -> None:
    async with with_servers(tmp_path, stdio(), "call_seconds: 0.5") as server:
        response = await ask(server, "please hang")
        assert "no result within 0.5 s" in response.output[1].error.content[0]["text"]
        assert response.output_text == "done"


async def test_an_image_is_named_and_secrets_stay_in_the_server(
    own: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await ask(own, "please picture")).output[1].output == "[image/png, 99 bytes]"
    assert (await ask(own, "please environment")).output[1].output == "s3cret"
    assert "s3cret" not in caplog.text
    [(plan, _)] = own.manager.get("m").graph.loaded
    from ovserve.calculators.library.mcp_servers import McpServersOptions

    assert "s3cret" not in str(plan.options(McpServersOptions))


async def test_approval(server: Serving) -> None:
    tools: Any = [{"type": "mcp", "server_label": "tools"}]
    response = await server.create("please add", tools=tools)
    assert kinds(response) == ["mcp_list_tools", "mcp_approval_request"]
    request = response.output[1]
    assert (request.name, request.arguments) == ("add", '{"a": 2, "b": 3}')

    def answer(approve: bool) -> Any:
        return [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}]

    more = {"tools": tools, "previous_response_id": response.id}
    yes = await server.create(answer(True), **more)
    assert kinds(yes) == ["mcp_call", "message"]
    assert (yes.output[0].approval_request_id, yes.output_text) == (request.id, "it is five")
    no = await server.create(answer(False), **more)
    assert (kinds(no), no.output_text) == (["message"], "done")
    wrong: Any = [{"type": "mcp_approval_response", "approval_request_id": "x", "approve": True}]
    with pytest.raises(openai.BadRequestError) as error:
        await server.create(wrong, **more)
    assert error.value.param == "input[0].approval_request_id"


async def test_approval_in_a_body_that_another_process_decodes(server: Serving) -> None:
    tools: Any = [{"type": "mcp", "server_label": "tools"}]
    response = await server.create("please add", tools=tools)
    approved: Any = {
        "type": "mcp_approval_response",
        "approval_request_id": response.output[1].id,
        "approve": True,
    }
    parts: Any = [{"type": "input_text", "text": ""}] * (LOOP_NODES // 2)  # each counts as three
    large: Any = [approved, {"type": "message", "role": "user", "content": parts}]
    answer = await server.create(large, tools=tools, previous_response_id=response.id)
    assert kinds(answer)[0] == "mcp_call"


async def test_tools_that_are_allowed(server: Serving) -> None:
    tool = NEVER | {"allowed_tools": ["add", "gone"]}
    answer = await server.post("show", tools=[tool])
    assert re.findall(r"offers (\w+)", answer.json()["output"][1]["content"][0]["text"]) == ["add"]
    assert answer.headers["x-ovserve-ignored-params"] == "tools[0].allowed_tools=gone"
    approval = {"never": {"tool_names": ["pid"]}}
    response = await server.create("please add", tools=[NEVER | {"require_approval": approval}])
    assert kinds(response)[1:] == ["mcp_approval_request"]


@pytest.mark.parametrize(
    ("options", "field", "calls"), [("max_rounds: 3", {}, 2), ("", {"max_tool_calls": 1}, 1)]
)
async def test_rounds_have_an_end(tmp_path: Path, options: str, field: Any, calls: int) -> None:
    """A model that calls for ever, and finds out nothing new in its second round, has to answer."""
    script = [{"match": "offers", "text": calling("add", '{"a": 2, "b": 3}')["text"]}, {"text": "enough"}]
    async with with_servers(tmp_path, stdio(), options, replies=script) as server:
        response = await ask(server, "forever", **field)
        assert kinds(response) == ["mcp_list_tools", *["mcp_call"] * calls, "message"]
        assert response.output_text == "enough"


async def test_a_child_ends_with_its_graph(own: Serving) -> None:
    pid = int((await ask(own, "please pid")).output[1].output)
    assert int((await ask(own, "please pid")).output[1].output) == pid, "the connection is kept"
    os.kill(pid, signal.SIGKILL)
    new = int((await ask(own, "please pid")).output[1].output)
    assert new != pid
    await own.manager.get("m").graph.unload_nodes()
    await eventually(lambda: not Path(f"/proc/{new}").exists())


async def test_over_http(tmp_path: Path) -> None:
    port = free_port()
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), str(port), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        servers = f'servers: {{ label: "tools" url: "http://127.0.0.1:{port}/mcp" headers: "X-Key: k" }}'
        async with with_servers(tmp_path, servers) as server:
            while kinds(response := await ask(server, "please add")) != [
                "mcp_list_tools",
                "mcp_call",
                "message",
            ]:
                assert "error" in response.output[0].to_dict(), "the server has not started yet"
            assert response.output_text == "it is five"
            large = (await ask(server, "please large")).output[1]
            assert large.output is None
            assert large.error
            child.terminate()
            await child.wait()
            gone = await ask(server, "please add")
            assert gone.output[0].error
            assert gone.status == "completed"
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        (
            'servers: { label: "a" url: "http://x" } } } } node { calculator: "McpServersCalculator"'
            " node_options: { [type.googleapis.com / google.protobuf.Struct]: {",
            "a graph has one such node",
        ),
        ('servers: { label: "a" }', "expected either a command or a url"),
        ('servers: { label: "a" command: "no-such-program" }', "there is no program"),
        ('servers: { label: "a" url: "http://x" headers: "Key: ${NO_SUCH}" }', "no variable NO_SUCH"),
        ('servers: { label: "a" url: "http://x" } servers: { label: "a" url: "http://y" }', "the label 'a'"),
    ],
)
async def test_options_that_are_wrong(tmp_path: Path, servers: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        async with with_servers(tmp_path, servers):
            pass


async def test_the_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"needs the package mcp; .*\[mcp\]"):
        async with with_servers(tmp_path, stdio()):
            pass


async def test_without_servers_in_the_graph_they_are_reported(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answer = await server.post("say", tools=[NEVER])
        assert answer.headers["x-ovserve-ignored-params"] == "tools[0].type=mcp"

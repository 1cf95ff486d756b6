"""The Realtime API over WebSocket: with OpenAI's client, and each event as its types have it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from openai._models import construct_type, validate_type
from openai.types.realtime import RealtimeServerEvent

from ovserve.access import Guard
from ovserve.http.routes import realtime
from tests.conftest import eventually
from tests.http.conftest import Running, running

TEMPLATE = (
    "{% if tools %}<tool_call></tool_call>{% for t in tools %}{{ t['function']['name'] }} {% endfor %}\n{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
)
CALL = {"name": "weather", "arguments": {"city": "Oslo"}}
SCRIPT = {
    "chat_template": TEMPLATE,
    "step_seconds": 0.005,
    "replies": [
        {"match": "tool: rain", "text": "It rains in Oslo."},
        {"match": "weather in Oslo", "text": f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>"},
        {"match": "a long story", "text": "And then they went on. ", "repeat": 0, "step_seconds": 0.05},
        {"match": "die", "exit_in_step": 3, "text": "I will not come to an end now."},
        {"match": "pirate", "text": "Arr, matey."},
        {"text": "Hello there, friend."},
    ],
}
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"city": {"type": "string", "title": "City"}},
        "required": ["city"],
    },
}
GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:event"
output_stream: "HTTP_RESPONSE_PAYLOAD:reply"
node {{
  name: "Session"
  calculator: "RealtimeSessionCalculator"
  input_stream: "HTTP_REQUEST_PAYLOAD:event"
  input_stream: "ANSWER:answer"
  input_stream_info {{ tag_index: "ANSWER" back_edge: true }}
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  output_stream: "HTTP_RESPONSE_PAYLOAD:reply"
  output_stream: "PROMPT:prompt"
}}
node {{
  name: "Think"
  calculator: "RealtimeThinkCalculator"
  input_side_packet: "LLM_NODE_RESOURCES:llm"
  input_stream: "PROMPT:prompt"
  output_stream: "ANSWER:answer"
  node_options: {{
    [type.googleapis.com / mediapipe.LLMCalculatorOptions]: {{ models_path: "{model}" {options} }}
  }}
}}
"""


def text_graph(place: Path, model: str, options: str = "") -> Path:
    place.mkdir(exist_ok=True)
    (place / "graph.pbtxt").write_text(GRAPH.format(model=model, options=options))
    return place


@asynccontextmanager
async def talking(tmp_path: Path, guard: Guard | None = None) -> AsyncIterator[Running]:
    graph = text_graph(tmp_path / "graph", "model.script.json")
    (graph / "model.script.json").write_text(json.dumps(SCRIPT))
    async with running(graph, guard) as server:
        yield server


class Talker:
    """A client that keeps every event it got, each checked against OpenAI's types."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.events: list[dict[str, Any]] = []

    async def send(self, type_: str, **fields: Any) -> None:
        await self.ws.send_str(json.dumps({"type": type_, **fields}))

    async def next(self) -> dict[str, Any]:
        message = await self.ws.receive(timeout=230)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        event: dict[str, Any] = json.loads(message.data)
        check_event(event)
        self.events.append(event)
        return event

    async def until(self, type_: str) -> dict[str, Any]:
        while (event := await self.next())["type"] != type_:
            assert event["type"] != "error", event
        return event

    async def say(self, text: str, **fields: Any) -> None:
        content = [{"type": "input_text", "text": text}]
        await self.send(
            "conversation.item.create", item={"type": "message", "role": "user", "content": content}, **fields
        )

    async def ask(self, text: str) -> dict[str, Any]:
        """Return the response to a message."""
        await self.say(text)
        await self.send("response.create")
        return (await self.until("response.done"))["response"]

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


def check_event(event: dict[str, Any]) -> None:
    validate_type(type_=RealtimeServerEvent, value=event)
    typed = construct_type(type_=RealtimeServerEvent, value=event)
    assert typed.type == event["type"], "the type is one of OpenAI's"


@asynccontextmanager
async def talker(server: Running, query: str = "?model=m", **options: Any) -> AsyncIterator[Talker]:
    url = f"{server.url}/v1/realtime{query}"
    async with aiohttp.ClientSession() as session, session.ws_connect(url, **options) as ws:
        talker = Talker(ws)
        assert (await talker.next())["type"] == "session.created"
        yield talker


def servable_running(server: Running) -> int:
    (servable,) = server.manager.servables
    return servable.running


TEXT_ANSWER = [
    "conversation.item.added",
    "conversation.item.done",
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


def squeezed(kinds: list[str]) -> list[str]:
    """Return the kinds with deltas that follow one another as one."""
    return [k for at, k in enumerate(kinds) if not (k.endswith("delta") and at and kinds[at - 1] == k)]


async def test_openais_client_talks(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused")
        )
        kinds, text = [], ""
        async with client.realtime.connect(model="m") as connection:
            await connection.session.update(session={"type": "realtime", "instructions": "Be a pirate."})
            await connection.conversation.item.create(
                item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
            )
            await connection.response.create()
            async for event in connection:
                kinds.append(event.type)
                text += event.delta if event.type == "response.output_text.delta" else ""
                if event.type == "response.done":
                    break
        assert kinds[:2] == ["session.created", "session.updated"]
        assert squeezed(kinds[2:]) == TEXT_ANSWER
        assert text == "Arr, matey."
        assert event.response.usage.output_tokens > 0
        secret = await client.realtime.client_secrets.create(
            session={"type": "realtime", "instructions": "Hm."}
        )
        assert secret.value.startswith("ek_")
        assert secret.session.instructions == "Hm."
        responses = server.manager.metrics.responses
        assert (responses[101], responses[499]) == (1, 0), "a client that closes a session has not given up"
        metrics = server.manager.get("m").metrics
        assert not sum(metrics.errors.values()), "nor is it a graph that failed"


async def test_a_call_of_a_clients_tool_and_its_output(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, talker(server) as talk:
        await talk.send("session.update", session={"type": "realtime", "tools": [TOOL]})
        response = await talk.ask("What is the weather in Oslo?")
        (item,) = response["output"]
        assert response["status"] == "completed"
        assert (item["type"], item["name"], item["status"]) == ("function_call", "weather", "completed")
        assert json.loads(item["arguments"]) == {"city": "Oslo"}
        kinds = talk.kinds[talk.kinds.index("response.created") :]
        assert kinds == [
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "conversation.item.done",
            "response.output_item.done",
            "response.done",
        ]
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
        await talk.send("conversation.item.create", item=output)
        await talk.send("response.create")
        answer = (await talk.until("response.done"))["response"]
        assert answer["output"][0]["content"] == [{"type": "output_text", "text": "It rains in Oslo."}]


async def test_a_second_update_resets_nothing_and_a_rejected_one_changes_nothing(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, talker(server) as talk:
        first = {
            "type": "realtime",
            "instructions": "Be a pirate.",
            "tools": [TOOL],
            "audio": {"input": {"turn_detection": {"type": "semantic_vad"}, "noise_reduction": None}},
        }
        await talk.send("session.update", session=first)
        before = (await talk.until("session.updated"))["session"]
        await talk.send("session.update", session={"type": "realtime", "tracing": "auto"})
        after = (await talk.until("session.updated"))["session"]
        assert after == before | {"tracing": "auto"}
        for session, param in (
            ({"output_modalities": ["audio"]}, "session.output_modalities"),
            ({"model": "other"}, "session.model"),
            ({"audio": {"output": {"speed": 9}}}, "session.audio.output.speed"),
            ({"modalities": ["text"]}, "session.modalities"),
            ({"tools": [{"type": "mcp"}]}, "session.tools[0].type"),
        ):
            await talk.send("session.update", event_id="mine", session={"instructions": "x", **session})
            error = (await talk.next())["error"]
            assert (error["param"], error["event_id"]) == (param, "mine"), error
        await talk.send("session.update", session={})
        assert (await talk.until("session.updated"))["session"] == after


async def test_items_are_put_in_order_retrieved_and_deleted(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, talker(server) as talk:
        ids = ["one", "three", "zero", "two"]
        for id_, previous in zip(ids, [None, None, "root", "one"], strict=True):
            item = {
                "id": id_,
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": id_}],
            }
            await talk.send("conversation.item.create", item=item, previous_item_id=previous)
        added = [await talk.until("conversation.item.done") for _ in ids]
        assert [event["previous_item_id"] for event in added] == [None, "one", None, "one"]
        await talk.send("conversation.item.retrieve", item_id="two")
        assert (await talk.next())["item"]["content"][0]["text"] == "two"
        await talk.send("conversation.item.delete", item_id="two")
        assert (await talk.next())["item_id"] == "two"
        await talk.send("conversation.item.delete", item_id="two", event_id="again")
        assert (await talk.next())["error"]["event_id"] == "again"


async def test_a_second_response_is_an_error_and_a_cancelled_one_is_done(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, talker(server) as talk:
        await talk.say("Tell me a long story")
        await talk.send("response.create")
        await talk.until("response.output_text.delta")
        await talk.send("response.create", event_id="second")
        await talk.send("response.cancel")
        while talk.kinds[-1] != "response.done":
            await talk.next()
        (error,) = [event["error"] for event in talk.events if event["type"] == "error"]
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "second")
        response = talk.events[-1]["response"]
        assert response["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        assert response["output"][0]["status"] == "incomplete"
        await talk.send("response.cancel")
        assert (await talk.next())["error"]["code"] == "response_cancel_not_active"
        await talk.send("response.create", response={"instructions": "Hi", "input": []})
        assert (await talk.until("response.done"))["response"]["status"] == "completed"


async def test_a_response_beside_the_conversation(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, talker(server) as talk:
        await talk.say("Hello")
        content = [{"type": "input_text", "text": "Be a pirate"}]
        options = {
            "conversation": "none",
            "metadata": {"topic": "sea"},
            "input": [{"type": "message", "role": "user", "content": content}],
        }
        await talk.send("response.create", response=options)
        done = (await talk.until("response.done"))["response"]
        assert done["metadata"] == {"topic": "sea"}
        assert done["conversation_id"] is None
        assert done["output"][0]["content"][0]["text"] == "Arr, matey."
        assert talk.kinds.count("conversation.item.added") == 1


async def test_what_is_no_event_is_an_error_and_the_session_lives(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, talker(server) as talk:
        for message, event_id in (("{", None), ("[]", None), ('{"type": "x", "event_id": "e"}', "e")):
            await talk.ws.send_str(message)
            error = (await talk.next())["error"]
            assert (error["code"], error["event_id"]) == ("invalid_event", event_id)
        await talk.send("input_audio_buffer.append", audio="AAAA")
        assert (await talk.next())["error"]["code"] == "unsupported_audio"
        await talk.send("input_audio_buffer.commit")
        assert (await talk.next())["error"]["code"] == "input_audio_buffer_commit_empty"
        await talk.send("input_audio_buffer.clear")
        assert (await talk.next())["type"] == "input_audio_buffer.cleared"
        assert (await talk.ask("Hi"))["status"] == "completed"


async def test_a_bound_of_tokens_makes_it_incomplete(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, talker(server) as talk:
        await talk.say("Hi")
        await talk.send("response.create", response={"max_output_tokens": 2})
        response = (await talk.until("response.done"))["response"]
        assert response["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}


async def test_the_end_of_an_engine_ends_the_response_and_not_the_session(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, talker(server) as talk:
        await talk.say("Hi")
        await talk.send("response.create", response={"instructions": "Now die"})
        response = (await talk.until("response.done"))["response"]
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["code"]
        await eventually(lambda: server.engine.state.name == "ready")
        assert (await talk.ask("Hi"))["status"] == "completed"


async def test_a_client_that_vanishes_leaves_nothing_behind(tmp_path: Path) -> None:
    async with talking(tmp_path) as server:
        for _ in range(20):
            async with talker(server) as talk:
                await talk.say("Tell me a long story")
                await talk.send("response.create")
                await talk.until("response.created")
                assert talk.ws._response.connection is not None
                talk.ws._response.connection.transport.abort()
        await eventually(lambda: not servable_running(server))
        async with talker(server) as talk:
            assert (await talk.ask("Hi"))["status"] == "completed"


async def test_capabilities_are_those_of_the_graph(tmp_path: Path) -> None:
    """Chats and the like were listed as available for the language model, though the graph answers none."""
    bodies: dict[str, dict[str, Any]] = {
        "tokenize": {"prompt": "Hi"},
        "detokenize": {"tokens": [1]},
        "messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    }
    async with talking(tmp_path) as server, httpx.AsyncClient(base_url=f"{server.url}/v3") as client:
        (shown,) = (await client.get("/capabilities?model=m")).json()["data"]
        names = [e["endpoint"] for e in shown["endpoints"] if e["available"]]
        assert sorted(names) == sorted([*bodies, "realtime"])
        for name, body in bodies.items():
            answer = await client.post(f"/{name}", json={"model": "m", **body})
            assert answer.status_code == 200, answer.text
        assert not server.manager.get("m").chats


async def test_the_handshake(tmp_path: Path) -> None:
    async with talking(tmp_path) as server, aiohttp.ClientSession() as session:
        url = f"{server.url}/v1/realtime"
        for query, headers, status in (
            ("?model=none", {}, 404),
            ("?api-version=1&deployment=none", {}, 404),
            ("?model=m", {"Origin": "https://evil.example"}, 403),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                await session.ws_connect(url + query, headers=headers)
            assert error.value.status == status
        key = "openai-insecure-api-key.secret"
        async with session.ws_connect(url, protocols=("realtime", key, "openai-agents-sdk.0.20.0")) as ws:
            assert ws.protocol == "realtime"
        async with session.ws_connect(f"{server.url}/openai/v1/realtime?model=m") as ws:
            assert ws.protocol is None
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}?model=m")).status_code == 400
            calls = await client.post(f"{url}/calls")
            assert calls.status_code == 404
            assert "WebSocket" in calls.json()["error"]["message"]


async def test_keys(tmp_path: Path) -> None:
    async with talking(tmp_path, Guard("right")) as server, aiohttp.ClientSession() as session:
        url = f"{server.url}/v1/realtime?model=m"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer ek_wrong"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                await session.ws_connect(url, headers=headers)
            assert error.value.status == 401
        secrets = f"{server.url}/v1/realtime/client_secrets"
        body = {"session": {"type": "realtime", "instructions": "Be a pirate."}}
        async with session.post(secrets, json=body, headers={"Authorization": "Bearer right"}) as answer:
            value = (await answer.json())["value"]
        async with session.ws_connect(url, protocols=("realtime", f"openai-insecure-api-key.{value}")) as ws:
            talk = Talker(ws)
            assert (await talk.next())["session"]["instructions"] == "Be a pirate."
            assert (await talk.ask("Hi"))["output"][0]["content"][0]["text"] == "Arr, matey."
        async with session.get(
            f"{server.url}/v1/models", headers={"Authorization": f"Bearer {value}"}
        ) as answer:
            assert answer.status == 401, "a short-lived key opens sessions only"


async def test_a_session_ends_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "SESSION_SECONDS", 0.0)
    async with talking(tmp_path) as server, talker(server) as talk:
        assert (await talk.next())["error"]["code"] == "session_expired"
        message = await talk.ws.receive(timeout=230)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1001)
        assert "60" not in message.extra
        assert "maximum duration" in message.extra


async def test_one_session_too_many_is_a_503_and_a_large_message_ends_its_own(tmp_path: Path) -> None:
    graph = text_graph(tmp_path / "graph", "model.script.json")
    (graph / "model.script.json").write_text(json.dumps(SCRIPT))
    file = graph / "graph.pbtxt"
    options = """calculator: "RealtimeSessionCalculator"
  node_options: { [type.googleapis.com / google.protobuf.Struct]: { max_sessions: 1 } }"""
    file.write_text(file.read_text().replace('calculator: "RealtimeSessionCalculator"', options))
    async with running(graph) as server:
        async with talker(server) as talk, aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                await session.ws_connect(f"{server.url}/v1/realtime")
            assert error.value.status == 503
            assert error.value.headers is not None
            assert "Retry-After" in error.value.headers
            with suppress(ConnectionError):  # the server closes as soon as it has read the size
                await talk.ws.send_str("x" * (realtime.MAX_MESSAGE + 1))
            message = await talk.ws.receive(timeout=230)
            ended = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
            assert message.type in ended
        await eventually(lambda: not servable_running(server))
        async with talker(server) as talk:
            assert (await talk.ask("Hi"))["status"] == "completed"

"""Agent frameworks and the openai client against the running server, with a real model that calls tools.

Slow: `make frameworks` fetches the model (1.1 GB) and the frameworks, which have an environment of their own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.conftest import ROOT, Server, start_server
from tests.schemas import SCHEMAS, hint

PULLED = ROOT / "models/qwen2.5-coder-1.5b/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
PATH = Path(os.environ.get("OVSERVE_TEST_TOOL_MODEL", PULLED))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # 100 ms and more per token on two cores
    pytest.mark.filterwarnings("default"),  # the frameworks' own
]

SYSTEM = (
    "You call tools to find facts. When the facts are there, "
    "you answer the user in one plain sentence without JSON."
)
QUESTION = "Tell me the weather and the population of Oslo. Call both tools."
FACTS = {"get_weather": {"weather": "rain", "degrees": 7}, "get_population": {"population": 717710}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": about, "parameters": CITY}}
    for name, about in (
        ("get_weather", "The weather in a city now"),
        ("get_population", "How many people live in a city"),
    )
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not PATH.exists():
        pytest.skip(f"{PATH} is missing; `make frameworks` fetches it")
    directory = tmp_path_factory.mktemp("qwen")
    graph = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    (directory / "graph.pbtxt").write_text(re.sub(r'models_path: "[^"]*"', f'models_path: "{PATH}"', graph))
    running = start_server(directory, name="qwen", timeout=300)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0, timeout=600) as made:
        yield made


def whole(client: openai.OpenAI, **fields: Any) -> dict[str, Any]:
    """The assistant's message, as a client puts it into the history."""
    answer = client.chat.completions.create(**fields)
    assert answer.choices[0].finish_reason in ("stop", "tool_calls")
    message: dict[str, Any] = answer.choices[0].message.model_dump(exclude_none=True)
    return message


def streamed(client: openai.OpenAI, **fields: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for chunk in client.chat.completions.create(stream=True, **fields):
        ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                assert piece.function is not None
                if piece.index == len(calls):
                    function = {"name": piece.function.name, "arguments": ""}
                    calls.append({"id": piece.id, "type": "function", "function": function})
                calls[piece.index]["function"]["arguments"] += piece.function.arguments or ""
    return message | ({"tool_calls": calls} if calls else {})


@pytest.mark.parametrize("ask", [whole, streamed])
@pytest.mark.parametrize("choice", ["auto", "required", "named"])
def test_a_loop_of_two_tools(client: openai.OpenAI, ask: Any, choice: str) -> None:
    """To the final answer; `choice` is that of the first turn, since a forced model would never end."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    first: Any = named if choice == "named" else choice
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    called: list[str] = []
    for turn in range(5):
        message = ask(
            client, model="qwen", messages=messages, tools=TOOLS, temperature=0, max_tokens=200,
            tool_choice=first if turn == 0 else "auto",
        )  # fmt: skip
        messages.append(message)
        calls = message.get("tool_calls", [])
        if turn == 0 and choice == "named":
            assert [c["function"]["name"] for c in calls] == ["get_weather"]
        assert calls or turn
        if not calls:
            break
        for call in calls:
            name = call["function"]["name"]
            assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
            called.append(name)
            result = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(FACTS[name])}
            messages.append(result)
    assert set(called) == ({"get_weather"} if called == ["get_weather"] else set(FACTS))
    assert "rain" in messages[-1]["content"]
    if choice != "named":
        check(messages[-1]["content"])


def check(text: str) -> None:
    assert "rain" in text
    assert "717710" in text.replace(",", "").replace(" ", "")


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_openai_agents(server: Server, api: str) -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    called = []

    @agents.function_tool  # type: ignore[untyped-decorator]
    def get_weather(city: str) -> str:
        """The weather in a city now"""
        called.append(("get_weather", city))
        return json.dumps(FACTS["get_weather"])

    @agents.function_tool  # type: ignore[untyped-decorator]
    def get_population(city: str) -> str:
        """How many people live in a city"""
        called.append(("get_population", city))
        return json.dumps(FACTS["get_population"])

    async with openai.AsyncOpenAI(base_url=server.v3, api_key="none", timeout=600) as client:
        kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
        agent = agents.Agent(
            name="clerk",
            instructions=SYSTEM,
            tools=[get_weather, get_population],
            model=kind(model="qwen", openai_client=client),
            model_settings=agents.ModelSettings(temperature=0, max_tokens=200),
        )
        result = await agents.Runner.run(agent, QUESTION, max_turns=6)
    assert set(called) == {("get_weather", "Oslo"), ("get_population", "Oslo")}
    check(result.final_output)


async def test_pydantic_ai(server: Server) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    called = []
    async with openai.AsyncOpenAI(base_url=server.v3, api_key="none", timeout=600) as client:
        model = OpenAIChatModel("qwen", provider=OpenAIProvider(openai_client=client))
        agent = pydantic_ai.Agent(
            model, system_prompt=SYSTEM, model_settings={"temperature": 0, "max_tokens": 200}
        )

        @agent.tool_plain  # type: ignore[untyped-decorator]
        def get_weather(city: str) -> str:
            """The weather in a city now"""
            called.append(("get_weather", city))
            return json.dumps(FACTS["get_weather"])

        @agent.tool_plain  # type: ignore[untyped-decorator]
        def get_population(city: str) -> str:
            """How many people live in a city"""
            called.append(("get_population", city))
            return json.dumps(FACTS["get_population"])

        result = await agent.run(QUESTION)
        assert set(called) == {("get_weather", "Oslo"), ("get_population", "Oslo")}
        # Not `check`: with pydantic-ai's schemas this model calls twice, ends without a word, and is asked again.
        assert "Oslo" in result.output


@pytest.mark.parametrize("mode", ["MD_JSON", "JSON_SCHEMA", "TOOLS"])
def test_instructor(client: openai.OpenAI, mode: str) -> None:
    instructor = pytest.importorskip("instructor")
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str
        age: int

    patched = instructor.from_openai(client, mode=instructor.Mode[mode])
    person = patched.chat.completions.create(
        model="qwen", response_model=Person, temperature=0, max_tokens=100, max_retries=1,
        messages=[{"role": "user", "content": "Ann Lee is 30 years old. Who is it?"}],
    )  # fmt: skip
    assert ("Ann" in person.name, person.age) == (True, 30)


class Cat(pydantic.BaseModel):
    name: str
    age: int


class Owner(pydantic.BaseModel):
    name: str
    cats: list[Cat]


def test_parse_gives_typed_objects(client: openai.OpenAI) -> None:
    shown = '{"name": "Bob", "cats": [{"name": "Max", "age": 2}]}'
    told = f"Ann has two cats: Tom is 3 and Kit is 5 years old. Write it as JSON in one line, like {shown}"
    chat = client.chat.completions.parse(
        model="qwen", temperature=0, max_tokens=150, response_format=Owner,
        messages=[{"role": "user", "content": told}],
    )  # fmt: skip
    response = client.responses.parse(
        model="qwen", temperature=0, max_output_tokens=150, text_format=Owner, input=told
    )
    for owner in (chat.choices[0].message.parsed, response.output_parsed):
        assert owner == Owner(name="Ann", cats=[Cat(name="Tom", age=3), Cat(name="Kit", age=5)])


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_instance_is_valid(client: openai.OpenAI, name: str) -> None:
    schema = SCHEMAS[name]
    answer = client.chat.completions.create(
        model="qwen", messages=hint(name), temperature=0, max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
    )  # fmt: skip
    assert answer.choices[0].finish_reason == "stop"
    instance = json.loads(answer.choices[0].message.content or "")
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(instance)

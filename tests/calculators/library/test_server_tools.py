"""Tools that the server runs, and the memory of conversations: what bounds them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
import pytest

from ovserve.access import Caller, RequestContext, Rights, calling
from ovserve.calculators.library import ConversationMemory, ServerTools, Toolbox, tool
from ovserve.calculators.library.conversation import MemoryOptions
from ovserve.calculators.library.server_tools import ServerToolsOptions
from ovserve.graph import calculator
from ovserve.graph.testing import CalculatorRunner
from ovserve.llm.output import ToolCall

RELEASED = threading.Event()
City = Annotated[str, msgspec.Meta(description="its English name")]


@calculator("WeatherToolsCalculator")
class WeatherTools(ServerTools):
    @tool
    async def weather(self, city: City, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
        """Report the weather of a city."""
        return {"city": city, "degrees": 20 if unit == "C" else 68}

    @tool
    def slow(self, seconds: float) -> str:
        """Wait."""
        RELEASED.wait(seconds)
        return "x" * 50

    def helper(self) -> None:
        raise AssertionError("is not a tool")


@pytest.fixture
async def stuck() -> AsyncIterator[str]:
    """Arguments with which `slow` ends after the test."""
    yield '{"seconds": 1000}'
    RELEASED.set()
    for thread in threading.enumerate():
        if thread.name.startswith("tool"):
            thread.join()
    RELEASED.clear()


@pytest.fixture
def counted() -> list[str]:
    return []


@pytest.fixture
def tools(counted: list[str]) -> Toolbox:
    return toolbox(counted, call_seconds=60)


def toolbox(counted: list[str], call_seconds: float) -> Toolbox:
    options = ServerToolsOptions(call_seconds=call_seconds, max_output_characters=20)
    return Toolbox(WeatherTools.declared, WeatherTools(), options, counted.append)


def test_the_model_sees_names_docstrings_and_types(tools: Toolbox) -> None:
    policy = tools.policy()
    assert policy is not None
    assert policy.names == ("weather", "slow")
    assert policy.prompt_tools[0]["function"] == {
        "name": "weather",
        "description": "Report the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "its English name"},
                "unit": {"enum": ["C", "F"], "default": "C"},
            },
            "required": ["city"],
        },
    }
    forbidden = tools.policy(allowed=False)
    assert forbidden is not None
    assert not forbidden.calls


@pytest.mark.parametrize(
    ("name", "arguments", "output"),
    [
        ("weather", '{"city": "Rome", "mood": 1}', '{"city":"Rome","degr ...'),
        ("slow", '{"seconds": "0.01"}', "xxxxxxxxxxxxxxxxxxxx ..."),
        ("weather", "{}", "error: Validation"),
        ("weather", '{"city": "Rome", "unit": "K"}', "error: Validation"),
        ("weather", '{"city"', "error: DecodeError: "),
        ("helper", "{}", "error: LookupError: "),
    ],
)
async def test_what_a_call_gives(
    tools: Toolbox, counted: list[str], name: str, arguments: str, output: str
) -> None:
    result = await tools.run(ToolCall("1", name, arguments))
    assert result.output.startswith(output)
    assert result.failed == output.startswith("error")
    assert counted == ["failed_calls" if result.failed else "calls"]


async def test_a_call_has_an_end(counted: list[str], stuck: str) -> None:
    result = await toolbox(counted, call_seconds=0.05).run(ToolCall("1", "slow", stuck))
    assert result.output.startswith("error: TimeoutError:")
    assert counted == ["failed_calls"]
    assert not RELEASED.is_set(), "the method still runs"


async def test_a_call_ends_with_its_request(tools: Toolbox, stuck: str) -> None:
    running = asyncio.create_task(tools.run(ToolCall("1", "slow", stuck)))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not RELEASED.is_set(), "the method still runs"


def test_a_parameter_without_a_type_is_an_error_at_load() -> None:
    with pytest.raises(TypeError, match="tool 'find': parameter 'text' has no type"):

        class Untyped(ServerTools):
            @tool
            def find(self, text):  # type: ignore[no-untyped-def]
                """Find it."""


async def test_a_tools_node_needs_no_stream() -> None:
    await CalculatorRunner(WeatherTools, 'output_side_packet: "TOOLS:tools"').run()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_memory_is_bounded_and_expires() -> None:
    clock = Clock()
    memory = ConversationMemory(MemoryOptions(2, 2, 40, 10.0), clock)
    with calling(RequestContext(Caller("ann", Rights()))):
        for number in range(3):
            memory.add("a", f"question {number}", "ok")
        assert [turn.question for turn in memory.turns("a")] == ["question 1", "question 2"]
        memory.add("a", "x" * 41, "")
        memory.add("a", "x" * 30, "")
        assert [turn.question for turn in memory.turns("a")] == ["x" * 30]
        clock.now = 6.0
        memory.add("b", "hello", "hi")
        clock.now = 11.0
        assert memory.turns("a") == ()
        assert len(memory.turns("b")) == 1
        for id_ in "cd":
            memory.add(id_, "hello", "hi")
        assert memory.facts() == {"conversations": 2}
        assert memory.turns("b") == ()
    with calling(RequestContext(Caller("bob", Rights()))):
        assert memory.turns("d") == (), "the conversation of another key"

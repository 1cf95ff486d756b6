"""Tools that the server runs, and the memory of conversations: what bounds them."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Literal

import msgspec
import pytest

from ovserve.access import Caller, RequestContext, Rights, calling
from ovserve.calculators.library import ConversationMemory, ServerTools, Toolbox, tool
from ovserve.calculators.library.conversation_memory import MemoryOptions
from ovserve.calculators.library.server_tools import ServerToolsOptions
from ovserve.graph import calculator
from ovserve.graph.testing import CalculatorRunner
from ovserve.llm.output import ToolCall

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
        time.sleep(seconds)
        return "x" * 50

    def helper(self) -> None:
        raise AssertionError("is not a tool")


@pytest.fixture
def counted() -> list[str]:
    return []


@pytest.fixture
def tools(counted: list[str]) -> Toolbox:
    options = ServerToolsOptions(call_seconds=0.3, max_output_characters=20)
    return Toolbox(WeatherTools.declared, WeatherTools(), options, counted.append)


def test_the_model_sees_names_docstrings_and_types(tools: Toolbox) -> None:
    policy = tools.policy()
    assert policy is not None
    assert policy.names == ("weather", "slow")
    assert policy.shown[0]["function"] == {
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
        ("slow", '{"seconds": 9}', "error: TimeoutError:"),
        ("weather", "{}", "error: Validation"),
        ("weather", '{"city": "Rome", "unit": "K"}', "error: Validation"),
        ("weather", '{"city"', "error: DecodeError: "),
        ("helper", "{}", "error: LookupError: "),
    ],
)
async def test_what_a_call_gives(
    tools: Toolbox, counted: list[str], name: str, arguments: str, output: str
) -> None:
    began = time.monotonic()
    result = await tools.run(ToolCall("1", name, arguments))
    assert result.output.startswith(output)
    assert result.failed == output.startswith("error")
    assert counted == ["failed_calls" if result.failed else "calls"]
    assert time.monotonic() - began < 2


async def test_a_call_ends_with_its_request(tools: Toolbox) -> None:
    running = asyncio.create_task(tools.run(ToolCall("1", "slow", '{"seconds": 0.2}')))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


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

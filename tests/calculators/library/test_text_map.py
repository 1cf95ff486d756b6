"""TextMap: five lines of an author's mask everything that the model writes, across packets."""

from __future__ import annotations

import re

import pytest

from ovserve.calculators.library import TextMap
from ovserve.errors import LoadError, NodeError
from ovserve.graph import Context, calculator
from ovserve.graph.testing import CalculatorRunner
from ovserve.llm.output import (
    Completion,
    Content,
    ContentWasReasoning,
    Parsed,
    Reasoning,
    ToolCallBroken,
    ToolCallDelta,
)
from ovserve.llm.request import TokenLogprob, TopToken

NODE = 'input_stream: "PARSED:a" output_stream: "PARSED:b" '


@calculator("MaskCardsCalculator")
class MaskCards(TextMap):
    pattern = re.compile(r"\b\d(?:[ -]?\d){7,18}\b")

    def replace(self, match: str) -> str:
        return "[card]"


async def masked(*packets: Parsed) -> list[Parsed]:
    out = await CalculatorRunner(MaskCards, NODE).run({"a": packets})
    assert len(out["b"]) == len(packets)
    return [packet.value for packet in out["b"]]


def folded(packets: list[Parsed]) -> Completion:
    answer = Completion()
    for packet in packets:
        answer.add(packet)
    return answer


async def test_a_match_across_packets_is_masked_in_content_and_reasoning() -> None:
    out = await masked(
        Parsed(prompt_tokens=9, max_tokens=50),
        Parsed((Reasoning("It is 4111 "),), 3, reasoning_tokens=3),
        Parsed((Reasoning("1111 1"), Content("Card 42")), 4),
        Parsed((Content("42-4242-"),), 2),
        Parsed((Content("4242."),), 2, "stop", last=True),
    )
    answer = folded(out)
    assert answer.choices[0].reasoning == "It is [card]"
    assert answer.choices[0].content == "Card [card]."
    assert (answer.prompt_tokens, answer.completion_tokens, answer.reasoning_tokens) == (9, 11, 3)
    assert (out[-1].finish_reason, out[-1].last) == ("stop", True)


async def test_choices_do_not_mix() -> None:
    out = await masked(
        Parsed((Content("4111"),), index=0),
        Parsed((Content("no 1111"),), index=1),
        Parsed((Content("1111"),), index=0, finish_reason="stop"),
        Parsed((Content("!"),), index=1, finish_reason="stop", last=True),
    )
    assert [c.content for c in folded(out).choices] == ["[card]", "no 1111!"]


async def test_arguments_come_whole_and_are_json() -> None:
    out = await masked(
        Parsed((Content("Paying."), ToolCallDelta(0, "id0", "pay", '{"card": "4111'))),
        Parsed((ToolCallDelta(0, arguments=' 1111", "pin": 12345678'),)),
        Parsed(
            (ToolCallDelta(0, arguments="}"), ToolCallDelta(1, "id1", "log", "{}")),
            1,
            "tool_calls",
            last=True,
        ),
    )
    call, other = folded(out).choices[0].tool_calls
    assert (call.id, call.name, call.arguments) == ("id0", "pay", '{"card":"[card]","pin":"[card]"}')
    assert other.arguments == "{}"
    assert folded(out).choices[0].content == "Paying."


async def test_a_broken_call_takes_its_arguments_along() -> None:
    out = await masked(
        Parsed((ToolCallDelta(0, "id0", "pay", '{"card": "4111'),)),
        Parsed(
            (
                ToolCallBroken(0),
                Content('{"card": "4111 1111'),
            ),
            1,
            "stop",
            last=True,
        ),
    )
    assert folded(out).choices[0].tool_calls == []
    assert folded(out).choices[0].content == '{"card": "[card]'


async def test_content_that_was_reasoning() -> None:
    out = await masked(
        Parsed((Content("4111 11"),)),
        Parsed((ContentWasReasoning(), Reasoning("11 so")), 1),
        Parsed((Content("42"),), 1, "stop", last=True),
    )
    assert folded(out).choices[0].content == "42"


async def test_logprobs_show_no_more_than_the_text() -> None:
    words = ["Card ", "41", "11", " 11", "11", "."]
    tokens = [TokenLogprob(word, word.encode(), -1.0) for word in words]
    packets = [Parsed((Content(t.text),), 1, logprobs=[t]) for t in tokens]
    packets[-1].finish_reason, packets[-1].last = "stop", True
    logprobs = folded(await masked(*packets)).choices[0].logprobs
    assert [(t.text, t.logprob) for t in logprobs] == [("Card ", -1.0), ("[card]", -4.0), (".", -1.0)]


async def test_top_logprobs_show_no_match_either() -> None:
    top = tuple(TopToken(text, text.encode(), -1.0) for text in ("a", "41111111", "b"))
    tokens = [TokenLogprob("a", b"a", -1.0, top)]
    runner = CalculatorRunner(MaskCards, NODE)
    out = await runner.run({"a": [Parsed((Content("a"),), 1, "stop", logprobs=tokens, last=True)]})
    (token,) = out["b"][0].value.logprobs
    assert token == TokenLogprob("a", b"a", -1.0, (top[0], top[2]))
    assert runner.events.values == {}


async def test_matches_are_counted_once() -> None:
    runner = CalculatorRunner(MaskCards, NODE)
    tokens = [TokenLogprob("41111111", b"41111111", -1.0)]
    await runner.run({"a": [Parsed((Content("41111111"),), 1, "stop", logprobs=tokens, last=True)]})
    assert runner.events.values == {("MaskCardsCalculator", "matched"): 1}


async def test_a_mask_that_would_mask_nothing_fails_instead() -> None:
    @calculator("NoPattern")
    class NoPattern(TextMap):
        def replace(self, match: str) -> str:
            return ""

    @calculator("Misspelt")
    class Misspelt(NoPattern):
        def open(self, cc: Context) -> None:
            self.patern = re.compile("x")

    @calculator("NoWindow")
    class NoWindow(MaskCards):
        window = 0

    with pytest.raises(LoadError, match="NoPattern has no pattern: set it in the class or in open"):
        CalculatorRunner(NoPattern, NODE)
    with pytest.raises(LoadError, match=r"NoWindow.window: expected at least 1 character, got 0"):
        CalculatorRunner(NoWindow, NODE)
    with pytest.raises(NodeError, match="ValueError: Misspelt has no pattern"):
        await CalculatorRunner(Misspelt, NODE).run({"a": [Parsed((Content("x"),))]})

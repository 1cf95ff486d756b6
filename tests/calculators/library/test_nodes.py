"""The nodes of the library, each by itself: ports, options, events."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ovserve.calculators.library import (
    AnswerCheck,
    Answerer,
    Cascade,
    Exchange,
    Observer,
    PromptCheck,
    PromptInsertion,
    Question,
    Switch,
    TextFilter,
)
from ovserve.calculators.library.answerer import AnswerAppend, LimitCascade, WithLogprobs
from ovserve.calculators.library.messages import prompt_text, question, with_system_text
from ovserve.calculators.library.streams import Merge
from ovserve.calculators.library.text_filter import PatternFilter
from ovserve.errors import InvalidArgument, LoadError, NodeError
from ovserve.graph import Context, Packet, calculator
from ovserve.graph.calculator import MAX_FOLLOW_UPS, FollowUps
from ovserve.graph.testing import CalculatorRunner
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.chat_template import Conversation, EncodedConversation
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Content, Parsed, ToolCallDelta
from ovserve.llm.request import GenerateRequest, Sampling, TokenLogprob, ToolPolicy, TopToken


def options(text: str) -> str:
    return f" node_options {{ [type.googleapis.com/google.protobuf.Struct] {{ {text} }} }}"


def request(prompt: str = "hi", **sampling: Any) -> GenerateRequest:
    return GenerateRequest("id", (prompt,), False, Sampling(**sampling))


def stream(*texts: str, end: str = "stop") -> list[Parsed]:
    packets = [Parsed((Content(text),), 1) for text in texts]
    packets[0].prompt_tokens = 5
    packets[-1].finish_reason, packets[-1].last = end, True
    return packets


def folded(packets: list[Packet]) -> Completion:
    answer = Completion()
    for packet in packets:
        answer.add(packet.value)
    return answer


# ---- switch, merge


@calculator("EvenCalculator")
class Even(Switch):
    def choose(self, cc: Context, value: Any) -> int:
        return int(value % 2) if value < 9 else 7


async def test_a_switch_sends_each_packet_one_way() -> None:
    runner = CalculatorRunner(
        Even, 'input_stream: "IN:a" output_stream: "OUT:0:even" output_stream: "OUT:1:odd"'
    )
    out = await runner.run({"a": [1, 2, 3]})
    assert {name: [p.value for p in packets] for name, packets in out.items()} == {"even": [2], "odd": [1, 3]}
    assert runner.events.values == {("EvenCalculator", "out_0"): 1, ("EvenCalculator", "out_1"): 2}
    with pytest.raises(NodeError, match="choose\\(\\) returned 7; the node has OUT:0 to OUT:1"):
        await runner.run({"a": [9]})
    with pytest.raises(LoadError, match="a switch needs outputs"):
        CalculatorRunner(Even, 'input_stream: "IN:a"')


async def test_a_merge_takes_packets_as_they_come() -> None:
    runner = CalculatorRunner(Merge, 'input_stream: "IN:0:a" input_stream: "IN:1:b" output_stream: "OUT:c"')
    out = await runner.run({"a": ["x", "y"], "b": [Packet(0, "z")]})
    assert sorted(p.value for p in out["c"]) == ["x", "y", "z"]
    assert [p.timestamp for p in out["c"]] == [0, 1, 2]
    assert [p.value for p in (await runner.run({"b": ["only"]}))["c"]] == ["only"]
    with pytest.raises(LoadError, match="a merge needs inputs"):
        CalculatorRunner(Merge, 'output_stream: "OUT:c"')


# ---- text filter

FILTER = 'input_stream: "GENERATE:g" input_stream: "PARSED:a" output_stream: "PARSED:b"'


@calculator("NoPokerCalculator")
class NoPoker(TextFilter):
    pattern = re.compile("poker")
    message = " (cut)"
    window = 8


async def test_a_filter_ends_the_answer_before_the_match() -> None:
    runner = CalculatorRunner(NoPoker, FILTER)
    out = (await runner.run({"g": [request()], "a": stream("We play long po", "ker", " all night")}))["b"]
    assert folded(out).choices[0].content == "We play (cut)"
    assert (out[-1].value.finish_reason, out[-1].value.last) == ("content_filter", True)
    assert len(out) == 2, "the model is not read any more"
    assert runner.events.values == {("NoPokerCalculator", "filtered"): 1}


async def test_a_filter_passes_everything_else() -> None:
    given = stream("We play ", "chess", " all night long")
    for packet in given:
        packet.logprobs = [TokenLogprob("x", b"x", -1.0)]
    answer = folded((await CalculatorRunner(NoPoker, FILTER).run({"g": [request()], "a": given}))["b"])
    assert answer.choices[0].content == "We play chess all night long"
    assert len(answer.choices[0].logprobs) == 3
    assert answer.completion_tokens == 3


async def test_a_filter_shows_no_match_among_the_top_logprobs() -> None:
    top = tuple(TopToken(text, text.encode(), -1.0) for text in (" poker", " chess"))
    given = stream("We play ", "chess")
    given[-1].logprobs = [TokenLogprob(" chess", b" chess", -1.0, top)]
    answer = folded((await CalculatorRunner(NoPoker, FILTER).run({"g": [request()], "a": given}))["b"])
    assert answer.choices[0].logprobs[0].top == top[1:]


async def test_one_filtered_choice_does_not_end_the_other() -> None:
    given = [Parsed((Content("poker"),), 1, index=0), Parsed((Content("chess"),), 1, index=1), Parsed((Content("!"),), 1, index=0),
             Parsed((Content("!"),), 1, "stop", index=0), Parsed((Content("!"),), 1, "stop", index=1, last=True)]  # fmt: skip
    out = (await CalculatorRunner(NoPoker, FILTER).run({"g": [request(n=2)], "a": given}))["b"]
    answer = folded(out)
    assert [(c.content, c.finish_reason) for c in answer.choices] == [
        (" (cut)", "content_filter"),
        ("chess!", "stop"),
    ]
    assert sum(p.value.last for p in out) == 1


async def test_a_call_with_a_match_is_not_sent() -> None:
    given = [
        Parsed((ToolCallDelta(0, "id", "play", '{"game": "po'),), 1),
        Parsed((ToolCallDelta(0, arguments='ker"}'),), 1, "tool_calls", last=True),
    ]
    out = (await CalculatorRunner(NoPoker, FILTER).run({"g": [request()], "a": given}))["b"]
    assert folded(out).choices[0].tool_calls == []
    assert folded(out).choices[0].finish_reason == "content_filter"


async def test_a_whole_answer_is_replaced() -> None:
    node = FILTER + options('patterns: ["POKER", "dice"] whole: true message: "no" window: 8')
    runner = CalculatorRunner(PatternFilter, node)
    out = (await runner.run({"g": [request()], "a": stream("A long beginning, then ", "poker", "!")}))["b"]
    assert folded(out).choices[0].content == "no"
    kept = (await runner.run({"g": [request()], "a": stream("A long beginning, ", "then chess")}))["b"]
    assert [p.value.content for p in kept] == ["", "A long beginning, then chess"]


# ---- answer check, cascade


@calculator("ShortCalculator")
class Short(AnswerCheck):
    message = "too long"

    async def accept(self, cc: Context, answer: Completion) -> bool:
        return len(answer.choices[0].content) < 10


async def test_an_answer_is_accepted_as_it_came_or_replaced() -> None:
    runner = CalculatorRunner(Short, FILTER)
    given = stream("ab", "cd")
    given[0].logprobs = [TokenLogprob("ab", b"ab", -1.0)]
    out = (await runner.run({"g": [request()], "a": given}))["b"]
    assert [p.value.content for p in out] == ["ab", "cd"]
    assert out[0].value.logprobs is None, "the client did not ask"
    asked = (await runner.run({"g": [request(logprobs=True)], "a": given}))["b"]
    assert asked[0].value.logprobs == given[0].logprobs
    rejected = folded((await runner.run({"g": [request(n=2)], "a": stream("a" * 10)}))["b"])
    assert [(c.content, c.finish_reason) for c in rejected.choices] == [("too long", "content_filter")] * 2
    assert (rejected.prompt_tokens, rejected.completion_tokens) == (5, 1)


CASCADE = (
    'input_stream: "DECODED:d" input_stream: "GENERATE:g" input_stream: "PARSED:a" output_stream: "PARSED:b" '
    'output_stream: "DECODED:e"'
)


@pytest.mark.parametrize(
    ("limits", "logprob", "sure"),
    [
        ("min_mean_logprob: -0.5", -0.4, True),
        ("min_mean_logprob: -0.5", -0.6, False),
        ("min_mean_logprob: -0.5", None, True),
        ("min_tokens: 3", -9.0, False),
        ("min_tokens: 2", -9.0, True),
        ("max_tokens: 1", -0.1, False),
        ("", -99.0, True),
    ],
)
async def test_a_cascade_hands_on_what_is_unsure(limits: str, logprob: float | None, sure: bool) -> None:
    from ovserve.api.openai import ENDPOINTS
    from ovserve.kinds.text.node import DecodedRequest

    decoded = DecodedRequest(ENDPOINTS["completions"], b"{}")
    given = stream("ab", "cd")
    for packet in given:
        packet.logprobs = [TokenLogprob("ab", b"ab", logprob)]
    out = await CalculatorRunner(LimitCascade, CASCADE + options(limits)).run(
        {"d": [decoded], "g": [request()], "a": given}
    )
    answer = folded(out["b"])
    assert [p.value for p in out["e"]] == ([] if sure else [decoded])
    assert answer.choices[0].content == ("abcd" if sure else "")
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 2)
    assert any(p.value.last for p in out["b"]) is sure


def test_a_rule_of_ones_own_is_three_lines() -> None:
    class Hedging(Cascade):
        def unsure(self, cc: Context, answer: Completion) -> bool:
            return "not sure" in answer.choices[0].content

    assert issubclass(Hedging, AnswerCheck)


async def test_logprobs_are_asked_for_except_of_beams() -> None:
    runner = CalculatorRunner(WithLogprobs, 'input_stream: "GENERATE:a" output_stream: "GENERATE:b"')
    out = await runner.run({"a": [request(), request(beams=4)]})
    assert [p.value.sampling.logprobs for p in out["b"]] == [True, False]


# ---- prompts


class Tokenizer:
    """What the nodes use of an engine here."""

    async def detokenize(self, rows: Any, *, skip_special_tokens: bool) -> list[str]:
        return [f"<{len(row)} tokens>" for row in rows]


def resources() -> LlmResources:
    nothing: Any = None
    engine: Any = Tokenizer()
    return LlmResources(engine, ModelContext(), nothing, nothing)


def chatting(*messages: dict[str, Any], encoded: bool = False) -> GenerateRequest:
    conversation = Conversation(messages, {})
    return msgspec.structs.replace(
        request(), prompts=(), conversation=EncodedConversation.of(conversation) if encoded else conversation
    )


USER = {"role": "user", "content": [{"type": "text", "text": "When?"}, {"type": "image_url"}]}


def messages_of(changed: GenerateRequest) -> list[Any]:
    conversation = changed.conversation
    if isinstance(conversation, EncodedConversation):
        conversation = msgspec.json.decode(conversation.json, type=Conversation)
    assert conversation is not None
    return list(conversation.messages)


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([USER], {"role": "system", "content": "X"}),
        ([{"role": "system", "content": "Be kind."}, USER], {"role": "system", "content": "Be kind.\n\nX"}),
        ([{"role": "developer", "content": None}, USER], {"role": "developer", "content": "X"}),
        (
            [{"role": "system", "content": [{"type": "text", "text": "Be"}]}, USER],
            {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "X"}]},
        ),
    ],
)
async def test_text_goes_to_the_system_message(
    before: list[Any], after: dict[str, Any], encoded: bool
) -> None:
    llm = resources()
    try:
        given = chatting(*before, encoded=encoded)
        assert messages_of(await with_system_text(llm, given, "X")) == [after, USER]
        assert await question(llm, given) == "When?"
        assert "When?" in await prompt_text(llm, given)
    finally:
        await llm.bodies.stop()


async def test_text_goes_before_a_prompt_and_never_into_tokens() -> None:
    llm = resources()
    changed = await with_system_text(llm, request("Once"), "X")
    assert changed.prompts == ("X\n\nOnce",)
    tokens = msgspec.structs.replace(request(), prompts=((1, 2),))
    assert await question(llm, tokens) == "<2 tokens>"
    with pytest.raises(InvalidArgument, match="give text, not token ids"):
        await with_system_text(llm, tokens, "X")


CONVERSATION = 'input_stream: "CONVERSATION:a" output_stream: "CONVERSATION:b" input_side_packet: "LLM_NODE_RESOURCES:llm"'


async def test_insertion_and_check() -> None:
    @calculator("EchoCalculator")
    class Echo(PromptInsertion):
        async def insert(self, cc: Context, question: str) -> str:
            return question.upper() if question != "no" else ""

    @calculator("NoShoutingCalculator")
    class NoShouting(PromptCheck):
        async def objection(self, cc: Context, text: str) -> str:
            return "do not shout" if text.isupper() else ""

    out = await inserting(Echo).run({"a": [request("hi"), request("no")]})
    assert [p.value.prompts for p in out["b"]] == [("HI\n\nhi",), ("no",)]
    runner = inserting(NoShouting)
    assert (await runner.run({"a": [request("hi")]}))["b"]
    with pytest.raises(NodeError) as error:
        await runner.run({"a": [request("HI")]})
    assert (error.value.public_error.param, error.value.kind) == ("prompt", "invalid_argument")


def inserting(cls: Any, more: str = "") -> CalculatorRunner:
    return CalculatorRunner(cls, CONVERSATION + more, {"llm": resources()})


# ---- appended text


async def test_text_is_appended_to_answers_that_end_by_themselves() -> None:
    node = (
        'input_stream: "GENERATE:g" input_stream: "PARSED:a" input_stream: "TEXT:t" output_stream: "PARSED:b"'
    )
    runner = CalculatorRunner(AnswerAppend, node)
    out = await runner.run({"g": [request()], "t": ["!"], "a": stream("a", "b")})
    assert folded(out["b"]).choices[0].content == "ab!"
    out = await runner.run({"g": [request()], "t": ["!"], "a": stream("a", "b", end="tool_calls")})
    assert folded(out["b"]).choices[0].content == "ab"
    assert folded((await runner.run({"g": [request()], "a": stream("a")}))["b"]).choices[0].content == "a"


# ---- observer, answerer

WATCHED = 'input_stream: "GENERATE:g" input_stream: "PARSED:a" output_stream: "PARSED:b"'


@pytest.mark.parametrize("waits", [False, True])
async def test_an_observer_sees_each_whole_answer(waits: bool) -> None:
    seen: list[Exchange] = []

    @calculator("SeeingCalculator")
    class Seeing(Observer):
        def observe(self, cc: Context, exchange: Exchange) -> None:
            seen.append(exchange)
            cc.count("seen")

    @calculator("WaitingCalculator")
    class Waiting(Observer):
        async def observe(self, cc: Context, exchange: Exchange) -> None:
            seen.append(exchange)
            cc.count("seen")

    runner = CalculatorRunner(Waiting if waits else Seeing, WATCHED)
    packets = stream("an", "swer")
    out = await runner.run({"g": [request("hi")], "a": packets})
    assert [p.value for p in out["b"]] == packets
    await runner.run({"g": [request("cut")], "a": packets[:1]})
    whole, cut = seen
    assert (whole.prompt, whole.answer.choices[0].content, whole.complete) == ("hi", "answer", True)
    assert (cut.prompt, cut.answer.choices[0].content, cut.complete) == ("cut", "an", False)
    assert whole.first_token_seconds is not None
    assert 0 <= whole.first_token_seconds <= whole.seconds
    assert sum(runner.events.values.values()) == 2


async def test_a_failing_observer_does_not_reach_the_client(caplog: pytest.LogCaptureFixture) -> None:
    @calculator("FailingCalculator")
    class Failing(Observer):
        def observe(self, cc: Context, exchange: Exchange) -> None:
            raise OSError("disk full")

    runner = CalculatorRunner(Failing, WATCHED)
    out = await runner.run({"g": [request()], "a": stream("a")})
    assert folded(out["b"]).choices[0].content == "a"
    assert runner.events.values == {("FailingCalculator", "failed"): 1}
    assert "observe() failed: OSError: disk full" in caplog.text


async def test_follow_ups_are_bounded_and_lost_ones_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    follow_ups, released, done = FollowUps(), asyncio.Event(), []

    async def work() -> None:
        await released.wait()
        done.append(1)

    assert all(follow_ups.add(work) for _ in range(MAX_FOLLOW_UPS))
    assert not follow_ups.add(work)
    # `ovserve.graph.calculator` is the decorator too
    monkeypatch.setattr(sys.modules[FollowUps.__module__], "UNLOAD_SECONDS", 0.01)
    assert await follow_ups.drain() == MAX_FOLLOW_UPS
    assert not done


@pytest.mark.parametrize("pieces", [False, True])
async def test_an_answerer_writes_the_answer(pieces: bool, tmp_path: Path) -> None:
    @calculator("WholeCalculator")
    class Whole(Answerer):
        async def answer(self, cc: Context, question: Question) -> str:
            return "re: " + question.messages[-1]["content"]

    @calculator("PiecesCalculator")
    class Pieces(Answerer):
        async def answer(self, cc: Context, question: Question) -> AsyncGenerator[str]:
            for piece in ("re: ", question.messages[-1]["content"]):
                yield piece

    node = (
        'input_stream: "CONVERSATION:a" output_stream: "PARSED:b" input_side_packet: "LLM_NODE_RESOURCES:llm"'
    )
    (model := tmp_path / "model.script.json").write_text("{}")
    engine = f'[type.googleapis.com/mediapipe.LLMCalculatorOptions] {{ models_path: "{model}" }}'
    node += f" node_options {{ {engine} }}"
    runner = CalculatorRunner(Pieces if pieces else Whole, node, {"llm": resources()})
    for asked in (request("hi"), chatting({"role": "user", "content": "hi"})):
        out = (await runner.run({"a": [asked]}))["b"]
        assert len(out) == (3 if pieces else 1)
        (choice,) = folded(out).choices
        assert (choice.content, choice.finish_reason, out[-1].value.last) == ("re: hi", "stop", True)
    refused = {
        "n": request("hi", n=2),
        "tools": msgspec.structs.replace(request("hi"), tools=ToolPolicy(({},), "auto", ("f",))),
        "response_format": request("hi", constraint=Constraint("{}", "response_format")),
    }
    for param, asked in refused.items():
        with pytest.raises(NodeError) as error:
            await runner.run({"a": [asked]})
        assert error.value.public_error.param == param

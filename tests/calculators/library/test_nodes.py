"""The nodes of the library, each by itself: ports, options, events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from ovserve.calculators.library import AnswerCheck, Cascade, PromptCheck, PromptInsertion, Switch, TextFilter
from ovserve.calculators.library.answer_append import AnswerAppend
from ovserve.calculators.library.answer_cache import (
    AnswerCache,
    AnswerCacheFill,
    AnswerCacheOptions,
    AnswerStore,
    key_of,
)
from ovserve.calculators.library.cascade import LimitCascade, WithLogprobs
from ovserve.calculators.library.counter import PacketCounter
from ovserve.calculators.library.gate import Gate
from ovserve.calculators.library.limiter import Limiter
from ovserve.calculators.library.merge import Merge
from ovserve.calculators.library.messages import prompt_text, question, with_system_text
from ovserve.calculators.library.prompt_insertion import FixedPromptInsertion
from ovserve.calculators.library.text_filter import PatternFilter
from ovserve.calculators.llm_resource import LlmResources
from ovserve.errors import ContentFiltered, InvalidArgument, LoadError, NodeError, RateLimited
from ovserve.graph import Context, Packet, Registry, calculator
from ovserve.graph.graph import Graph
from ovserve.graph.testing import CalculatorRunner
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Content, Parsed, ToolCallDelta
from ovserve.llm.prompt.chat_template import Conversation, EncodedConversation
from ovserve.llm.request import GenerateRequest, Sampling, TokenLogprob, TopToken


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


# ---- switch, merge, gate, limiter, counter


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


async def test_a_gate_drops_or_rejects() -> None:
    node = 'input_stream: "IN:a" input_stream: "ALLOW:ok" output_stream: "OUT:b"'
    runner = CalculatorRunner(Gate, node)
    out = await runner.run({"a": [1, 2, Packet(5, 3)], "ok": [True, False]})
    assert [p.value for p in out["b"]] == [1]
    assert runner.events.values == {("GateCalculator", "closed"): 2}
    with pytest.raises(NodeError) as error:
        await CalculatorRunner(Gate, node + options('message: "not now"')).run({"a": [1], "ok": [False]})
    assert isinstance(error.value.public_error, ContentFiltered)
    assert str(error.value.public_error) == "not now"


@asynccontextmanager
async def limited(seconds: float) -> AsyncIterator[Graph]:
    node = f'node {{ calculator: "LimiterCalculator" input_stream: "IN:a" output_stream: "OUT:b" {options(f"max_running: 1 max_seconds: {seconds}")} }}'
    registry = Registry()
    registry.add(Limiter)
    graph = Graph.parse(f'input_stream: "a" output_stream: "b" {node}', registry)
    await graph.load_nodes()
    yield graph
    await graph.unload_nodes()


async def test_a_limiter_rejects_what_has_no_place_and_gives_places_back() -> None:
    async with limited(0) as graph:
        async with graph.start() as first:
            await first.send("a", 1)
            assert (await first.read("b")) is not None
            async with graph.start() as second:
                await second.send("a", 1)
                with pytest.raises(NodeError) as error:
                    await second.read("b")
            assert isinstance(error.value.public_error, RateLimited)
            assert error.value.public_error.retry_after == 1.0
        async with graph.start() as third:
            await third.send("a", 1)
            assert (await third.read("b")) is not None


async def test_a_limiter_waits_for_a_place() -> None:
    async with limited(5) as graph:
        async with graph.start() as first:
            await first.send("a", 1)
            await first.read("b")

            async def wait(graph: Graph = graph) -> None:
                async with graph.start() as second:
                    await second.send("a", 1)
                    assert (await second.read("b")) is not None

            waiting = asyncio.create_task(wait())
            await asyncio.sleep(0.01)
            assert not waiting.done()
            gone = asyncio.create_task(wait())
            await asyncio.sleep(0.01)
            gone.cancel()  # a client that leaves takes no place along
            await asyncio.gather(gone, return_exceptions=True)
        await waiting
        assert graph.states[0].value._value == 1


async def test_a_counter_counts() -> None:
    runner = CalculatorRunner(PacketCounter, 'input_stream: "IN:a"' + options('event: "seen"'))
    await runner.run({"a": [1, 2]})
    assert runner.events.values == {("CounterCalculator", "seen"): 2}
    with pytest.raises(LoadError, match="event: expected str matching regex"):
        CalculatorRunner(PacketCounter, 'input_stream: "IN:a"' + options('event: "With Blanks"'))


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
    from ovserve.calculators.http_frontend import DecodedRequest

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


# ---- answer cache

CACHED = """
input_stream: "g" input_stream: "a" output_stream: "miss" output_stream: "b"
node { calculator: "AnswerCacheCalculator" input_stream: "GENERATE:g" output_stream: "GENERATE:miss" output_stream: "ANSWER:hit"
  output_side_packet: "CACHE:cache" node_options { [type.googleapis.com/google.protobuf.Struct] { max_entries: 2 } } }
node { calculator: "AnswerCacheFillCalculator" input_stream: "PARSED:a" input_stream: "ANSWER:hit" output_stream: "PARSED:b"
  input_side_packet: "CACHE:cache" }
"""


async def ask(graph: Graph, wanted: GenerateRequest, answer: list[Parsed]) -> tuple[bool, Completion]:
    """Whether the model was asked, and the answer."""
    async with graph.start() as run:
        await run.send("g", wanted)
        run.close_input("g")
        missed = await run.read("miss") is not None
        if missed:
            for packet in answer:
                await run.send("a", packet)
        run.close_input("a")
        return missed, folded([packet async for packet in run.output("b")])


async def test_the_same_request_is_answered_once() -> None:
    registry = Registry()
    for cls in (AnswerCache, AnswerCacheFill):
        registry.add(cls)
    graph = Graph.parse(CACHED, registry)
    await graph.load_nodes()
    first = await ask(graph, request("x", temperature=0), stream("an", "swer"))
    again = await ask(graph, request("x", temperature=0), [])
    assert (first[0], again[0]) == (True, False)
    assert again[1].choices[0].content == first[1].choices[0].content == "answer"
    assert (again[1].prompt_tokens, again[1].cached_tokens) == (5, 5)
    assert (await ask(graph, request("x", temperature=0, max_tokens=3), stream("other")))[0]
    assert (await ask(graph, request("x", temperature=0.5), stream("other")))[0]
    assert (await ask(graph, request("x", temperature=0.5), stream("other")))[0], (
        "it would be another one each time"
    )
    assert (await ask(graph, request("z", temperature=0), stream("third")))[0]
    assert (await ask(graph, request("x", temperature=0), stream("anew")))[0], "two entries are kept"
    assert graph.states[0].facts()["answers"] == 2
    node = "AnswerCacheCalculator"
    assert graph.states[0].counts.values == {(node, "hit"): 1, (node, "miss"): 4, (node, "uncacheable"): 2}


def test_the_cache_is_bounded_in_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = AnswerStore(AnswerCacheOptions(max_megabytes=0.002, ttl_seconds=10))
    for key in (b"1", b"2", b"3"):
        store.put(key, stream("x" * 500))
    assert [store.get(key) is not None for key in (b"1", b"2", b"3")] == [False, True, True]
    store.put(b"4", stream("x" * 3000))
    assert store.get(b"4") is None
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert store.get(b"3") is None


def test_the_key_is_all_that_decides_the_answer() -> None:
    defaults = AnswerCacheOptions()
    base = request("x", temperature=0)
    same = msgspec.structs.replace(base, id="another")
    others = [
        request("y", temperature=0),
        request("x", temperature=0, stop=("s",)),
        msgspec.structs.replace(base, add_special_tokens=True),
    ]
    assert key_of(base, defaults) == key_of(same, defaults)
    assert len({key_of(each, defaults) for each in (base, *others)}) == 4
    assert key_of(request("x", seed=3), AnswerCacheOptions(greedy_only=False)) is not None


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


async def test_inserted_text_of_the_graph(tmp_path: Any) -> None:
    out = await inserting(FixedPromptInsertion, options('text: "X"')).run({"a": [request("hi")]})
    assert out["b"][0].value.prompts == ("X\n\nhi",)
    with pytest.raises(LoadError, match="give one of text and text_path"):
        inserting(FixedPromptInsertion, options('text: "X" text_path: "y"'))
    with pytest.raises(LoadError, match="text_path: cannot be read"):
        await inserting(FixedPromptInsertion, options('text_path: "no/file"')).run({"a": []})


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

"""What the model server's output becomes once it has reasoning and calls: blocks, as events and as one body.

Parsed deltas are written by hand, as the parsers give them. The folded answer and the stream must agree.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from ovserve.api.anthropic import ENDPOINTS
from ovserve.api.anthropic.answer import MessagesWriter
from ovserve.api.anthropic.body import CountRequest
from ovserve.api.anthropic.messages import openai_tools
from ovserve.errors import InvalidArgument
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Parsed, ToolCallDelta
from tests.packets import packet
from tests.rendering import rendered

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
MODEL = ModelContext(ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"))
BODY = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}


def writer(**fields: Any) -> MessagesWriter:
    endpoint = ENDPOINTS["messages"]
    decoded = endpoint.decode(json.dumps(BODY | fields).encode())
    return endpoint.writer(endpoint.to_request(decoded, MODEL))


def events(deltas: list[Parsed], **fields: Any) -> list[Any]:
    one = writer(**fields)
    out = b"".join(map(one.chunk, [packet(prompt_tokens=7, max_tokens=50), *deltas])).decode()
    found = []
    for block in out.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(EVENT.validate_python(event, strict=True))
    return found


def whole(deltas: list[Parsed], **fields: Any) -> Message:
    completion = Completion()
    for parsed in [packet(prompt_tokens=7, max_tokens=50), *deltas]:
        completion.add(parsed)
    return Message.model_validate_json(writer(**fields).whole(completion), strict=True)


def gathered(found: list[Any]) -> list[tuple[str, str]]:
    """The blocks a client puts together; they must be in order and closed."""
    blocks: list[tuple[str, str]] = []
    open_ = False
    for event in found:
        if event.type == "content_block_start":
            assert not open_
            assert event.index == len(blocks)
            blocks.append((event.content_block.type, ""))
            open_ = True
        elif event.type == "content_block_delta":
            assert open_
            assert event.index == len(blocks) - 1
            delta = event.delta
            if delta.type == "signature_delta":
                assert blocks[-1][0] == "thinking"
                continue
            text = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + getattr(delta, text[delta.type]))
        elif event.type == "content_block_stop":
            assert open_
            assert event.index == len(blocks) - 1
            open_ = False
    assert not open_
    return blocks


CALLS = [
    packet(reasoning="let me ", tokens=2),
    packet(reasoning="see", content="I will ", tokens=2),
    packet(content="look.", tokens=2, tool_calls=(ToolCallDelta(0, "id_a", "f"),)),
    packet(tool_calls=(ToolCallDelta(0, arguments='{"x":'),), tokens=3),
    packet(
        tool_calls=(ToolCallDelta(0, arguments=" 1}"), ToolCallDelta(1, "id_b", "g", '{"y": "z"}')), tokens=3
    ),
    packet(finish_reason="tool_calls", tokens=1, last=True),
]


def test_reasoning_text_and_calls() -> None:
    found = events(CALLS)
    assert gathered(found) == [
        ("thinking", "let me see"),
        ("text", "I will look."),
        ("tool_use", '{"x": 1}'),
        ("tool_use", '{"y": "z"}'),
    ]
    assert (found[-2].delta.stop_reason, found[-2].usage.output_tokens) == ("tool_use", 13)
    message = whole(CALLS)
    assert [b.type for b in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (message.content[2].id, message.content[2].name, message.content[2].input) == (
        "id_a",
        "f",
        {"x": 1},
    )
    assert message.content[3].input == {"y": "z"}
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 13)


def test_thoughts_have_a_signature() -> None:
    """Clients leave thoughts without one out of the next request; of a stream they take it from its delta."""
    begun, *deltas, stop = [e for e in events(CALLS) if getattr(e, "index", None) == 0]
    assert begun.content_block.signature == ""
    assert [e.delta.type for e in deltas] == ["thinking_delta", "thinking_delta", "signature_delta"]
    assert stop.type == "content_block_stop"
    assert deltas[-1].delta.signature == whole(CALLS).content[0].signature != ""


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "5"])
def test_input_that_is_no_object_is_kept(arguments: str) -> None:
    deltas = [
        packet(tool_calls=(ToolCallDelta(0, "a", "f", arguments),)),
        packet(finish_reason="tool_calls", last=True),
    ]
    assert whole(deltas).content[0].input == ({"unparsed": arguments} if arguments else {})


def test_an_empty_answer_has_no_blocks() -> None:
    deltas = [packet(finish_reason="stop", tokens=1, last=True)]
    assert gathered(events(deltas)) == []
    assert whole(deltas).content == []


@pytest.mark.parametrize(
    ("deltas", "blocks", "stop"),
    [
        ([packet("one ", 0, "stop", last=True, stop_string="STOP")], [("text", "one ")], "STOP"),
        ([packet("", 0, "stop", last=True, stop_string="STOP")], [], "STOP"),
        ([packet(reasoning="hm ", finish_reason="stop", last=True, stop_string="FULL STOP")],
         [("thinking", "hm ")], "FULL STOP"),
        ([packet("one STOP", finish_reason="length", last=True)], [("text", "one STOP")], None),
        ([packet("one", finish_reason="stop", last=True)], [("text", "one")], None),
    ],
)  # fmt: skip
def test_the_stop_sequence_is_named(
    deltas: list[Parsed], blocks: list[tuple[str, str]], stop: str | None
) -> None:
    stops = {"stop_sequences": ["STOP", "FULL STOP"]}
    found = events(deltas, **stops)
    assert gathered(found) == blocks
    assert found[-2].delta.stop_sequence == stop
    message = whole(deltas, **stops)
    assert message.stop_sequence == stop
    expected = (
        "stop_sequence" if stop else "max_tokens" if deltas[-1].finish_reason == "length" else "end_turn"
    )
    assert message.stop_reason == found[-2].delta.stop_reason == expected
    assert [getattr(b, b.type) for b in message.content] == [text for _, text in blocks]


def test_a_stop_string_of_the_model_s_own_is_not_named() -> None:
    model = ModelContext(MODEL.template, defaults={"stop_strings": ["END"]})
    endpoint = ENDPOINTS["messages"]
    request = endpoint.to_request(endpoint.decode(json.dumps(BODY).encode()), model)
    completion = Completion()
    completion.add(packet("a ", finish_reason="stop", last=True, stop_string="END"))
    message = json.loads(endpoint.writer(request).whole(completion))
    assert (message["content"][0]["text"], message["stop_reason"], message["stop_sequence"]) == (
        "a ",
        "end_turn",
        None,
    )


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def tools(**fields: Any) -> Any:
    import msgspec

    body = {"model": "m", "messages": BODY["messages"]} | fields
    return openai_tools(msgspec.json.decode(json.dumps(body).encode(), type=CountRequest))


def test_tools_are_openai_s() -> None:
    given = [
        {"name": "f", "description": "does", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "custom", "name": "g", "input_schema": SCHEMA},
    ]
    clean = tools(tools=given)
    assert clean.policy.tools == (
        {"type": "function", "function": {"name": "f", "description": "does", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "g", "parameters": SCHEMA}},
    )
    assert clean.dropped == ("tools.web_search_20250305",)
    assert (clean.policy.choice, clean.policy.parallel) == ("auto", True)
    for kind, choice in (("auto", "auto"), ("any", "required"), ("none", "none")):
        assert tools(tools=given, tool_choice={"type": kind}).policy.choice == choice
        idle = tools(tools=given[:1], tool_choice={"type": kind, "name": "zz"})
        assert (idle.policy.choice, idle.dropped) == (choice, ("tool_choice.name",))
    named = tools(tools=given, tool_choice={"type": "tool", "name": "g"}).policy
    assert (named.choice, named.names) == ("required", ("g",))
    hosted = {"type": "tool", "name": "web_search", "disable_parallel_tool_use": True}
    clean = tools(tools=given, tool_choice=hosted)
    assert (clean.policy.choice, clean.policy.parallel) == ("auto", False)
    assert clean.dropped == ("tools.web_search_20250305", "tool_choice.name")
    one = tools(tools=given, tool_choice={"type": "auto", "disable_parallel_tool_use": True}).policy
    assert (one.choice, one.parallel) == ("auto", False)
    assert tools(tools=given[1:2]).policy is None
    types = ["bash_20250124", "memory_20250818", "text_editor_20250728", "bash_tool"]
    clean = tools(tools=[{"type": type_, "name": type_} for type_ in types])
    offered = [tool["function"]["parameters"]["properties"].keys() for tool in clean.policy.tools]
    assert [("restart" in n, "old_path" in n, "insert_text" in n) for n in offered] == [
        (True, False, False), (False, True, True), (False, False, True)
    ]  # fmt: skip
    assert clean.dropped == ("tools.bash_tool",)
    with pytest.raises(InvalidArgument, match="'h' is not one of the tools: f, g"):
        tools(tools=given, tool_choice={"type": "tool", "name": "h"})
    bad = [{"name": "f", "input_schema": {"type": "string"}}]
    with pytest.raises(InvalidArgument, match=r"tools\[0\].input_schema.type") as caught:
        tools(tools=bad)
    assert caught.value.param == "tools[0].input_schema.type"


@pytest.mark.parametrize(
    ("type_", "prompt", "ignored"),
    [
        ("enabled", "True", ()),
        ("adaptive", "True", ()),
        ("disabled", "False", ()),
        ("between_tools", "unset", ("thinking",)),
    ],
)
def test_thinking_is_a_switch_of_the_template(type_: str, prompt: str, ignored: tuple[str, ...]) -> None:
    model = ModelContext(ChatTemplate("{{ enable_thinking if enable_thinking is defined else 'unset' }}"))
    endpoint = ENDPOINTS["messages"]
    decoded = endpoint.decode(json.dumps(BODY | {"thinking": {"type": type_}}).encode())
    made = rendered(endpoint.to_request(decoded, model), model)
    assert (made.prompts, made.presentation.ignored_params) == ((prompt,), ignored)


def test_a_call_is_sent_when_it_is_certain_and_a_broken_one_never() -> None:
    begun = [
        packet(tool_calls=(ToolCallDelta(0, "id_a", "f", '{"x": {}'),)),
        packet(tool_calls=(ToolCallDelta(0, arguments=', "y": 1'),)),
    ]
    broken = [*begun, packet("raw", retracted_calls=(0,)), packet(finish_reason="stop", last=True)]
    assert gathered(events(broken)) == [("text", "raw")]
    assert [b.type for b in whole(broken).content] == ["text"]
    good = [*begun, packet(" after", tool_calls=(ToolCallDelta(0, arguments="}"),)),
            packet(finish_reason="tool_calls", last=True)]  # fmt: skip
    assert gathered(events(good)) == [("tool_use", '{"x": {}, "y": 1}'), ("text", " after")]
    cut = [*begun, packet(finish_reason="length", last=True)]
    assert gathered(events(cut)) == [("tool_use", '{"x": {}, "y": 1')]

"""A request made in a body process is the one that is made in the event loop; and nothing is quadratic."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from ovserve.api.openai.operation import writes_events
from ovserve.api.openai.responses.objects import ResponseCreated
from ovserve.api.openai.responses.request import ResponseContext
from ovserve.api.openai.tools import tool_policy
from ovserve.errors import InvalidArgument
from ovserve.kinds.text.resource import ENDPOINTS, decode_within, parse
from ovserve.llm.arrangement import Expectations
from ovserve.llm.chat_template import ChatTemplate, Conversation, EncodedConversation, describe_tools
from ovserve.llm.grammar.guidance import guided
from ovserve.llm.grammar.writer import compact
from ovserve.llm.images import Vision, tag
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Parsed
from ovserve.llm.parsing.registry import ParserChoice
from ovserve.llm.request import GenerateRequest, Presentation
from ovserve.sandbox.messages import DataUnpickler, Raised

TEMPLATE = ChatTemplate("{{ messages }}{{ tools }}", expects=Expectations(tools=True))
MODEL = ModelContext(template=TEMPLATE, max_length=1000, parsers=ParserChoice("hermes3", "", None, ""))
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "seed": 7,
    "unknown": 1,
}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": CHAT,
    "azure/chat/completions/pass-through": CHAT,
    "completions": {"model": "m", "prompt": [1, 2, 3], "seed": 7, "stop": "x"},
    "messages": {
        "model": "m",
        "max_tokens": 5,
        "system": "be brief",
        "stop_sequences": ["x"],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    },
    "responses": {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}],
        "instructions": "be brief",
        "metadata": {"a": "b"},
        "seed": 7,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    },
}  # fmt: skip


CONTEXT = ResponseContext(
    id="resp_1", created=1, store=True, history=(msgspec.Raw(b'{"role": "user", "content": "before"}'),)
)


def read(answer: GenerateRequest) -> GenerateRequest:
    """As the server reads it."""
    data: GenerateRequest = DataUnpickler(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL), "").load()
    return data


def plain(request: GenerateRequest) -> dict[str, Any]:
    """What the engine and the template get of it."""
    conversation = request.conversation
    if isinstance(conversation, Conversation):
        conversation = EncodedConversation.of(conversation)
    kept = {name: getattr(request, name) for name in request.__struct_fields__}
    for name in ("id", "presentation", "parts"):
        del kept[name]
    sampling = msgspec.structs.replace(request.sampling, seed=0)
    return kept | {"conversation": conversation, "sampling": sampling}


def shown(presentation: Presentation) -> dict[str, Any]:
    """What every writer reads of it."""
    return {name: getattr(presentation, name) for name in Presentation.__struct_fields__ if name != "created"}


@pytest.mark.parametrize("name", BODIES)
def test_the_request_is_the_same_after_it_has_crossed_the_border(name: str) -> None:
    body = json.dumps(BODIES[name]).encode()
    endpoint = ENDPOINTS[name]
    context = CONTEXT if name == "responses" else None
    here = endpoint.to_request(decode_within(endpoint, body, context), MODEL)
    sent = pickle.loads(pickle.dumps((MODEL, context)))
    there = read(parse(name, body, *sent))
    assert plain(there) == plain(here)
    assert shown(there.presentation) == shown(here.presentation)
    endpoint.writer(there)  # has all that it reads


def test_what_is_kept_of_a_response_is_the_same() -> None:
    body = json.dumps(BODIES["responses"]).encode()
    endpoint = ENDPOINTS["responses"]
    here = endpoint.writer(endpoint.to_request(decode_within(endpoint, body, CONTEXT), MODEL))
    there = endpoint.writer(read(parse("responses", body, MODEL, CONTEXT)))
    ours, theirs = created(here), created(there)
    assert theirs.response == ours.response
    assert theirs.input is not None
    given = json.loads(theirs.input.json)
    assert [item["content"][0]["text"] for item in given] == ["hi"], "its own input, not the history"
    assert theirs.input.ids == [item["id"] for item in given]


def created(writer: object) -> ResponseCreated:
    assert writes_events(writer)
    packet = writer.events(Parsed(prompt_tokens=1, max_tokens=1))
    assert packet is not None
    assert isinstance(packet.events[0], ResponseCreated)
    return packet.events[0]


def test_errors_are_the_endpoints() -> None:
    with pytest.raises(InvalidArgument, match=r"messages\[0\]\.role") as caught:
        parse("chat/completions", b'{"model":"m","messages":[{"role":"x"}]}', MODEL)
    there = Raised.of(caught.value).error
    assert (type(there), str(there)) == (type(caught.value), str(caught.value))
    assert vars(there) == vars(caught.value)


def tools(count: int) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"f{i}", "strict": True, "parameters": {"type": "object"}}}
        for i in range(count)
    ]


def allowed(count: int) -> object:
    names = [{"type": "function", "name": f"f{i}"} for i in range(count)]
    policy = tool_policy(tools(count), {"type": "allowed_tools", "tools": names}, None)
    assert policy is not None
    return policy.prompt_tools, policy.schemas, policy.strict


def guide(count: int) -> object:
    policy = tool_policy(tools(count), None, None)
    with suppress(InvalidArgument):  # the text is over the limit of a grammar
        return guided(policy, None, tool="hermes3", reasoning=None, inside_reasoning=False)


def required(count: int) -> object:
    names = [f"k{i}" for i in range(count // 3)]  # of 8,000 the text is over the limit of a grammar
    with suppress(InvalidArgument):
        return compact(
            {"type": "object", "properties": {n: {"type": "null"} for n in names}, "required": names}
        )
    return None


def results(count: int) -> object:
    return describe_tools([{"role": "tool", "content": "x" * 1000}] * count, None)


def tags(count: int) -> object:
    text = "".join(tag(i) for i in range(count))
    return Vision().check(text, count, "messages")


@pytest.mark.long
@pytest.mark.parametrize("work", [allowed, guide, required, results, tags])
def test_the_time_is_linear_in_what_a_client_sends(work: Callable[[int], object]) -> None:
    """CPU time, the best of three: 8 times as much takes less than 30 times as long. Squared it would be 64."""

    def took(count: int) -> float:
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            work(count)
            best = min(best, time.process_time() - began)
        return best

    assert took(2_000) < 30 * max(took(250), 0.002)

"""A calculator that maps text sees every character a client gets, of every dialect and in every API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ovserve.api.openai.responses.objects import ResponseEvents
from ovserve.kinds.payload import AnswerPacket, HttpResponse
from ovserve.kinds.text.node import ResponseBuilder
from ovserve.kinds.text.resource import ENDPOINTS
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Content, Parsed, Reasoning, ToolCallDelta
from ovserve.llm.request import Delta, TokenLogprob, TopToken
from ovserve.services.responses.run import Run
from tests.conformance_adapter import parser_for

VECTORS = [
    vector
    for path in sorted((Path(__file__).parents[1] / "vectors/parsers").glob("*.json"))
    for vector in json.loads(path.read_text())
]
MASK = "\u2588"
MODEL = ModelContext(template=ChatTemplate("{{ messages }}"), max_length=8192)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": CHAT | {"logprobs": True, "top_logprobs": 1},
    "responses": {
        "model": "m",
        "input": "hi",
        "top_logprobs": 1,
        "include": ["message.output_text.logprobs"],
    },
    "messages": CHAT | {"max_tokens": 99},
}
TEXT = {
    "content",
    "reasoning_content",
    "arguments",
    "text",
    "delta",
    "token",
    "thinking",
    "partial_json",
    "input",
}


def masked(text: str) -> str:
    return MASK * len(text)


def deltas(text: str, size: int) -> list[Delta]:
    found = [Delta(prompt_tokens=3, max_tokens=99)]
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        top = (TopToken("b", b"b", -0.1), TopToken("c", b"c", -0.2))
        tokens = [TokenLogprob(char, char.encode(), -0.5, top) for char in piece]
        found.append(Delta(piece, len(piece), logprobs=tokens))
    return [*found, Delta("", 0, "stop", last=True)]


def shown(value: Any, key: str = "") -> list[str]:
    """All text of the model in a body or an event."""
    if isinstance(value, dict):
        return [text for k, v in value.items() for text in shown(v, k)]
    if isinstance(value, list):
        if key == "bytes":
            return [bytes(value).decode()]
        return [text for item in value for text in shown(item, key)]
    return [value] if isinstance(value, str) and key in TEXT | {"unparsed"} else []


def sent(packets: list[AnswerPacket], stream: bool) -> bytes:
    """What a client gets; response events are folded and encoded as the service does."""
    first = packets[0]
    assert isinstance(first, HttpResponse)
    if first.events is None:
        assert not any(isinstance(packet, ResponseEvents) for packet in packets)
        return first.body + b"".join(packet for packet in packets if isinstance(packet, bytes))
    run = Run(first.events, "", keeps=False)
    rest = [packet for packet in packets if isinstance(packet, ResponseEvents)]
    streamed = b"".join(map(run.received, [first.events, *rest]))
    return streamed if stream else run.fold.snapshot()


@pytest.mark.long
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_no_character_passes_unseen(name: str, stream: bool, subtests: pytest.Subtests) -> None:
    endpoint = ENDPOINTS[name]
    body = json.dumps(BODIES[name] | {"stream": stream}).encode()
    made = endpoint.to_request(endpoint.decode(body), MODEL)
    for vector in VECTORS:
        with subtests.test(f"{vector['parser']}-{vector['name']}"):
            for size in (1, len(vector["model_output"]) or 1) if stream else (7,):
                reply, parser = ResponseBuilder(made), parser_for(vector)
                fed = (
                    reply.feed(parser.feed(delta).map_text(masked))
                    for delta in deltas(vector["model_output"], size)
                )
                out = sent([packet for packet in fed if packet is not None], stream)
                lines = out.splitlines() if out.startswith((b"data", b"event")) else [b"data: " + out]
                events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
                texts = [text for event in events for text in shown(event)]
                assert not {char for text in texts for char in text} - {MASK}, size
                if vector["expect"]["content"]:
                    assert any(texts), "the test saw nothing"


def test_all_parts_are_mapped_and_the_packet_itself_is_not() -> None:
    parsed = Parsed(
        (Content("a"), ToolCallDelta(0, "i", "f", '{"x": 1}'), Content("b"), Reasoning("c")),
        4,
        "stop",
        index=2,
    )
    mapped = parsed.map_text(str.upper, arguments=lambda text: text.replace("1", "2"))
    assert mapped.parts == (
        Content("A"),
        ToolCallDelta(0, "i", "f", '{"x": 2}'),
        Content("B"),
        Reasoning("C"),
    )
    assert (mapped.tokens, mapped.finish_reason, mapped.index) == (4, "stop", 2)
    assert (parsed.content, parsed.reasoning) == ("ab", "c")
    assert parsed.map_text(lambda text: "").parts == (ToolCallDelta(0, "i", "f"),)


def tokens(*utf8: bytes) -> list[TokenLogprob]:
    return [TokenLogprob(one.decode(errors="replace"), one, -1.0) for one in utf8]


TOPPED = [TokenLogprob("a", b"a", -1.0, tuple(TopToken(c, c.encode(), -1.0) for c in "abc"))]


@pytest.mark.parametrize(
    ("given", "old", "new", "expected"),
    [
        (tokens(b"In ", b"Os", b"lo"), "x", "y", tokens(b"In ", b"Os", b"lo")),
        (tokens(b"a1", b"2"), "1", "#", tokens(b"a#", b"2")),
        (tokens(b"In ", b"Os", b"lo"), "Oslo", "???", [TokenLogprob("In ???", b"In ???", -3.0)]),
        (tokens(b"\xef\xbc", b"\x95"), "5", "#", tokens(b"\xef\xbc", b"\x95")),
        (tokens(b"\xef\xbc", b"\x95", b"!"), "５", "#", [TokenLogprob("#", b"#", -2.0), *tokens(b"!")]),
        (tokens(b"\xef\xbc"), "５", "#", [TokenLogprob("\ufffd", "\ufffd".encode(), -1.0)]),
        (tokens(b"abc"), "abc", "", None),
        (TOPPED, "x", "y", TOPPED),
        (TOPPED, "b", "#", [msgspec.structs.replace(TOPPED[0], top=TOPPED[0].top[::2])]),
        (TOPPED, "a", "#", [TokenLogprob("#", b"#", -1.0)]),
    ],
)  # fmt: skip
def test_logprobs_show_no_more_than_the_text(
    given: list[TokenLogprob], old: str, new: str, expected: list[TokenLogprob] | None
) -> None:
    assert Parsed(logprobs=given).map_text(lambda text: text.replace(old, new)).logprobs == expected

"""The shipped calculators one by one, where that shows what a whole graph would not."""

from __future__ import annotations

from typing import Any

from ovserve.calculators.library.streams import PassThrough
from ovserve.graph import Packet
from ovserve.graph.testing import CalculatorRunner
from ovserve.kinds.payload import HttpResponse, ignored_header
from ovserve.kinds.text.node import ResponseBuilder
from ovserve.llm.request import GenerateRequest, Presentation, Sampling
from tests.packets import packet


def request(**shown: Any) -> GenerateRequest:
    presentation = Presentation(endpoint="chat/completions", model="m", created=1, **shown)
    return GenerateRequest("x", ("p",), False, Sampling(), presentation)


async def test_pass_through_pairs_by_tag_and_index() -> None:
    node = 'input_stream: "a" input_stream: "X:b" output_stream: "c" output_stream: "X:d"'
    out = await CalculatorRunner(PassThrough, node).run({"a": [1, 2], "b": [Packet(1, "x")]})
    assert out == {"c": [Packet(0, 1), Packet(1, 2)], "d": [Packet(1, "x")]}


def test_a_unary_reply_is_the_fold_of_the_stream() -> None:
    parts = [
        packet(prompt_tokens=5, max_tokens=9),
        packet("Hel", 1),
        packet("", 1),
        packet("lo", 1, "stop", last=True),
    ]
    unary = ResponseBuilder(request())
    answers = [unary.feed(p) for p in parts]
    assert answers[:3] == [None] * 3
    assert isinstance(answers[3], HttpResponse)
    assert b'"content":"Hello"' in answers[3].body
    assert b'"prompt_tokens":5,"completion_tokens":3,"total_tokens":8' in answers[3].body
    stream = ResponseBuilder(request(stream=True))
    first, one, none, last = [stream.feed(p) for p in parts]
    assert isinstance(first, HttpResponse)
    assert first.more
    assert isinstance(one, bytes)
    assert none is None
    assert isinstance(last, bytes)
    assert last.endswith(b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')


def test_an_answer_merged_into_one_delta_still_begins_and_ends() -> None:
    """A slow reader gets everything at once: role, text and end in their order."""
    reply = ResponseBuilder(request(stream=True, include_usage=True))
    sent = reply.feed(packet("Hello", 2, "length", 5, 2, last=True))
    assert isinstance(sent, HttpResponse)
    events = sent.body.split(b"\n\n")
    assert b'"role":"assistant"' in events[0]
    assert b'"content":"Hello"' in events[1]
    assert b'"finish_reason":"length"' in events[1]
    assert b'"usage":{' in events[2]
    assert events[3:] == [b"data: [DONE]", b""]


def test_field_names_of_a_hostile_body_cannot_split_a_header() -> None:
    reply = ResponseBuilder(request(ignored_params=("a\r\nset-cookie: x", "é", "b,c")))
    sent = reply.feed(packet("", 0, "stop", 1, 1, last=True))
    assert isinstance(sent, HttpResponse)
    assert sent.headers["x-ovserve-ignored-params"] == "a??set-cookie:?x,?,b?c"


def test_a_long_list_of_ignored_names_is_cut_and_counted() -> None:
    (told,) = ignored_header(f"f{i}" for i in range(20_000)).values()
    *names, rest = told.split(",")
    assert names == [f"f{i}" for i in range(len(names))]
    assert rest == f"... and {20_000 - len(names)} more"
    assert 1900 < len(told) < 2100
    assert ignored_header(["a", "b"]) == {"x-ovserve-ignored-params": "a,b"}

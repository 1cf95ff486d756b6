"""Events of a response: any output in any chunks gives the same response and a well-formed stream.

Every event and object is checked with the official client's types, strictly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ovserve.api.openai.responses.encoder import EventEncoder
from ovserve.api.openai.responses.endpoint import ResponseEventWriter
from ovserve.api.openai.responses.fold import ResponseFold
from ovserve.api.openai.responses.objects import (
    Failure,
    ItemAdded,
    ItemDelta,
    ItemDone,
    ResponseCreated,
    ResponseEnded,
    ResponseEvent,
    ResponseEvents,
)
from ovserve.api.openai.responses.replay import events_of, failed, resume
from ovserve.errors import Internal
from ovserve.llm.output import Parsed, ToolCallDelta
from ovserve.llm.request import TokenLogprob
from tests.api.openai.test_responses import request
from tests.packets import packet

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ADMITTED = packet(prompt_tokens=7, max_tokens=100)


class Answer:
    """A writer with the fold and the encoder that the service has for it."""

    def __init__(self, **fields: Any) -> None:
        self.writer = ResponseEventWriter(request(**({"stream": True} | fields)))
        self.encoder = EventEncoder()
        self.packets: list[ResponseEvents] = []
        self.fold: ResponseFold | None = None

    def chunk(self, parsed: Parsed) -> bytes:
        packet_ = self.writer.events(parsed)
        if packet_ is None:
            return b""
        self.packets.append(packet_)
        self.fold = self.fold or ResponseFold(packet_)
        self.fold.usage = packet_.usage
        return self.encode(packet_.events)

    def encode(self, events_: Iterable[ResponseEvent]) -> bytes:
        assert self.fold is not None
        out = b""
        for event in events_:
            self.fold.apply(event)
            out += self.encoder.encode(event, self.fold.response)
        return out

    def end_early(self, *how: Any) -> bytes:
        assert self.fold is not None
        return self.encode(self.fold.end_early(*how))

    def snapshot(self) -> bytes:
        assert self.fold is not None
        return self.fold.snapshot()


def writer(**fields: Any) -> Answer:
    return Answer(**fields)


def events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, every one checked."""
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    found = []
    for block in blocks:
        name, _, line = block.partition("\n")
        assert name.startswith("event: ")
        event = json.loads(line.removeprefix("data: "))
        assert event["type"] == name.removeprefix("event: ")
        EVENT.validate_json(line.removeprefix("data: "), strict=True)
        found.append(event)
    return found


def check_order(stream: list[dict[str, Any]], *, start: int = 0) -> dict[str, Any]:
    """Numbers without gaps, items opened once and closed once, indices unique; the last event's response."""
    assert [e["sequence_number"] for e in stream] == list(range(start, start + len(stream)))
    types = [e["type"] for e in stream]
    assert types[0] == "response.created"
    assert sum(t in ("response.completed", "response.incomplete", "response.failed") for t in types) == 1
    response = stream[-1]["response"]
    Response.model_validate_json(json.dumps(response), strict=True)
    open_: dict[int, dict[str, Any]] = {}
    done: dict[int, dict[str, Any]] = {}
    text: dict[int, str] = {}
    for event in stream:
        index = event.get("output_index")
        if event["type"] == "response.output_item.added":
            assert index == len(open_) + len(done), "the next free index"
            open_[index], text[index] = event["item"], ""
        elif event["type"] == "response.output_item.done":
            assert open_.pop(index)["id"] == event["item"]["id"]
            done[index] = event["item"]
        elif index is not None:
            assert open_[index]["id"] == event["item_id"], "an event of an item that is not open"
            if event["type"].endswith(".delta"):
                text[index] += event["delta"]
            elif event["type"].endswith((".text.done", "_text.done")):
                assert event["text"] == text[index]
            elif event["type"].endswith("arguments.done"):
                assert event["arguments"] == text[index]
    assert not open_
    assert [done[i] for i in range(len(done))] == response["output"]
    assert len({item["id"] for item in response["output"]}) == len(done)
    return dict(response)


def run(w: Answer, *parts: Parsed) -> bytes:
    """Everything that a client of the stream gets."""
    return b"".join(w.chunk(part) for part in (ADMITTED, *parts))


def test_one_text_answer_has_the_documented_order() -> None:
    stream = events(run(writer(), packet("Hel", 1), packet("lo", 1), packet("", 1, "stop", last=True)))
    assert [e["type"].removeprefix("response.") for e in stream] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    response = check_order(stream)
    assert response["status"] == "completed"
    assert response["usage"]["input_tokens"] == 7
    assert response["usage"]["output_tokens"] == 3
    assert response["usage"]["total_tokens"] == 10
    assert response["completed_at"] >= response["created_at"]


def test_in_progress_waits_for_the_first_token() -> None:
    w = writer()
    assert w.chunk(ADMITTED).count(b"event: ") == 1
    assert b"response.in_progress" in w.chunk(packet("a", 1))
    background = writer(background=True)
    first = background.chunk(ADMITTED)
    assert b"response.queued" in first
    assert json.loads(background.snapshot())["status"] == "queued"
    background.chunk(packet("a", 1))
    assert json.loads(background.snapshot())["status"] == "in_progress"


def call(index: int, arguments: str = "", id_: str | None = None, name: str | None = None) -> Parsed:
    return packet(tokens=1, tool_calls=(ToolCallDelta(index, id_, name, arguments),))


def test_text_before_calls_and_reasoning_between_never_share_an_index() -> None:
    stream = events(
        run(
            writer(),
            packet(reasoning="hm", tokens=1, reasoning_tokens=1),
            packet("I look. ", 1),
            call(0, '{"a"', "idA", "f"),
            call(0, ":1}"),
            call(1, "{}", "idB", "g"),
            packet(reasoning="so", tokens=1, reasoning_tokens=1),
            packet("Done.", 1),
            packet("", 1, "tool_calls", last=True),
        )
    )
    response = check_order(stream)
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call", "reasoning", "message"]
    assert [i["arguments"] for i in response["output"] if i["type"] == "function_call"] == ['{"a":1}', "{}"]
    assert [i["call_id"] for i in response["output"] if i["type"] == "function_call"] == ["idA", "idB"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 2


def test_one_delta_may_end_a_call_begin_text_and_begin_another_call() -> None:
    both = packet(
        "then ", 1, tool_calls=(ToolCallDelta(0, None, None, "}"), ToolCallDelta(1, "b", "g", "{}"))
    )
    stream = events(run(writer(), call(0, "{", "a", "f"), both, packet("", 0, "tool_calls", last=True)))
    output = check_order(stream)["output"]
    assert [i["type"] for i in output] == ["function_call", "message", "function_call"]
    assert output[0]["arguments"] == "{}"


def test_arguments_of_a_closed_call_are_our_fault() -> None:
    w = writer()
    run(w, call(0, "{", "a", "f"), packet("text", 1))
    with pytest.raises(Internal):
        w.chunk(call(0, "}"))


def test_cut_by_length() -> None:
    response = check_order(events(run(writer(), packet("abc", 3, "length", last=True))))
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert response["output"][0]["status"] == "incomplete"
    assert response["completed_at"] is None
    thinking = packet(reasoning="abc", tokens=3, finish_reason="length", last=True)
    assert [i["type"] for i in check_order(events(run(writer(), thinking)))["output"]] == ["reasoning"]


def test_nothing_said_is_an_empty_message() -> None:
    response = check_order(events(run(writer(), packet("", 1, "stop", last=True))))
    assert [i["content"][0]["text"] for i in response["output"]] == [""]


def test_several_choices_side_by_side() -> None:
    stream = events(
        run(
            writer(n=2),
            packet("a", 1, index=0),
            packet("b", 1, index=1),
            packet("A", 1, "stop", index=0),
            packet("B", 1, "stop", index=1, last=True),
        )
    )
    assert [i["content"][0]["text"] for i in check_order(stream)["output"]] == ["aA", "bB"]


def test_logprobs_go_with_the_text() -> None:
    token = TokenLogprob("a", b"a", -0.5)
    stream = events(
        run(
            writer(include=["message.output_text.logprobs"], top_logprobs=1),
            packet("a", 1, logprobs=[token]),
            packet("", 1, "stop", last=True),
        )
    )
    part = check_order(stream)["output"][0]["content"][0]
    top = {"token": "a", "bytes": [97], "logprob": -0.5}
    assert part["logprobs"] == [top | {"top_logprobs": [top]}]
    assert next(e for e in stream if e["type"].endswith("text.delta"))["logprobs"] == part["logprobs"]


def test_an_engine_that_dies_and_a_client_that_cancels() -> None:
    w = writer()
    data = run(w, packet(reasoning="r", tokens=1), packet("hal", 2))
    response = check_order(events(data + w.end_early("failed", Failure("server_error", "the engine died"))))
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "the engine died"}
    assert response["usage"]["output_tokens"] == 3
    assert [i["status"] for i in response["output"]] == ["completed", "incomplete"]
    w = writer(background=True)
    data = run(w, packet("hal", 2))
    stream = events(data + w.end_early("cancelled"))
    assert stream[-1]["type"] == "response.incomplete"
    assert check_order(stream)["status"] == "cancelled"


def test_a_response_that_has_ended_does_not_end_again() -> None:
    w = writer()
    data = run(w, packet("he", 1), packet("llo", 1, "stop", last=True))
    data += w.end_early("failed", Failure("server_error", "too late")) + w.end_early("cancelled")
    response = check_order(events(data))
    assert (response["status"], response["error"]) == ("completed", None)


def test_tokens_without_an_event_are_counted_in_a_stream() -> None:
    """A parser may hold back text; a stream that fails then still reports what was generated."""
    w = writer()
    data = run(w, packet("he", 1), packet(tokens=2))
    assert w.packets[-1].events == ()
    response = check_order(events(data + w.end_early("failed", Failure("server_error", "x"))))
    assert response["usage"]["output_tokens"] == 3


def test_a_fold_leaves_the_events_as_they_were() -> None:
    w = writer()
    data = run(w, packet("he", 1), call(0, "{}", "a", "f"), packet("", 1, "stop", last=True))
    again = ResponseFold(w.packets[0])
    for packet_ in w.packets:
        again.add(packet_)
    assert again.snapshot() == w.snapshot()
    assert check_order(events(data)) == json.loads(again.snapshot())


def test_a_changed_delta_changes_the_whole_response() -> None:
    """What a calculator behind the writer may do."""
    w = writer()
    run(w, packet("my card is 4111", 1), packet("", 1, "stop", last=True))
    fold, encoder, out = ResponseFold(w.packets[0]), EventEncoder(), b""
    for packet_ in w.packets:
        fold.usage = packet_.usage
        for event in packet_.events:
            if isinstance(event, ItemDelta):
                event = ItemDelta(event.index, event.text.replace("4111", "****"), event.logprobs)
            fold.apply(event)
            out += encoder.encode(event, fold.response)
    assert b"4111" not in out
    assert check_order(events(out))["output"][0]["content"][0]["text"] == "my card is ****"


@pytest.mark.parametrize(
    "wrong",
    [ItemDelta(0, "x"), ItemDone(0, "completed"), ItemAdded(1, "message", "msg_1")],
)
def test_events_out_of_order_are_an_error_that_says_which(wrong: ResponseEvent) -> None:
    w = writer()
    w.chunk(ADMITTED)
    with pytest.raises(Internal, match="output item [01]"):
        w.encode([wrong])
    with pytest.raises(Internal, match="began with ResponseEnded"):
        ResponseFold(ResponseEvents((ResponseEnded("completed"),), w.packets[0].usage))


def first(w: Answer) -> Any:
    """The response as the first event has it."""
    w.chunk(ADMITTED)
    created = w.packets[0].events[0]
    assert isinstance(created, ResponseCreated)
    return created.response


def test_values_are_echoed_as_sent() -> None:
    given_ = {
        "temperature": 0.7, "top_p": 0.9, "metadata": {"k": "v"}, "user": "u", "max_output_tokens": 12,
        "instructions": "i", "truncation": "auto", "parallel_tool_calls": False, "max_tool_calls": 3,
        "previous_response_id": "resp_x", "safety_identifier": "s", "prompt_cache_key": "k",
    }  # fmt: skip
    w = writer(**given_, reasoning={"effort": "low"})
    w.chunk(ADMITTED)
    shown = json.loads(w.snapshot())
    assert {k: shown[k] for k in given_} == given_
    assert shown["reasoning"]["effort"] == "low"
    assert b'"temperature":0.7,' in w.snapshot()
    plain_ = first(writer())
    assert (plain_.temperature, plain_.tool_choice, plain_.tools) == (1.0, "auto", [])
    assert len({first(writer()).id for _ in range(50)}) == 50


# ---- any output in any pieces

SEGMENT = st.one_of(
    st.tuples(st.just("content"), st.text(min_size=1, max_size=12)),
    st.tuples(st.just("reasoning"), st.text(min_size=1, max_size=12)),
    st.tuples(st.just("call"), st.text(max_size=12)),
)
Segments = list[tuple[str, str]]


def joined(segments: Segments) -> Segments:
    """Neighbours of one kind are one item, calls apart."""
    out: Segments = []
    for kind, text in segments:
        if out and out[-1][0] == kind and kind != "call":
            out[-1] = (kind, out[-1][1] + text)
        else:
            out.append((kind, text))
    return out


def deltas(segments: Segments, cut: Any) -> list[Parsed]:
    """The segments, each cut into pieces wherever `cut` says."""
    made, calls = [], -1
    for kind, text in segments:
        places = sorted(
            {0, len(text), *(cut(st.integers(0, len(text))) for _ in range(cut(st.integers(0, 3))))}
        )
        pieces = [text[a:b] for a, b in pairwise(places)] or [""]
        for i, piece in enumerate(pieces):
            if kind == "call":
                calls += i == 0
                made.append(call(calls, piece, *((f"id{calls}", f"f{calls}") if i == 0 else ())))
            else:
                made.append(packet(tokens=1, **{kind: piece}))
    return made


def plain(response: dict[str, Any]) -> list[Any]:
    """The output without its ids."""
    return [{k: v for k, v in item.items() if k != "id"} for item in response["output"]]


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(SEGMENT, max_size=6), st.sampled_from(["stop", "length", "tool_calls"]), st.data())
def test_any_split_gives_the_same_response(segments: Segments, finish: str, data: Any) -> None:
    end = packet("", 1, finish, last=True)
    parts = deltas(segments, data.draw)
    streamed = run(writer(), *parts, end)
    response = check_order(events(streamed))
    whole = [packet(tokens=0, **{k: t}) if k != "call" else None for k, t in joined(segments)]
    if None not in whole:
        assert plain(check_order(events(run(writer(), *filter(None, whole), end)))) == plain(response)
    expected = joined(segments) or ([] if finish == "length" else [("content", "")])
    if segments and finish != "length" and all(k == "reasoning" for k, _ in segments):
        expected = [*joined(segments), ("content", "")]
    names = {"content": "message", "reasoning": "reasoning", "call": "function_call"}
    assert [i["type"] for i in response["output"]] == [names[k] for k, _ in expected]
    # Unary is the fold of the stream: the same object, ids and times apart.
    unary = writer(stream=False)
    run(unary, *parts, end)
    assert len([e for p in unary.packets for e in p.events if isinstance(e, ItemDelta)]) <= len(expected)
    body = unary.snapshot()
    Response.model_validate_json(body, strict=True)
    assert plain(json.loads(body)) == plain(response)
    assert json.loads(body)["usage"] == response["usage"]
    # Resumed after any event, and told again from the stored object.
    after = data.draw(st.integers(0, 30))
    assert resume(streamed, after) == b"".join(
        block + b"\n\n" for block in streamed.split(b"\n\n")[:-1][after + 1 :]
    )
    again = events(events_of(json.dumps(response).encode()))
    assert check_order(again) == response


def test_a_client_ahead_of_the_retold_stream_gets_its_end() -> None:
    w = writer(background=True)
    run(w, packet("half", 1))
    body = failed(w.snapshot(), "the server ended")
    last = events(events_of(body, 500))
    assert [(e["type"], e["sequence_number"]) for e in last] == [("response.failed", 501)]
    assert last[0]["response"]["error"]["message"] == "the server ended"
    assert last[0]["response"]["output"][0]["status"] == "incomplete"

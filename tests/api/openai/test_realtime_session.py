"""The realtime session under made sequences: whatever comes in, the order that clients rely on holds."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.api.openai.realtime.config import Abilities, ALaw, MuLaw, Pcm
from ovserve.api.openai.realtime.conversation import MAX_AUDIO_BYTES
from ovserve.api.openai.realtime.listener import MAX_LATER
from ovserve.api.openai.realtime.packets import Activity, Answer, Prompt, Sound, Tokens, Transcript, Utterance
from ovserve.api.openai.realtime.response import FRAME_SAMPLES
from ovserve.api.openai.realtime.session import RealtimeSession
from ovserve.calculators.realtime_codec import ear, encoded, without_silence
from ovserve.errors import EngineDead
from ovserve.llm.output import ToolCall
from tests.breadth import examples
from tests.http.test_realtime import check_event

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
ADDED = {
    "response.output_item.added": "response.output_item.done",
    "response.content_part.added": "response.content_part.done",
    "response.created": "response.done",
}


def message(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content, **fields}


def chunk(seconds: float) -> str:
    return base64.b64encode(np.zeros(int(seconds * 24_000), np.int16).tobytes()).decode()


def about(id_: str) -> list[dict[str, Any]]:
    return [
        {"type": "conversation.item.create", "item": message("x", id=id_)},
        {"type": "conversation.item.create", "item": message("x", id=id_), "previous_item_id": "root"},
        {"type": "conversation.item.create", "item": message("x"), "previous_item_id": id_},
        {"type": "conversation.item.delete", "item_id": id_},
        {"type": "conversation.item.retrieve", "item_id": id_},
        {"type": "conversation.item.truncate", "item_id": id_, "content_index": 0, "audio_end_ms": 0},
    ]


# Half of all events are those that begin and end responses.
OFTEN = [
    {"type": "conversation.item.create", "item": message("x")},
    {"type": "response.create"},
    {"type": "response.cancel"},
    {"type": "input_audio_buffer.append", "audio": chunk(1)},
]
SELDOM = [
    *about("a"),
    *about("b"),
    {"type": "response.create"},
    {"type": "response.create", "response": {"conversation": "none", "input": [message("y")]}},
    {"type": "response.create", "response": {"output_modalities": ["text"]}},
    {"type": "response.create", "response": {"input": []}},
    {"type": "response.create", "response": {"tools": 3}},
    {"type": "response.cancel"},
    {"type": "response.cancel", "response_id": "none"},
    {"type": "input_audio_buffer.append", "audio": chunk(0.1)},
    {"type": "input_audio_buffer.append", "audio": chunk(1)},
    {"type": "input_audio_buffer.append", "audio": "%"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}}}},
    {"type": "session.update", "session": {"audio": {"input": {"transcription": {"model": "x"}}}}},
    {
        "type": "session.update",
        "session": {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}},
    },
    {
        "type": "session.update",
        "session": {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}},
    },
    {"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcma"}}}}},
    {"type": "session.update", "session": {"tools": [TOOL], "nothing": 1}},
    {"type": "nonsense"},
    {"type": "output_audio_buffer.clear"},
    {"type": 3},
]
CLIENT = st.sampled_from(OFTEN * (len(SELDOM) // len(OFTEN)) + SELDOM)
# What the models do with the oldest work that they have: a step of it, its end, a failure, or speech is heard.
MODEL = st.sampled_from(["step", "call", "end", "length", "fail", "speech", "silence"])


class Models:
    """Scripted models: they work on what the session sent, a step at a time."""

    def __init__(self, session: RealtimeSession) -> None:
        self.session = session
        self.prompts: list[Prompt] = []
        self.utterances: list[Utterance] = []
        self.sounds: list[Sound] = []

    def take(self) -> None:
        for work in self.session.work:
            if isinstance(work, Prompt):
                self.prompts.append(work)
            elif isinstance(work, Utterance):
                self.utterances.append(work)
            else:
                self.sounds.append(work)
        self.session.work.clear()

    def step(self, what: str) -> None:
        self.prompts = [p for p in self.prompts if not p.run.cancelled]
        self.utterances = [u for u in self.utterances if not u.run.cancelled]
        if what in ("speech", "silence"):
            if self.sounds:
                sound = self.sounds.pop(0)
                count = len(sound.audio) // 2 // FRAME_SAMPLES
                self.session.on_activity(Activity((0.9 if what == "speech" else 0.0,) * count, sound.end))
            return
        if self.utterances:
            run = self.utterances.pop(0).run
            error = EngineDead("gone") if what == "fail" else None
            self.session.on_transcript(Transcript(run, "Hi there." if what != "length" else "", True, error))
        if not self.prompts:
            return
        prompt = self.prompts[0]
        audio = bytes(4800) if prompt.manner is not None else b""
        call = (ToolCall("call_1", "weather", "{}"),) if what == "call" else ()
        last = what in ("end", "length", "fail")
        if last:
            self.prompts.pop(0)
        self.session.on_answer(
            Answer(
                prompt.run,
                "" if what in ("call", "fail") else "Some text. ",
                call,
                audio,
                prompt.manner,
                last,
                "length" if what == "length" else "stop",
                Tokens(5, 1, 2),
                EngineDead("gone") if what == "fail" else None,
            )
        )


def new_session(**abilities: Any) -> RealtimeSession:
    known = {"hears": True, "detects": True, "speaks": True, "default_voice": "af_one", **abilities}
    session = RealtimeSession(Abilities(model="m", **known), ear)
    session.begin({})
    return session


@settings(max_examples=examples(40))
@given(st.lists(st.one_of(CLIENT, MODEL), min_size=10, max_size=60))
def test_the_order_holds_whatever_comes(steps: list[Any]) -> None:
    session = new_session()
    models = Models(session)
    sent: set[str] = set()
    for number, step in enumerate(steps):
        if isinstance(step, str):
            models.step(step)
        else:
            sent.add(f"mine_{number}")
            session.on_event(json.dumps({**step, "event_id": f"mine_{number}"}).encode())
        models.take()
    for _ in range(200):  # the models end what they have begun
        if models.sounds:
            models.step("silence")
        models.step("end")
        models.take()
    check_order(session.events, sent)
    assert session.active is None
    assert not session.responses


# A valid event of each kind, of which the next test replaces any value by another one.
WHOLE: list[dict[str, Any]] = [
    {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "output_modalities": ["text"],
            "tools": [TOOL],
            "tool_choice": {"type": "function", "name": "weather"},
            "max_output_tokens": 5,
            "truncation": {"type": "retention_ratio", "retention_ratio": 0.5},
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "x", "language": "en", "prompt": "p"},
                    "turn_detection": {"type": "server_vad", "threshold": 0.5, "idle_timeout_ms": 5000},
                },
                "output": {"format": {"type": "audio/pcmu"}, "voice": "alloy", "speed": 1.0},
            },
        },
    },
    {"type": "conversation.item.create", "item": message("x", id="a"), "previous_item_id": "root"},
    *(
        {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": content}}
        for content in (
            [{"type": "input_audio", "audio": chunk(0.2), "transcript": None}],
            [{"type": "input_audio", "audio": "AAAA"}],  # three bytes are no samples
            [{"type": "input_audio", "audio": chunk(0.2)}] * 2,
        )
    ),
    {
        "type": "conversation.item.create",
        "item": {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
    },
    {
        "type": "conversation.item.create",
        "item": {"type": "function_call_output", "call_id": "c", "output": "o"},
    },
    {"type": "response.create"},
    {
        "type": "response.create",
        "response": {
            "instructions": "i",
            "tools": [TOOL],
            "audio": {"output": {"voice": "alloy", "format": {"type": "audio/pcm", "rate": 24000}}},
            "max_output_tokens": "inf",
            "conversation": "none",
            "input": [message("y"), {"type": "item_reference", "id": "a"}],
            "metadata": {"a": "b"},
        },
    },
    {"type": "response.cancel", "response_id": "r"},
    {"type": "conversation.item.truncate", "item_id": "a", "content_index": 0, "audio_end_ms": 10},
    {"type": "conversation.item.delete", "item_id": "a"},
]
VALUES = [None, True, -1, 2**70, 3.5, "", "x", "AAA=", [], ["x"], [[]], {}, {"type": "x"}, {"a": {"b": 1}}]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*place, key))


def replaced(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    if not place:
        return other
    changed = value.copy()
    changed[place[0]] = replaced(value[place[0]], place[1:], other)
    return changed


WRONG = [(event, place) for event in WHOLE for place in places(event)]


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.one_of(st.sampled_from(WHOLE), st.builds(lambda p, v: replaced(*p, v), st.sampled_from(WRONG), st.sampled_from(VALUES))),
        min_size=3,
        max_size=12,
    )
)  # fmt: skip
def test_wrong_values_are_errors_and_no_response_waits_for_ever(events: list[Any]) -> None:
    session = new_session()
    models = Models(session)
    for event in events:
        session.on_event(json.dumps(event).encode())
        models.take()
    for _ in range(60):
        models.step("silence")
        models.step("end")
        models.take()
    assert not session.responses
    for event in session.events:
        check_event(event)


def test_a_message_of_many_values_is_an_error_before_it_is_decoded() -> None:
    session = new_session()
    for changes in ({"tools": [TOOL] * 60_000}, {"metadata": {str(i): "" for i in range(60_000)}}):
        session.on_event(json.dumps({"type": "session.update", "session": changes}).encode())
        assert "more than 50000 values" in session.events[-1]["error"]["message"]
    session.on_event(json.dumps({"type": "input_audio_buffer.append", "audio": chunk(60)}).encode())
    assert session.events[-1]["type"] == "error"
    assert len(session.events) == 3


@pytest.mark.parametrize("cell", ['1,2,"x\\",\n', "a,,,", '\\",'])
def test_commas_of_a_text_are_no_values(cell: str) -> None:
    session = new_session()
    session.on_event(
        json.dumps({"type": "conversation.item.create", "item": message(cell * 60_000)}).encode()
    )
    assert session.events[-1]["item"]["content"][0]["text"] == cell * 60_000


@pytest.mark.parametrize("data", [b'["",' * 60_000, b'""' * 200_000 + b"," * 60_000, b'["' + b"," * 60_000])
def test_rubbish_of_many_commas_is_an_error(data: bytes) -> None:
    session = new_session()
    session.on_event(data)
    assert session.events[-1]["type"] == "error"


def test_half_a_character_is_replaced_as_in_a_body() -> None:
    session = new_session()
    session.on_event(json.dumps({"type": "conversation.item.create", "item": message("x\ud83d")}).encode())
    assert session.events[-1]["item"]["content"][0]["text"] == "x\ufffd"


def test_deep_json_is_an_error() -> None:
    session = new_session()
    session.on_event(b"[" * 100_000)
    assert session.events[-1]["error"]["code"] == "invalid_event"


def test_the_audio_of_items_has_a_bound() -> None:
    session = new_session()
    content = [{"type": "input_audio", "audio": base64.b64encode(bytes(3 << 20)).decode(), "transcript": "t"}]
    for _ in range(14):
        item = {"type": "message", "role": "user", "content": content}
        session.on_event(json.dumps({"type": "conversation.item.create", "item": item}).encode())
    kept = [len(item.audio) for item in session.conversation.items]
    assert sum(kept) <= MAX_AUDIO_BYTES
    assert kept[0] == 0
    assert kept[-1] == 3 << 20


def check_order(events: list[dict[str, Any]], sent: set[str]) -> None:
    """Check the rules of OpenAI's clients."""
    assert len({event["event_id"] for event in events}) == len(events)
    open_: dict[str, list[str]] = {}
    done: set[str] = set()
    active = ""
    transcripts: set[str] = set()
    for event in events:
        check_event(event)
        kind = event["type"]
        response = event.get("response_id") or event.get("response", {}).get("id")
        if response is not None:
            assert response not in done, f"{kind} after the end of its response"
            waiting = open_.setdefault(response, [])
            if kind in ADDED:
                waiting.append(ADDED[kind])
            elif kind in ADDED.values():
                assert waiting.pop() == kind
        if kind == "response.created" and event["response"]["conversation_id"]:
            assert not active, "one response of the conversation at a time"
            active = response
        if kind == "response.done":
            assert not open_.pop(response)
            done.add(response)
            active = "" if active == response else active
            usage = event["response"]["usage"]
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        if kind == "error":
            assert event["error"]["event_id"] in sent or event["error"]["event_id"] is None
        if kind.endswith(("transcription.completed", "transcription.failed")):
            assert event["item_id"] not in transcripts, "one transcript for an item"
            transcripts.add(event["item_id"])
    assert not open_


def test_a_partial_update_of_turn_detection_keeps_its_other_values() -> None:
    session = new_session()
    change = {"audio": {"input": {"turn_detection": {"threshold": 0.8}}}}
    session.on_event(json.dumps({"type": "session.update", "session": change}).encode())
    found = session.events[-1]["session"]["audio"]["input"]["turn_detection"]
    before = session.events[0]["session"]["audio"]["input"]["turn_detection"]
    assert found == before | {"threshold": 0.8}


def test_what_is_known_of_the_audio_reaches_the_model_in_turns_and_in_items() -> None:
    """All fields that OpenAI's client has are taken, for audio of the buffer and of an item alike."""

    session = new_session(detects=False, language=str.lower)

    def update(**heard: Any) -> dict[str, Any]:
        change = {"type": "session.update", "session": {"audio": {"input": heard}}}
        session.on_event(json.dumps(change).encode())
        return session.events[-1]

    spoken = {"model": "x", "language": "DE", "languages": ["de"], "keywords": ["Elbe", "Deich"]}
    spoken |= {"delay": "low", "prompt": "p"}
    made = update(transcription=spoken, noise_reduction={"type": "near_field", "strength": 0.5})
    assert made["session"]["audio"]["input"]["transcription"] == spoken | {"languages": None, "delay": None}
    assert update(noise_reduction={"strength": 0.3})["type"] == "session.updated"
    for field, value in (("prompt", "p" * 65_537), ("keywords", ["a"] * 1001), ("keywords", ["a" * 257])):
        error = update(transcription=spoken | {field: value})["error"]  # it would travel with each utterance
        assert error["param"].startswith(f"session.audio.input.transcription.{field}"), error
    for name in ("turn", "item"):
        if name == "turn":
            session.on_event(json.dumps({"type": "input_audio_buffer.append", "audio": chunk(1)}).encode())
            session.on_event(b'{"type": "input_audio_buffer.commit"}')
        else:
            content = [{"type": "input_audio", "audio": chunk(1)}]
            item = {"type": "message", "role": "user", "content": content}
            session.on_event(json.dumps({"type": "conversation.item.create", "item": item}).encode())
        heard = session.work.pop()
        assert isinstance(heard, Utterance)
        assert (heard.language, heard.prompt, heard.hotwords) == ("de", "p", "Elbe, Deich"), name


def test_a_transcript_says_which_part_of_its_item_it_is_of() -> None:
    session = new_session(detects=False)
    change = {"audio": {"input": {"transcription": {"model": "x"}}}}
    session.on_event(json.dumps({"type": "session.update", "session": change}).encode())
    lines = base64.encodebytes(bytes(4800)).decode()
    content = [{"type": "input_text", "text": "Listen:"}, {"type": "input_audio", "audio": lines}]
    item = {"type": "message", "role": "user", "content": content}
    session.on_event(json.dumps({"type": "conversation.item.create", "item": item}).encode())
    heard = session.work.pop()
    assert isinstance(heard, Utterance)
    session.on_transcript(Transcript(heard.run, "Moin."))
    session.on_transcript(Transcript(heard.run, last=True))
    made = [event for event in session.events if "transcription" in event["type"]]
    assert [event["content_index"] for event in made] == [1, 1]
    assert [part.get("transcript") for part in session.conversation.items[-1].value["content"]] == [
        None,
        "Moin.",
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
    ],
    ids=["name", "mcp", "twice", "choice"],
)
def test_what_is_wrong_with_tools_is_named_where_it_stands(fields: dict[str, Any], param: str) -> None:
    for type_, where in (("session.update", "session"), ("response.create", "response")):
        session = new_session()
        session.on_event(json.dumps({"type": type_, where: fields}).encode())
        error = session.events[-1]["error"]
        assert error["param"] == f"{where}.{param}"
        assert error["message"].startswith(f"{where}.{param}: ")


def test_a_transcription_session_may_name_its_graph() -> None:
    """A request for a short-lived key has no other place for the name."""
    for name, answer in (("m", "session.updated"), ("other", "error")):
        session = new_session()
        session.on_event(
            json.dumps(
                {"type": "session.update", "session": {"type": "transcription", "model": name}}
            ).encode()
        )
        assert session.events[-1]["type"] == answer


def test_a_response_right_after_a_commit_has_that_turn() -> None:
    """The commit waits for the activity of the audio before it; more audio comes meanwhile."""
    session = new_session()

    def send(type_: str, **fields: Any) -> None:
        session.on_event(json.dumps({"type": f"input_audio_buffer.{type_}", **fields}).encode())

    send("append", audio=chunk(FRAME_SAMPLES * 40 / 16_000))
    session.on_activity(Activity((0.0,) * 5 + (0.9,) * 15, FRAME_SAMPLES * 20))
    assert session.events[-1]["type"] == "input_audio_buffer.speech_started"
    send("commit")
    session.on_event(b'{"type": "response.create", "event_id": "mine"}')
    session.on_event(b'{"type": "nonsense", "event_id": "last"}')
    send("append", audio=chunk(1))
    send("append", audio="%")  # an error at once: audio does not wait
    assert session.events[-1]["error"]["param"] == "audio"
    count = len(session.events)
    session.on_activity(Activity((0.9,) * 18, FRAME_SAMPLES * 38))
    assert len(session.events) == count, "not all of it has been looked at"
    session.on_activity(Activity((0.9,) * 2, FRAME_SAMPLES * 40))
    names = [event["type"] for event in session.events[count:]]
    order = ["input_audio_buffer.committed", "conversation.item.added", "response.created", "error"]
    assert [name for name in names if name in order] == order, names
    assert session.events[-1]["error"]["event_id"] == "last"
    assert session.active is not None
    assert session.active.waits_for, "for the transcript of the turn"
    (heard,) = [work for work in session.work if isinstance(work, Utterance)]
    assert len(heard.audio) <= FRAME_SAMPLES * 40 * 2, "what came after the commit is not of the turn"


def test_a_transcription_session_has_deltas_while_one_speaks() -> None:
    """Each pause gives the text so far; a conversation waits for the end of the turn."""
    update = {
        "type": "transcription",
        "audio": {"input": {"transcription": {"model": "x"}, "turn_detection": {"type": "server_vad"}}},
    }
    session = new_session()
    session.on_event(json.dumps({"type": "session.update", "session": update}).encode())
    assert session.events[-1]["type"] == "session.updated", session.events[-1]
    session.on_event(json.dumps({"type": "input_audio_buffer.append", "audio": chunk(4)}).encode())
    speech, silence = (0.9,) * 20, (0.0,) * 8
    at, texts = 0, iter(("one two", "three", "four."))
    for values in (speech, silence, speech, silence, speech, silence, silence):
        at += len(values) * FRAME_SAMPLES
        session.on_activity(Activity(values, at))
        for work in [work for work in session.work if isinstance(work, Utterance)]:
            session.work.remove(work)
            session.on_transcript(Transcript(work.run, next(texts)))
            session.on_transcript(Transcript(work.run, last=True))
    names = [event["type"].removeprefix("conversation.item.input_audio_") for event in session.events]
    marks = [name for name in names if name.startswith("transcription") or name.endswith("committed")]
    assert marks == [
        *["transcription.delta"] * 3,
        "input_audio_buffer.committed",
        "transcription.completed",
    ]
    deltas = [event["delta"] for event in session.events if event["type"].endswith("transcription.delta")]
    assert "".join(deltas) == session.events[-1]["transcript"] == "one two three four."
    for event in session.events:
        check_event(event)


def test_too_many_events_behind_a_commit_are_errors() -> None:
    session = new_session()
    session.on_event(json.dumps({"type": "input_audio_buffer.append", "audio": chunk(1)}).encode())
    session.on_event(b'{"type": "input_audio_buffer.commit"}')
    for _ in range(MAX_LATER):
        session.on_event(b'{"type": "response.cancel"}')
    assert session.events[-1]["error"]["code"] == "too_many_events"
    session.on_event(b'{"type": "input_audio_buffer.commit"}')
    assert session.events[-1]["error"]["code"] == "too_many_events"
    session.on_activity(Activity((0.0,) * 31, 16_000))
    assert sum(event["type"] == "error" for event in session.events) == MAX_LATER + 2
    # Large ones have another bound.
    session.on_event(json.dumps({"type": "input_audio_buffer.append", "audio": chunk(1)}).encode())
    session.on_event(b'{"type": "input_audio_buffer.commit"}')
    for _ in range(3):
        session.on_event(json.dumps({"type": "response.cancel", "x": "x" * (15 << 20)}).encode())
    assert session.events[-1]["error"]["code"] == "too_many_events"


def test_audio_that_comes_faster_than_it_is_looked_at_is_kept() -> None:
    session = new_session()
    session.on_event(json.dumps({"type": "input_audio_buffer.append", "audio": chunk(20)}).encode())
    values = [0.0] * 40 + [0.9] * 40 + [0.0] * 40
    for at, value in enumerate(values, 1):
        session.on_activity(Activity((value,), at * FRAME_SAMPLES))
    (heard,) = [work for work in session.work if isinstance(work, Utterance)]
    assert len(heard.audio) >= 40 * FRAME_SAMPLES * 2


@pytest.mark.parametrize("format_", [Pcm(), MuLaw(), ALaw()])
def test_chunks_of_any_size_are_the_same_audio(format_: Any) -> None:
    samples = encoded((np.sin(np.arange(24_000) * 0.05) * 9000).astype(np.int16), format_)
    whole = np.frombuffer(ear(format_)(samples), "<i2").astype(int)
    assert whole.size > 15_000
    for size in (2, 480, 4800):
        hear = ear(format_)
        parts = [hear(samples[at : at + size]) for at in range(0, len(samples), size)]
        found = np.frombuffer(b"".join(parts), "<i2").astype(int)
        common = min(found.size, whole.size)
        assert common > 15_000
        assert np.abs(found[:common] - whole[:common]).max() <= 2, "but for the library's dither"


def test_an_answer_begins_with_sound_and_not_with_silence() -> None:
    sound = np.concatenate([np.full(2400, 20), np.full(2400, 5000), np.zeros(2400)]).astype("<i2")
    found = np.frombuffer(without_silence(sound.tobytes(), 24_000, begin=True, end=False), "<i2")
    assert (found == sound[1200:]).all()
    found = np.frombuffer(without_silence(sound.tobytes(), 24_000, begin=True, end=True), "<i2")
    assert (found == sound[1200:5999]).all()
    quiet = bytes(100)
    assert without_silence(quiet, 24_000, begin=True, end=True) == quiet

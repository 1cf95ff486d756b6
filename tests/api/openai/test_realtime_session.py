"""The realtime session under made sequences: whatever comes in, the order that clients rely on holds."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.api.openai.realtime.config import Abilities
from ovserve.api.openai.realtime.packets import Activity, Answer, Prompt, Sound, Tokens, Transcript, Utterance
from ovserve.api.openai.realtime.session import RealtimeSession
from ovserve.api.openai.realtime.turns import FRAME
from ovserve.calculators.realtime_codec import ear
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
                count = len(sound.audio) // 2 // FRAME
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


@settings(max_examples=examples(100))
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
    for response in list(session.responses.values()):
        session.on_event(json.dumps({"type": "response.cancel", "response_id": response.id}).encode())
    check_order(session.events, sent)
    assert session.active is None
    assert not session.responses


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


def test_chunks_of_any_size_are_the_same_audio() -> None:
    samples = (np.sin(np.arange(24_000) * 0.05) * 9000).astype("<i2").tobytes()
    whole = np.frombuffer(ear(session_format())(samples), "<i2").astype(int)
    assert whole.size > 15_000
    for size in (2, 480, 4800):
        hear = ear(session_format())
        parts = [hear(samples[at : at + size]) for at in range(0, len(samples), size)]
        found = np.frombuffer(b"".join(parts), "<i2").astype(int)
        common = min(found.size, whole.size)
        assert common > 15_000
        assert np.abs(found[:common] - whole[:common]).max() <= 2, "but for the library's dither"


def session_format() -> Any:
    config: Any = new_session().config
    return config.audio.input.format

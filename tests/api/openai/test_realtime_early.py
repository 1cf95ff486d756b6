"""Answers begun in a pause: of one whose turn went on nothing is ever seen, and what was said is in the conversation."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.api.openai.realtime.config import Abilities
from ovserve.api.openai.realtime.packets import Activity, Answer, Prompt, Sound, Tokens, Transcript, Utterance
from ovserve.api.openai.realtime.response import FRAME_SAMPLES
from ovserve.api.openai.realtime.session import RealtimeSession
from ovserve.errors import EngineDead
from ovserve.llm.output import ToolCall
from tests.api.openai.test_realtime_session import TOOL, check_order, message
from tests.breadth import examples

SENT = FRAME_SAMPLES * 3 // 2  # samples at 24 kHz of a frame
SPEECH, PAUSE, END = 20, 8, 18  # frames


def detection(**values: Any) -> dict[str, Any]:
    return {"audio": {"input": {"turn_detection": values or None}}}


UPDATES: list[dict[str, Any]] = [
    {"instructions": "One."},
    {"instructions": "Two."},
    {"audio": {"output": {"voice": "other"}}},
    {"tools": [TOOL]},
    {"output_modalities": ["text"]},
    detection(),
    detection(type="server_vad"),
    detection(type="server_vad", silence_duration_ms=300),
    detection(type="server_vad", create_response=False),
    detection(type="server_vad", interrupt_response=False),
    detection(type="semantic_vad"),
]
EVENTS: list[dict[str, Any]] = [
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "response.create"},
    {"type": "response.create", "response": {"conversation": "none", "input": [message("apart")]}},
    {"type": "response.create", "response": {"instructions": "Three."}},
    {"type": "response.cancel"},
    {"type": "conversation.item.create", "item": message("typed")},
    *({"type": "session.update", "session": change} for change in UPDATES),
]
TURN = ["speech", "pause", "hear", "think", "finish", "resume", "end"]
STEP = st.one_of(st.sampled_from(TURN * 3 + ["call", "fail", "truncate", "delete"]), st.sampled_from(EVENTS))


def ear(_: object) -> Any:
    """Take two samples of three, so that values stay."""
    return lambda raw: np.frombuffer(raw, "<i2").reshape(-1, 3)[:, :2].tobytes()


class Talk:
    """A session with scripted models. Each piece of speech is a number of its own, and its transcript.

    An answer is what its prompt holds, with a mark of its run."""

    def __init__(self) -> None:
        self.session = RealtimeSession(
            Abilities(
                model="m",
                hears=True,
                detects=True,
                speaks=True,
                voice=lambda name: name,
                default_voice="one",
                answers_early=True,
            ),
            ear,
        )
        self.session.begin({})
        self.sent: set[str] = set()
        self.spoken = 0
        self.sounds: list[Sound] = []
        self.utterances: list[Utterance] = []
        self.prompts: list[Prompt] = []
        self.all: list[tuple[Prompt, str]] = []  # with the mark of each
        self.prompted: dict[int, str] = {}

    def send(self, event: dict[str, Any]) -> None:
        id_ = f"mine_{len(self.sent)}"
        self.sent.add(id_)
        self.session.on_event(json.dumps({**event, "event_id": id_}).encode())
        self.take()

    def play(self, value: int, frames: int) -> None:
        data = base64.b64encode(np.full(frames * SENT, value, "<i2").tobytes()).decode()
        self.send({"type": "input_audio_buffer.append", "audio": data})

    def take(self) -> None:
        """Take what the session sent; activity is known at once."""
        while self.session.work:
            work = self.session.work.pop(0)
            if isinstance(work, Sound):
                frames = np.frombuffer(work.audio, "<i2").reshape(-1, FRAME_SAMPLES) if work.audio else ()
                found = tuple(0.9 if frame.any() else 0.0 for frame in frames)
                self.session.on_activity(Activity(found, work.end))
            elif isinstance(work, Utterance):
                self.utterances.append(work)
            else:
                self.all.append((work, f"#{len(self.all)}#"))
                self.prompts.append(work)

    def mark(self, prompt: Prompt) -> str:
        return next(mark for known, mark in self.all if known is prompt)

    def step(self, step: str) -> None:
        match step:
            case "speech" | "resume":
                self.spoken += 1
                self.play(self.spoken, SPEECH)
            case "pause" | "end":
                self.play(0, PAUSE if step == "pause" else END)
            case "truncate" | "delete":
                items = self.session.conversation.items
                fields = {"content_index": 0, "audio_end_ms": 50} if step == "truncate" else {}
                known = {"item_id": items[-1].id if items else "none"}
                self.send({"type": f"conversation.item.{step}", **known, **fields})
            case "hear":
                self.hear()
            case _:
                self.answer(step)
        self.take()

    def hear(self) -> None:
        self.utterances = [u for u in self.utterances if not u.run.cancelled]
        if self.utterances:
            heard = self.utterances.pop(0)
            numbers = np.unique(np.frombuffer(heard.audio, "<i2"))
            text = " ".join(str(number) for number in numbers if number)
            self.session.on_transcript(Transcript(heard.run, text))
            self.session.on_transcript(Transcript(heard.run, last=True))

    def answer(self, step: str) -> None:
        self.prompts = [p for p in self.prompts if not p.run.cancelled]
        if not self.prompts:
            return
        prompt = self.prompts[0]
        if step in ("finish", "fail"):
            self.prompts.pop(0)
        calls = (ToolCall("call_1", "weather", "{}"),) if step == "call" and prompt.policy else ()
        self.session.on_answer(
            Answer(
                prompt.run,
                "" if step == "fail" else f"{self.mark(prompt)} ",
                calls,
                bytes(4800) if prompt.manner is not None else b"",
                prompt.manner,
                step in ("finish", "fail"),
                "stop",
                Tokens(5, 1, 2),
                EngineDead("gone") if step == "fail" else None,
            )
        )

    def end(self) -> None:
        """Let everything come to its end."""
        for _ in range(16):  # 9 s: the patience of semantic_vad
            self.step("end")
        for _ in range(100):
            self.step("hear")
            self.step("finish")

    def check(self) -> None:
        check_order(self.session.events, self.sent)
        assert not self.session.responses
        shown = json.dumps(self.session.events)
        config: dict[str, Any] = {}
        created: dict[str, str] = {}
        for event in self.session.events:
            kind = event["type"]
            if kind in ("session.created", "session.updated"):
                config = event["session"]
            if kind == "response.created":
                created[event["response"]["id"]] = config["instructions"]
        for prompt, mark in self.all:
            if not prompt.run.sure.is_set():
                assert prompt.run.cancelled, "an early answer is used or dropped"
                assert mark not in shown, "nothing of it is seen"
                continue
            systems = [m["content"] for m in prompt.messages if m["role"] == "system"]
            if prompt.run.id in created and systems != ["Three."]:
                assert systems == [text for text in [created[prompt.run.id]] if text]
        marks: dict[str, set[str]] = {}
        for event in self.session.events:
            if event["type"] in ("response.output_text.delta", "response.output_audio_transcript.delta"):
                marks.setdefault(event["response_id"], set()).update(event["delta"].split())
        assert all(len(found) == 1 for found in marks.values()), "each response is of one prompt"

    @property
    def heard(self) -> list[list[int]]:
        """Return the numbers in each transcript of the client."""
        parts = [item.speech for item in self.session.conversation.items]
        return [
            [int(n) for n in (part["transcript"] or "").split()]
            for part in parts
            if part is not None and part["type"] == "input_audio"
        ]


@settings(max_examples=examples(80))
@given(st.lists(STEP, min_size=8, max_size=50))
def test_nothing_of_a_turn_that_went_on_is_seen(steps: list[Any]) -> None:
    talk = Talk()
    for step in steps:
        if isinstance(step, str):
            talk.step(step)
        else:
            talk.send(step)
    talk.end()
    talk.check()
    numbers = [number for found in talk.heard for number in found]
    assert numbers == sorted(set(numbers)), "what was said is there once, in order"
    lost = {"input_audio_buffer.clear", "session.update"}
    if "delete" not in steps and not any(isinstance(s, dict) and s["type"] in lost for s in steps):
        assert numbers == list(range(1, talk.spoken + 1)), "and all of it"


def test_a_turn_that_ends_in_its_pause_has_the_answer_that_is_ready() -> None:
    talk = Talk()
    for step in ("speech", "pause", "hear", "think", "finish"):
        talk.step(step)
    kinds = [event["type"] for event in talk.session.events]
    assert kinds == ["session.created", "input_audio_buffer.speech_started"]
    ((prompt, mark),) = talk.all
    assert not prompt.run.sure.is_set(), "no tool may run yet"
    talk.step("end")
    assert prompt.run.sure.is_set()
    assert len(talk.all) == 1, "nothing is asked for twice"
    done = talk.session.events[-1]
    assert done["type"] == "response.done"
    assert done["response"]["id"] == prompt.run.id
    assert done["response"]["status"] == "completed"
    assert done["response"]["output"][0]["content"][0]["transcript"] == f"{mark} {mark}"
    assert talk.session.counts == {"early_used": 1, "responses_completed": 1}
    talk.check()


def test_speech_that_goes_on_drops_the_answer() -> None:
    for before in range(5):
        talk = Talk()
        for step in ("speech", "pause", *("hear", "think", "think", "finish")[:before]):
            talk.step(step)
        talk.step("resume")
        assert all(prompt.run.cancelled for prompt, _ in talk.all)
        talk.end()
        talk.check()
        assert talk.heard == [[1, 2]]
        assert [e["response"]["status"] for e in talk.session.events if e["type"] == "response.done"] == [
            "completed"
        ]


def test_what_changes_the_prompt_drops_the_answer() -> None:
    changes = [event for event in EVENTS if event["type"] in ("session.update", "conversation.item.create")]
    for change in changes:
        talk = Talk()
        for step in ("speech", "pause", "hear", "think"):
            talk.step(step)
        talk.send(change)
        talk.end()
        talk.check()
        same = change.get("session") in (UPDATES[6], UPDATES[7], UPDATES[9], UPDATES[10])
        assert talk.session.counts.get("early_used", 0) == same, change


def test_an_early_answer_that_fails_is_tried_again() -> None:
    talk = Talk()
    for step in ("speech", "pause", "hear", "fail"):
        talk.step(step)
    talk.end()
    talk.check()
    assert talk.session.events[-1]["response"]["status"] == "completed"

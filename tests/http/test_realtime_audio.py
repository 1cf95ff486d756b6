"""Realtime sessions with audio: the shipped graph with a scripted language model and tiny voices and ears."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT, eventually
from tests.http.conftest import running
from tests.http.test_realtime import SCRIPT, Talker, squeezed, talker
from tests.speech import RECORDING, samples, tiny_whisper
from tests.voices import tiny_voice

pytestmark = pytest.mark.long
SPOKEN = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speaking_graph(tmp_path_factory.mktemp("realtime"))


def speaking_graph(place: Path) -> Path:
    """The shipped graph in a directory, with a scripted language model and tiny voices and ears."""
    tiny_whisper(place / "ears", speakable=True)
    tiny_voice(place / "mouth", work=8)
    (place / "model.script.json").write_text(json.dumps(SCRIPT))
    text = (ROOT / "graphs/realtime/graph.pbtxt").read_text()
    model = "qwen2.5-coder-1.5b/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
    for name, mine in {"whisper-base": "ears", model: "model.script.json", "kokoro": "mouth"}.items():
        text = text.replace(f"../../models/{name}", str(place / mine))
    (place / "graph").mkdir()
    (place / "graph/graph.pbtxt").write_text(text)
    return place / "graph"


@asynccontextmanager
async def conversing(graph: Path, **session: Any) -> AsyncIterator[Talker]:
    async with running(graph) as server, talker(server) as talk:
        await talk.send("session.update", session={"type": "realtime", **session})
        await talk.until("session.updated")
        yield talk


def question() -> np.ndarray[Any, Any]:
    """Return the first sentence of the recording at 24 kHz."""
    import soxr

    return soxr.resample(samples(RECORDING), 16_000, 24_000)[: 24_000 * 3]


def silence(seconds: float) -> np.ndarray[Any, Any]:
    return np.zeros(int(24_000 * seconds), np.int16)


async def play(talk: Talker, audio: np.ndarray[Any, Any], step: int = 2400) -> None:
    """Send audio in chunks of 100 ms, as fast as they are taken."""
    for at in range(0, audio.size, step):
        data = base64.b64encode(audio[at : at + step].astype("<i2").tobytes()).decode()
        await talk.send("input_audio_buffer.append", audio=data)


async def test_a_question_is_heard_and_answered_aloud(graph: Path) -> None:
    config = {"audio": {"input": {"transcription": {"model": "gpt-4o-mini-transcribe"}}}}
    async with conversing(graph, **config) as talk:
        await play(talk, np.concatenate([question(), silence(1)]))
        response = (await talk.until("response.done"))["response"]
        kinds = [k for k in talk.kinds[2:] if "transcription" not in k]
        assert squeezed(kinds) == SPOKEN
        assert response["status"] == "completed"
        (item,) = response["output"]
        assert item["content"] == [{"type": "output_audio", "transcript": "Hello there, friend."}]
        started, committed = (
            next(e for e in talk.events if e["type"].endswith(k)) for k in ("speech_started", "committed")
        )
        assert started["item_id"] == committed["item_id"]
        assert 0 <= started["audio_start_ms"] < 500
        transcripts = [e for e in talk.events if e["type"].endswith("transcription.completed")]
        assert [e["item_id"] for e in transcripts] == [started["item_id"]]
        assert response["usage"]["output_token_details"]["audio_tokens"] > 0
        await talk.send("conversation.item.retrieve", item_id=started["item_id"])
        audio = base64.b64decode((await talk.next())["item"]["content"][0]["audio"])
        assert len(audio) / 48_000 > 2


async def test_speech_interrupts_an_answer_and_history_keeps_what_was_heard(graph: Path) -> None:
    async with conversing(graph, instructions="Tell a long story") as talk:
        await talk.say("Begin")
        await talk.send("response.create")
        await talk.until("response.output_audio.delta")
        await play(talk, np.concatenate([silence(0.3), question()]))
        done = (await talk.until("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        kinds = talk.kinds
        at = kinds.index("input_audio_buffer.speech_started")
        assert "response.output_audio.delta" not in kinds[at:]
        item = done["output"][0]
        await talk.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=10**7)
        while (event := await talk.next())["type"] != "error":
            pass
        assert "already shorter" in event["error"]["message"]
        await talk.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=300)
        await talk.until("conversation.item.truncated")
        await talk.send("conversation.item.retrieve", item_id=item["id"])
        kept = (await talk.until("conversation.item.retrieved"))["item"]["content"][0]
        assert len(base64.b64decode(kept["audio"])) == 300 * 48
        assert item["content"][0]["transcript"].startswith(kept["transcript"])


async def test_push_to_talk_in_g711(graph: Path) -> None:
    law = {"type": "audio/pcmu"}
    audio = {"input": {"format": law, "turn_detection": None}, "output": {"format": law}}
    async with conversing(graph, audio=audio) as talk:
        await talk.send("input_audio_buffer.commit")
        assert (await talk.next())["error"]["code"] == "input_audio_buffer_commit_empty"
        from ovserve.api.openai.realtime.config import MuLaw
        from ovserve.calculators.realtime_codec import encoded

        data = encoded(question()[::3], MuLaw())
        await talk.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())
        await talk.send("input_audio_buffer.commit")
        await talk.until("conversation.item.done")
        await talk.send("response.create")
        response = (await talk.until("response.done"))["response"]
        deltas = [e["delta"] for e in talk.events if e["type"] == "response.output_audio.delta"]
        spoken = sum(len(base64.b64decode(delta)) for delta in deltas)
        assert response["usage"]["output_token_details"]["audio_tokens"] == pytest.approx(spoken / 400, abs=1)


async def test_silence_and_noise_are_no_turn(graph: Path) -> None:
    async with conversing(graph) as talk:
        noise = np.random.default_rng(3).normal(0, 800, 24_000 * 2).astype(np.int16)
        click = silence(1)
        click[100:400] = 30_000
        await play(talk, np.concatenate([silence(2), noise, click]))
        await talk.send("input_audio_buffer.commit", event_id="none")
        error = (await talk.next())["error"]
        assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "none")


async def test_a_transcription_session_answers_nothing(graph: Path) -> None:
    async with running(graph) as server, talker(server) as talk:
        await talk.send("session.update", session={"type": "transcription"})
        session = (await talk.until("session.updated"))["session"]
        assert session["type"] == "transcription"
        await play(talk, np.concatenate([question(), silence(1)]))
        await talk.until("conversation.item.input_audio_transcription.completed")
        assert not [kind for kind in talk.kinds if kind.startswith("response.")]
        await talk.send("response.create", event_id="no")
        assert (await talk.next())["error"]["event_id"] == "no"


NODES = '''
import msgspec

from ovserve.api.openai.realtime.packets import Answer, Transcript
from ovserve.calculators.library import ServerTools, tool
from ovserve.errors import InvalidArgument
from ovserve.graph import Calculator, Input, Output, calculator


@calculator("GuardCalculator")
class Guard(Calculator):
    heard, passed = Input("TRANSCRIPT", Transcript), Output("TRANSCRIPT", Transcript)

    def process(self, cc):
        heard = cc[self.heard]
        if heard is not None and heard.last:
            heard = msgspec.structs.replace(heard, error=InvalidArgument("no subject of this assistant"))
        cc.send(self.passed, heard)


@calculator("MaskCalculator")
class Mask(Calculator):
    said, masked = Input("ANSWER", Answer), Output("ANSWER", Answer)

    def process(self, cc):
        said = cc[self.said]
        cc.send(self.masked, msgspec.structs.replace(said, text=said.text.replace("Oslo", "a city")))


@calculator("MyToolsCalculator")
class MyTools(ServerTools):
    @tool
    async def weather(self, city: str) -> str:
        """Return the weather of a city."""
        return "rain"
'''
MORE_NODES = """
node { name: "Guard" calculator: "GuardCalculator"
  input_stream: "TRANSCRIPT:heard" output_stream: "TRANSCRIPT:transcript" }
node { name: "Mask" calculator: "MaskCalculator" input_stream: "ANSWER:raw" output_stream: "ANSWER:thought" }
node { name: "Tools" calculator: "MyToolsCalculator" output_side_packet: "TOOLS:tools" }
"""


async def test_nodes_of_ones_own_check_questions_mask_answers_and_bring_tools(
    graph: Path, tmp_path: Path
) -> None:
    text = (graph / "graph.pbtxt").read_text()
    for old, new in {
        'output_stream: "TRANSCRIPT:transcript"': 'output_stream: "TRANSCRIPT:heard"',
        'output_stream: "ANSWER:thought"': 'output_stream: "ANSWER:raw"',
        'input_stream: "PROMPT:prompt"': 'input_stream: "PROMPT:prompt" input_side_packet: "TOOLS:tools"',
    }.items():
        text = text.replace(old, new)
    (tmp_path / "graph.pbtxt").write_text(text + MORE_NODES)
    (tmp_path / "calculators.py").write_text(NODES)
    async with conversing(tmp_path, audio={"input": {"transcription": {"model": "x"}}}) as talk:
        response = await talk.ask("What is the weather in Oslo?")
        assert [item["content"][0]["transcript"] for item in response["output"]] == ["It rains in a city."]
        assert talk.kinds.count("response.created") == 1
        await play(talk, np.concatenate([question(), silence(1)]))
        failed = await talk.until("conversation.item.input_audio_transcription.failed")
        assert "no subject" in failed["error"]["message"]
        assert (await talk.ask("Hi"))["status"] == "completed"
        assert talk.kinds.count("response.created") == 2, "a question that was refused is not answered"


SPIES = '''
from pathlib import Path

import msgspec

from ovserve.api.openai.realtime.packets import Prompt, Transcript
from ovserve.calculators.library import ServerTools, tool
from ovserve.graph import Calculator, Input, Output, calculator

PLACE = Path(__file__).parent


@calculator("HearCalculator")
class Hear(Calculator):
    heard, passed = Input("TRANSCRIPT", Transcript), Output("TRANSCRIPT", Transcript)

    def process(self, cc):
        heard = cc[self.heard]
        cc.send(self.passed, msgspec.structs.replace(heard, text="weather in Oslo" if heard.last else ""))


@calculator("WatchCalculator")
class Watch(Calculator):
    asked, passed = Input("PROMPT", Prompt), Output("PROMPT", Prompt)

    def process(self, cc):
        with (PLACE / "prompts").open("a") as file:
            file.write(f"{cc[self.asked].run.sure.is_set()}\\n")
        cc.send(self.passed, cc[self.asked])


@calculator("MyToolsCalculator")
class MyTools(ServerTools):
    @tool
    async def weather(self, city: str) -> str:
        """Return the weather of a city."""
        with (PLACE / "calls").open("a") as file:
            file.write("call\\n")
        return "rain"
'''
SPYING = """
node { name: "Hear" calculator: "HearCalculator"
  input_stream: "TRANSCRIPT:heard" output_stream: "TRANSCRIPT:transcript" }
node { name: "Watch" calculator: "WatchCalculator" input_stream: "PROMPT:asked" output_stream: "PROMPT:prompt" }
node { name: "Tools" calculator: "MyToolsCalculator" output_side_packet: "TOOLS:tools" }
"""


async def test_an_answer_begun_in_a_pause_runs_no_tool_and_is_not_seen(graph: Path, tmp_path: Path) -> None:
    text = (graph / "graph.pbtxt").read_text()
    for old, new in {
        'output_stream: "TRANSCRIPT:transcript"': 'output_stream: "TRANSCRIPT:heard"',
        'output_stream: "PROMPT:prompt"': 'output_stream: "PROMPT:asked"',
        'input_stream: "PROMPT:prompt"': 'input_stream: "PROMPT:prompt" input_side_packet: "TOOLS:tools"',
    }.items():
        text = text.replace(old, new)
    (tmp_path / "graph.pbtxt").write_text(text + SPYING)
    (tmp_path / "calculators.py").write_text(SPIES)
    prompts, calls = tmp_path / "prompts", tmp_path / "calls"
    turns = {"type": "server_vad", "silence_duration_ms": 3000}
    async with conversing(tmp_path, audio={"input": {"turn_detection": turns}}) as talk:
        for times in (1, 2):
            await play(talk, np.concatenate([question(), silence(0.5)]))
            await eventually(
                lambda times=times: prompts.is_file() and prompts.read_text() == "False\n" * times
            )
            await asyncio.sleep(0.5)  # in which it gets as far as it may
            assert not calls.exists()
        await play(talk, silence(3))
        response = (await talk.until("response.done"))["response"]
        assert response["output"][0]["content"][0]["transcript"] == "It rains in Oslo."
        assert calls.read_text() == "call\n"
        assert prompts.read_text() == "False\n" * 2, "the second one was used"
        assert talk.kinds.count("response.created") == 1

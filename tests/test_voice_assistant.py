"""graphs/voice_assistant: a recording in, an answer spoken out; and speech to text of what was spoken."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ROOT, Server, start_process, until
from tests.speech import RECORDING, WHISPER, tiny_whisper, word_errors, words
from tests.voices import tiny_voice

pytestmark = pytest.mark.long

GRAPH = ROOT / "graphs/voice_assistant"
KOKORO = ROOT / "models/kokoro"
ANSWER = "Hello world, one ship left. The harbour is ready. Hello world!"
STORY = " ".join(["The ship left the harbour."] * 60)
TEMPLATE = (
    "{% if tools %}<tool_call></tool_call>{% for t in tools %}{{ t['function']['name'] }} {% endfor %}\n{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
)


def calling(expression: str) -> str:
    call = {"name": "calculate", "arguments": {"expression": expression}}
    return f"Let me see now. <tool_call>\n{json.dumps(call)}\n</tool_call>"


SCRIPT = {
    "chat_template": TEMPLATE,
    "step_seconds": 0.01,
    "replies": [
        {"match": "assistant: Hello world", "text": "You asked that before."},
        {"match": "Known facts:\ncalculate", "text": "I stop here."},
        {"match": "circle", "text": calling("6 * 7")},
        {"match": "tool: 42", "text": "It is forty two."},
        {"match": "tool: error: ", "text": "That did not work."},
        {"match": "six times seven", "text": calling("6 * 7")},
        {"match": "something wrong", "text": calling("__import__('os')")},
        {"match": "silence", "text": " "},
        {"match": "slowly", "text": ANSWER, "wait_steps": 500},
        {"match": "unhurried", "text": f"{STORY} ", "repeat": 0, "step_seconds": 0.3},
        {"match": "story", "text": STORY},
        {"text": ANSWER},
    ],
}
TEXTS = (
    "The ship left the harbour in the morning, and nobody knew when it would return.",
    "Please bring me some apples, ripe pears and a glass of cold water.",
    "The weather in the north will be warm and dry until Thursday.",
)


def tiny_assistant(place: Path) -> Path:
    """Make a directory with the shipped graph over tiny models of the three kinds."""
    tiny_whisper(place / "ears", speakable=True)
    tiny_voice(place / "mouth", work=8)
    (place / "model.script.json").write_text(json.dumps(SCRIPT))
    shutil.copytree(GRAPH, place / "graph")
    graph = place / "graph/graph.pbtxt"
    model = "qwen2.5-coder-1.5b/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
    models = {"whisper-base": "ears", model: "model.script.json", "kokoro": "mouth"}
    text = graph.read_text()
    for name, mine in models.items():
        text = text.replace(f"../../models/{name}", str(place / mine))
    graph.write_text(text)
    return graph.parent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    graph = tiny_assistant(tmp_path_factory.mktemp("assistant"))
    started = start_process(
        *("--model_name", "assistant", "--model_path", str(graph), "--metrics_enable"),
        *("--sse_ping_interval", "0.1"),
    )
    yield started
    started.stop()


def lines(server: Server, audio: bytes, **more: str) -> list[str]:
    form = {"model": "assistant", **more}
    with httpx.stream(
        "POST", f"{server.v3}/audio/assistant", data=form, files={"file": ("a", audio)}, timeout=230
    ) as answer:
        assert answer.status_code == 200, answer.read()
        return [line for line in answer.iter_lines() if line]


def ask(server: Server, audio: bytes, **more: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in lines(server, audio, **more) if line.startswith("data: ")]


def told(server: Server, instructions: str, **more: str) -> list[dict[str, Any]]:
    found = ask(server, RECORDING.read_bytes(), instructions=instructions, **more)
    return [event for event in found if event["type"] != "assistant.audio"]


def test_a_question_is_heard_thought_about_and_answered_aloud(server: Server) -> None:
    events = ask(server, RECORDING.read_bytes(), instructions="Be brief.")
    kinds = [event["type"].removeprefix("assistant.") for event in events]
    texts = [e["text"] for e in events if e["type"] == "assistant.text"]
    assert kinds[:4] == ["started", "question", "text", "audio"]
    assert set(kinds[4:-1]) <= {"text", "audio"}
    assert (kinds.count("audio") >= 3, kinds[-1]) == (True, "done"), "a sentence is spoken at a time"
    assert events[0]["conversation"].startswith("conv_")
    assert events[1]["text"]
    assert " ".join(texts) == ANSWER
    sound = b"".join(base64.b64decode(e["audio"]) for e in events if "audio" in e)
    done = events[-1]
    assert done["text"] == ANSWER
    assert len(sound) / 2 / events[3]["rate"] == pytest.approx(done["audio_seconds"], abs=0.01)


def test_the_first_sentence_is_heard_before_the_last_is_written(server: Server) -> None:
    """The last would be written after 20 minutes."""
    form = {"model": "assistant", "instructions": "unhurried"}
    files = {"file": ("a", RECORDING.read_bytes())}
    with httpx.stream("POST", f"{server.v3}/audio/assistant", data=form, files=files, timeout=230) as answer:
        assert any("assistant.audio" in line for line in answer.iter_lines())


def test_the_model_calls_tools_and_says_what_they_found(server: Server) -> None:
    events = told(server, "How much is six times seven?")
    assert [e["type"].removeprefix("assistant.") for e in events] == [
        *("started", "question", "text", "tool", "text", "done")
    ]
    assert events[3] | {"seconds": 0} == {
        "type": "assistant.tool",
        "name": "calculate",
        "arguments": '{"expression": "6 * 7"}',
        "output": "42",
        "failed": False,
        "seconds": 0,
    }
    assert events[-1]["text"] == "Let me see now. It is forty two."


def test_a_tool_that_fails_tells_the_model_why(server: Server) -> None:
    events = told(server, "Do something wrong.")
    (call,) = [e for e in events if e["type"] == "assistant.tool"]
    assert call["failed"]
    assert call["output"] == "error: ValueError: only numbers and + - * / are supported, got __import__('os')"
    assert events[-1]["text"].endswith("That did not work.")


def test_a_model_that_calls_in_circles_has_to_answer(server: Server) -> None:
    events = told(server, "Go in a circle.")
    assert [e["output"] for e in events if e["type"] == "assistant.tool"] == ["42", "42"]
    assert events[-1]["text"].endswith("I stop here.")


def test_a_conversation_goes_on_by_its_id(server: Server) -> None:
    first = told(server, "Hello.")
    id_ = first[0]["conversation"]
    assert first[0]["turns"] == 0
    assert first[-1]["text"] == ANSWER
    second = told(server, "Hello.", conversation=id_)
    assert second[0] == {"type": "assistant.started", "conversation": id_, "turns": 1}
    assert second[-1]["text"] == "You asked that before."
    assert told(server, "Hello.")[-1]["text"] == ANSWER, "another conversation"


def test_a_model_that_says_nothing_is_not_silent(server: Server) -> None:
    events = ask(server, RECORDING.read_bytes(), instructions="Keep silence.")
    kinds = [event["type"].removeprefix("assistant.") for event in events]
    assert kinds == ["started", "question", "text", "audio", "done"]
    assert events[-1]["text"] == "I have no answer to that."


def test_a_client_that_waits_gets_pings(server: Server) -> None:
    found = lines(server, RECORDING.read_bytes(), instructions="Think slowly.")
    question = next(i for i, line in enumerate(found) if "assistant.question" in line)
    said = next(i for i, line in enumerate(found) if "assistant.text" in line)
    assert found[question + 1 : said].count(": ping") >= 3


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

    form = {"model": "assistant", "instructions": "Tell a story.", "conversation": "cut-off"}
    files = {"file": ("a", RECORDING.read_bytes())}
    with httpx.stream("POST", f"{server.v3}/audio/assistant", data=form, files=files, timeout=230) as answer:
        assert any("assistant.audio" in line for line in answer.iter_lines())
    for _ in range(20):  # a sentence may be under way
        before = sentences()
        time.sleep(1)
        if sentences() == before:
            break
    assert sentences() == before < 40
    assert told(server, "Hello.", conversation="cut-off")[0]["turns"] == 1, "what was said is remembered"


def test_recordings_of_refused_requests_are_released(tmp_path: Path) -> None:
    """They have no name, so a file that stays open takes its disk space until the server ends."""
    started = start_process(
        *("--model_name", "assistant", "--model_path", str(tiny_assistant(tmp_path)), "--max_queue", "1")
    )

    def status(_: int) -> int:
        form, files = {"model": "assistant"}, {"file": ("a", RECORDING.read_bytes())}
        return httpx.post(f"{started.v3}/audio/assistant", data=form, files=files, timeout=230).status_code

    def recordings() -> list[str]:
        names = []
        for file in Path(f"/proc/{started.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                names.append(os.readlink(file))
        return [name for name in names if "ovserve-file-" in name]

    try:
        with ThreadPoolExecutor(16) as pool:
            statuses = set(pool.map(status, range(32)))
        assert statuses == {200, 503}
        until(lambda: recordings() == [], recordings)  # an answer may end before the server closes the file
    finally:
        started.stop()


def test_a_full_engine_refuses_a_recording_that_nobody_has_decoded(tmp_path: Path) -> None:
    """Decoding an hour of audio takes ten seconds of a core, for nothing."""
    started = start_process(
        *("--model_name", "assistant", "--model_path", str(tiny_assistant(tmp_path)), "--max_queue", "1")
    )

    def status(audio: bytes) -> int:
        form, files = {"model": "assistant"}, {"file": ("a", audio)}
        return httpx.post(f"{started.v3}/audio/assistant", data=form, files=files, timeout=230).status_code

    engines = started.children("ovserve.engine.worker.main")
    for pid in engines:
        os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(16) as pool:
            statuses = [pool.submit(status, RECORDING.read_bytes()) for _ in range(16)]
            assert next(as_completed(statuses)).result() == 503, "as many wait as may wait"
            refused = status(b"not audio")
            for pid in engines:
                os.kill(pid, signal.SIGCONT)
            assert refused == 503
            assert {one.result() for one in statuses} == {200, 503}
    finally:
        started.stop(signal.SIGKILL)


@pytest.mark.parametrize(
    ("fields", "file", "said"),
    [
        ({}, None, "file"),
        ({}, b"not audio", "cannot be read"),
        ({"voice": "bob"}, RECORDING, "'bob' not found"),
        ({"language": "Klingon"}, RECORDING, "Klingon"),
        ({"conversation": "a b"}, RECORDING, "conversation"),
    ],
)
def test_what_is_wrong_is_named(server: Server, fields: dict[str, str], file: Any, said: str) -> None:
    data = file.read_bytes() if isinstance(file, Path) else file
    files: Any = {"file": ("a", data)} if data else {"other": ("a", b"x")}
    answer = httpx.post(
        f"{server.v3}/audio/assistant", data={"model": "assistant", **fields}, files=files, timeout=230
    )
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


def test_a_field_without_a_meaning_is_named_in_a_header(server: Server) -> None:
    form, files = {"model": "assistant", "mood": "good"}, {"file": ("a", RECORDING.read_bytes())}
    with httpx.stream("POST", f"{server.v3}/audio/assistant", data=form, files=files, timeout=230) as answer:
        assert "mood" in answer.headers["x-ovserve-ignored-params"]


@pytest.mark.slow
@pytest.mark.skipif(
    not (KOKORO / "openvino_model.xml").is_file(),
    reason="`ovserve pull kokoro` fetches it: 326 MB, too much for CI",
)
@pytest.mark.skipif(
    not WHISPER.is_dir(), reason="`ovserve pull whisper-base` fetches it: 145 MB, too much for CI"
)
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

"""POST audio/speech on the real server and library, with a tiny voice model; OpenAI's own client, formats, streams."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.conftest import Server, start_process
from tests.voices import PER_TOKEN, RATE, tiny_voice, voice_graph

av = pytest.importorskip("av", reason="the extra `audio` encodes and decodes")
TEXT = "Hello world. The ship left the harbour. One, two, three! Hello, the ship is ready."
SENTENCES = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("speech")
    options = ("speed_min: 0.5", "speed_max: 2", "max_input_characters: 2000", 'default_voice: "bm_two"')
    for name, work, given in (("voice", 0, options), ("slow", 12, ())):
        tiny_voice(place / name, work=work)
        (place / name / "graph.pbtxt").write_text(voice_graph("./", *given))
    started = start_process("--graphs_dir", str(place), "--metrics_enable")
    yield started
    started.stop()


def post(server: Server, text: Any = TEXT, model: str = "voice", **more: Any) -> httpx.Response:
    body = {"model": model, "input": text, **more}
    return httpx.post(
        f"{server.v3}/audio/speech", json={k: v for k, v in body.items() if v is not ...}, timeout=60
    )


def seconds(data: bytes) -> float:
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    return sum(f.samples for f in frames) / frames[0].sample_rate


def test_a_wav_is_whole_by_default(server: Server) -> None:
    answer = post(server)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/wav"
    assert int(answer.headers["content-length"]) == len(answer.content)
    with wave.open(io.BytesIO(answer.content)) as audio:
        assert (audio.getframerate(), audio.getnchannels(), audio.getsampwidth()) == (RATE, 1, 2)
        assert audio.getnframes() * 2 + 44 == len(answer.content)
        assert audio.getnframes() % PER_TOKEN == 0
        assert 3 < audio.getnframes() / RATE < 10
    assert len(post(server, speed=2).content) == pytest.approx(len(answer.content) / 2, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pcm", "audio/pcm"),
        ("mp3", "audio/mpeg"),
        ("opus", "audio/ogg"),
        ("aac", "audio/aac"),
        ("flac", "audio/flac"),
    ],
)
def test_each_format_has_the_audio_and_its_type(server: Server, name: str, kind: str) -> None:
    whole = (len(post(server).content) - 44) / 2 / RATE
    answer = post(server, response_format=name)
    assert answer.headers["content-type"] == kind
    found = len(answer.content) / 2 / RATE if name == "pcm" else seconds(answer.content)
    assert found == pytest.approx(whole, abs=0.15)  # coders begin and end with part of a frame


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line:
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("name", ["wav", "opus"])
def test_the_first_audio_comes_before_the_second_sentence_is_spoken(server: Server, name: str) -> None:
    body = {"model": "slow", "input": TEXT, "response_format": name, "stream_format": "sse"}
    began, at, audio = time.monotonic(), [], b""
    with httpx.stream("POST", f"{server.v3}/audio/speech", json=body, timeout=60) as response:
        assert response.headers["content-type"] == "text/event-stream"
        for event in events(response):
            at.append(time.monotonic() - began)
            if event["type"] == "speech.audio.delta":
                audio += base64.b64decode(event["audio"])
    assert event["type"] == "speech.audio.done"
    assert event["usage"]["input_tokens"] == len(TEXT)
    assert len(at) >= SENTENCES
    assert at[0] < 0.5 * at[-1], "four sentences take the same time; the first is a quarter of it"
    assert seconds(audio) == pytest.approx(event["usage"]["output_tokens"] / 10, abs=0.2)


def test_openai_s_client_streams_and_saves(server: Server, tmp_path: Any) -> None:
    client = openai.OpenAI(base_url=server.v3, api_key="none")
    whole = client.audio.speech.create(model="voice", voice="one", input=TEXT, response_format="mp3")
    whole.write_to_file(tmp_path / "a.mp3")
    assert seconds((tmp_path / "a.mp3").read_bytes()) > 3
    began = time.monotonic()
    with client.audio.speech.with_streaming_response.create(
        model="slow", voice="af_one", input=TEXT, response_format="pcm", instructions="softly"
    ) as streamed:
        assert streamed.headers["x-ovserve-ignored-params"] == "instructions"
        parts = [(time.monotonic() - began, part) for part in streamed.iter_bytes()]
    assert parts[0][0] < 0.5 * parts[-1][0]
    assert sum(len(part) for _, part in parts) == len(whole_pcm(server))


def whole_pcm(server: Server) -> bytes:
    return post(server, voice="af_one").content[44:]


def test_two_at_once_take_turns_and_a_caller_who_leaves_frees_the_engine(server: Server) -> None:
    def first_and_last(_: int) -> tuple[float, float]:
        began = time.monotonic()
        body = {"model": "slow", "input": TEXT, "stream_format": "sse"}
        with httpx.stream("POST", f"{server.v3}/audio/speech", json=body, timeout=60) as response:
            at = [time.monotonic() - began for _ in events(response)]
        return at[0], at[-1]

    with ThreadPoolExecutor(2) as pool:
        two = list(pool.map(first_and_last, range(2)))
    assert max(first for first, _ in two) < min(last for _, last in two), "neither waits for all of the other"
    alone = first_and_last(0)[1]
    body = {"model": "slow", "input": " ".join([TEXT] * 20), "stream_format": "sse"}
    with httpx.stream("POST", f"{server.v3}/audio/speech", json=body, timeout=60) as response:
        next(events(response))
    began = time.monotonic()
    assert post(server, "Hello world.", model="slow").status_code == 200
    assert time.monotonic() - began < 2 * alone, "the 79 sentences of a client that left are not spoken"


def test_voices_are_listed_and_found_by_their_short_names(server: Server) -> None:
    listed = httpx.get(f"{server.v3}/audio/voices", params={"model": "voice"}).json()["voices"]
    assert listed == [
        {"id": "af_one", "name": "af_one", "model": "voice", "language": "en-us", "default": False},
        {"id": "bm_two", "name": "bm_two", "model": "voice", "language": "en-gb", "default": True},
    ]
    assert len(httpx.get(f"{server.v3}/audio/voices").json()["voices"]) == 4
    assert httpx.get(f"{server.v3}/audio/voices", params={"model": "none"}).status_code == 404
    for voice in ("af_one", "one", "AF_ONE", {"id": "af_one"}, None, ...):
        assert post(server, "Hello.", voice=voice).status_code == 200
    (speech,) = httpx.get(f"{server.v3}/capabilities", params={"model": "voice"}).json()["data"]
    assert speech["engines"][0]["facts"]["default_voice"] == "bm_two"


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"input": ""}, "input", "expected text"),
        ({"input": " \n\t"}, "input", "expected text"),
        ({"input": "\U0001f600\U0001f600"}, "input", "nothing to speak"),
        ({"input": "!?."}, "input", "nothing to speak"),
        ({"input": "\u4f60\u597d"}, "input", "nothing to speak"),
        ({"input": ...}, "input", "missing"),
        ({"input": 7}, "input", "7"),
        ({"input": ["a"]}, "input", "expected"),
        ({"input": "a" * 2001}, "input", "at most 2000 characters, got 2001"),
        ({"input": "Hello. " * 150_000}, "input", "at most 2000 characters"),
        ({"voice": "bob"}, "voice", "'bob' not found in available voices: af_one, bm_two"),
        ({"voice": "x" * 100_000}, "voice", "not found"),
        ({"voice": 5}, "voice", "expected"),
        ({"voice": ""}, "voice", "not found"),
        ({"speed": 0.4}, "speed", "between speed_min (0.5) and speed_max (2), got 0.4"),
        ({"speed": -1}, "speed", "got -1"),
        ({"speed": "fast"}, "speed", "expected"),
        ({"speed": 1e300}, "speed", "between"),
        ({"language": "xx"}, "language", "en-us, en-gb"),
        ({"language": 1}, "language", "expected"),
        ({"response_format": "ogg"}, "response_format", "aac, flac, mp3, opus, pcm, wav"),
        ({"stream_format": "websocket"}, "stream_format", "audio, sse"),
        ({"stream": True, "stream_format": "audio"}, "stream", "leave one out"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_named(server: Server, given: dict[str, Any], field: str, said: str) -> None:
    text = given.pop("input", TEXT) if "input" in given else TEXT
    answer = post(server, text, **given)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], said in error["message"]) == (field, True), error
    assert len(answer.content) < 1000


@pytest.mark.parametrize("speed", ["NaN", "Infinity", "1e999", "-Infinity"])
def test_a_speed_that_is_no_number_is_rejected(server: Server, speed: str) -> None:
    body = f'{{"model": "voice", "input": "Hello.", "speed": {speed}}}'
    answer = httpx.post(f"{server.v3}/audio/speech", content=body)
    assert answer.status_code == 400


def test_metrics_count_what_was_spoken(server: Server) -> None:
    def values() -> dict[str, float]:
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        found = [
            line for line in lines if line.startswith("ovserve_text_to_speech_") and 'name="voice"' in line
        ]
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in found}

    before = values()
    audio = post(server, "Hello world. The ship left the harbour.").content
    change = {name: value - before[name] for name, value in values().items()}
    assert change["ovserve_text_to_speech_characters_total"] == 38
    assert change["ovserve_text_to_speech_sentences_total"] == 2
    assert change["ovserve_text_to_speech_audio_seconds_total"] == pytest.approx((len(audio) - 44) / 2 / RATE)
    assert change["ovserve_text_to_speech_busy_seconds_total"] > 0
    assert change["ovserve_text_to_speech_first_audio_seconds_count"] == 1
    assert change["ovserve_text_to_speech_turn_seconds_count"] == 2


def test_a_killed_engine_ends_a_stream_and_the_next_request_is_answered(server: Server) -> None:
    body = {"model": "slow", "input": " ".join([TEXT] * 5), "response_format": "pcm"}
    with httpx.stream("POST", f"{server.v3}/audio/speech", json=body, timeout=60) as response:
        parts = response.iter_bytes()
        assert next(parts)
        for pid in server.children("ovserve.engine.worker"):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            b"".join(parts)
    assert post(server, "Hello world.", model="slow").status_code == 200


def test_odd_texts_are_spoken(server: Server) -> None:
    for text in (
        "Hello \U0001f600 world",
        "a\x00b hello",
        "Hello\r\n\r\nworld",
        "9" * 300,
        "hello " * 300,
        "\u202ehello",
    ):
        answer = post(server, text)
        assert answer.status_code == 200, (text, answer.text)
        assert len(answer.content) > 44
    answer = httpx.post(f"{server.v3}/audio/speech", content=b'{"model": "voice", "input": "\\ud800"}')
    assert answer.status_code == 400

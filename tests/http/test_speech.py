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
from typing import Any, Literal, get_args, get_origin

import httpx
import openai
import pytest
from openai.types.realtime.realtime_audio_config_output import Voice

from ovserve.engine.host.memory import cpu_seconds, resident
from tests.conftest import Server, start_process
from tests.voices import PER_TOKEN, RATE, tiny_voice, voice_graph

av = pytest.importorskip("av", reason="the extra `audio` encodes and decodes")
TEXT = "Hello world. The ship left the harbour. One, two, three! Hello, the ship is ready."
SENTENCES = 4
LONG = " ".join([TEXT] * 400)  # 1,600 sentences, which keep the slow model busy for minutes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("speech")
    most = "max_input_characters: 100000"
    options = ("speed_min: 0.5", "speed_max: 2", "max_input_characters: 2000", 'default_voice: "bm_two"')
    for name, work, given in (("voice", 0, options), ("slow", 12, (most,))):
        tiny_voice(place / name, work=work)
        (place / name / "graph.pbtxt").write_text(voice_graph("./", *given))
    started = start_process("--graphs_dir", str(place), "--metrics_enable")
    yield started
    started.stop()


def post(server: Server, text: Any = TEXT, model: str = "voice", **more: Any) -> httpx.Response:
    body = {"model": model, "input": text, **more}
    return httpx.post(
        f"{server.v3}/audio/speech", json={k: v for k, v in body.items() if v is not ...}, timeout=230
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


def test_a_long_wav_is_not_kept_in_memory(server: Server) -> None:
    numbers = "9" * 2000  # as many words
    known = post(server, numbers[:20], speed=0.5).content
    before = resident(server.process.pid)
    body = {"model": "voice", "input": numbers, "speed": 0.5}
    most = size = 0
    with httpx.stream("POST", f"{server.v3}/audio/speech", json=body, timeout=230) as answer:
        assert answer.headers["content-type"] == "audio/wav"
        for piece in answer.iter_bytes():
            size, most = size + len(piece), max(most, resident(server.process.pid))
    assert size == int(answer.headers["content-length"]) > 40e6
    assert size == pytest.approx(100 * len(known), rel=0.3)
    assert most - before < 1.3 * size, (
        "it is on disk until its size is known; parts of it are in shared memory"
    )


def test_a_long_wav_is_one_tensor_over_kserve(server: Server) -> None:
    body = {"input": "9" * 400, "response_format": "wav"}
    whole = post(server, **{"text": body["input"]}).content
    assert len(whole) > 4 << 20
    given = {"name": "input", "shape": [1], "datatype": "BYTES", "data": [json.dumps(body)]}
    outputs = [{"name": "output", "parameters": {"binary_data": True}}]
    asked = {"inputs": [given], "outputs": outputs, "parameters": {"endpoint": "audio/speech"}}
    answer = httpx.post(f"{server.url}/v2/models/voice/infer", json=asked, timeout=230)
    assert answer.status_code == 200, answer.text
    assert answer.content.endswith(whole)


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


def test_a_flac_says_how_long_it_is(server: Server) -> None:
    """libsndfile refuses a file that does not."""
    wanted = (len(post(server).content) - 44) // 2
    whole, streamed = (
        post(server, response_format="flac", **more).content for more in ({}, {"stream_format": "audio"})
    )
    assert int.from_bytes(whole[18:26], "big") & ((1 << 36) - 1) == wanted  # of STREAMINFO, RFC 9639
    assert int.from_bytes(streamed[18:26], "big") & ((1 << 36) - 1) == 0
    with av.open(io.BytesIO(whole)) as container:
        assert container.duration == pytest.approx(wanted / RATE * 1e6, abs=1)
    assert seconds(whole) == wanted / RATE


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line:
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("name", ["wav", "opus"])
def test_the_first_audio_comes_before_the_second_sentence_is_spoken(server: Server, name: str) -> None:
    body = {"model": "slow", "input": TEXT, "response_format": name, "stream_format": "sse"}
    count, audio = 0, b""
    with httpx.stream("POST", f"{server.v3}/audio/speech", json=body, timeout=230) as response:
        assert response.headers["content-type"] == "text/event-stream"
        for event in events(response):
            count += 1
            if event["type"] == "speech.audio.delta":
                audio += base64.b64decode(event["audio"])
    assert event["type"] == "speech.audio.done"
    assert event["usage"]["input_tokens"] == len(TEXT)
    assert count >= SENTENCES
    assert seconds(audio) == pytest.approx(event["usage"]["output_tokens"] / 10, abs=0.2)
    with httpx.stream(
        "POST", f"{server.v3}/audio/speech", json=body | {"input": LONG}, timeout=230
    ) as response:
        assert next(events(response))["type"] == "speech.audio.delta"


def test_openai_s_client_streams_and_saves(server: Server, tmp_path: Any) -> None:
    client = openai.OpenAI(base_url=server.v3, api_key="none")
    whole = client.audio.speech.create(model="voice", voice="one", input=TEXT, response_format="mp3")
    whole.write_to_file(tmp_path / "a.mp3")
    assert seconds((tmp_path / "a.mp3").read_bytes()) > 3
    with client.audio.speech.with_streaming_response.create(
        model="slow", voice="af_one", input=TEXT, response_format="pcm", instructions="softly"
    ) as streamed:
        assert streamed.headers["x-ovserve-ignored-params"] == "instructions"
        assert sum(map(len, streamed.iter_bytes())) == len(whole_pcm(server))
    with client.with_options(timeout=230).audio.speech.with_streaming_response.create(
        model="slow", voice="af_one", input=LONG, response_format="pcm"
    ) as streamed:
        assert next(iter(streamed.iter_bytes())), "it comes long before the last is spoken"


def whole_pcm(server: Server) -> bytes:
    return post(server, voice="af_one").content[44:]


def test_two_at_once_take_turns_and_a_caller_who_leaves_frees_the_engine(server: Server) -> None:
    body = {"model": "slow", "input": LONG, "stream_format": "sse"}
    with httpx.stream("POST", f"{server.v3}/audio/speech", json=body, timeout=230) as response:
        assert next(events(response))
        assert post(server, model="slow").status_code == 200, "it does not wait for all of the other"
    pids = server.children("ovserve.engine.worker")
    for _ in range(30):  # the rest of a client that left is not spoken
        before = sum(cpu_seconds(pid) or 0 for pid in pids)
        time.sleep(1)
        if (used := sum(cpu_seconds(pid) or 0 for pid in pids) - before) < 0.2:
            break
    assert used < 0.2


def test_voices_are_listed_and_found_by_their_short_names(server: Server) -> None:
    listed = httpx.get(f"{server.v3}/audio/voices", params={"model": "voice"}).json()["voices"]
    assert listed == [
        {"id": "af_one", "name": "af_one", "model": "voice", "language": "en-us", "default": False},
        {"id": "bm_two", "name": "bm_two", "model": "voice", "language": "en-gb", "default": True},
    ]
    assert len(httpx.get(f"{server.v3}/audio/voices").json()["voices"]) == 4
    assert httpx.get(f"{server.v3}/audio/voices", params={"model": "none"}).status_code == 404
    for voice in ("af_one", "one", "AF_ONE", {"id": "af_one"}, None, ...):
        answer = post(server, "Hello.", voice=voice)
        assert answer.status_code == 200
        assert "x-ovserve-adapted" not in answer.headers
    (speech,) = httpx.get(f"{server.v3}/capabilities", params={"model": "voice"}).json()["data"]
    assert speech["engines"][0]["facts"]["default_voice"] == "bm_two"


def test_each_voice_that_openai_s_client_knows_is_spoken(server: Server) -> None:
    (voices,) = (get_args(kind) for kind in get_args(Voice) if get_origin(kind) is Literal)
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:
        for voice in (*voices, "onyx", "SHIMMER"):
            answer = client.audio.speech.create(model="voice", input="Hello.", voice=voice)
            assert seconds(answer.content) > 0
            assert answer.response.headers["x-ovserve-adapted"] == f"voice:{voice}=bm_two"
            events = post(server, "Hello.", voice=voice, stream_format="sse")
            assert events.headers["x-ovserve-adapted"] == f"voice:{voice}=bm_two"


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"input": ""}, "input", "expected text"),
        ({"input": " \n\t"}, "input", "expected text"),
        ({"input": "!?."}, "input", "nothing to speak"),
        ({"input": "\u2026\u200b\u00bf"}, "input", "nothing to speak"),
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
    with httpx.stream("POST", f"{server.v3}/audio/speech", json=body, timeout=230) as response:
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
    half = b'{"model": "voice", "input": "hello \\ud83d"}'  # of an emoji, which counts as U+FFFD
    assert httpx.post(f"{server.v3}/audio/speech", content=half).status_code == 200

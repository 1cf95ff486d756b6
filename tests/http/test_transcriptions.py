"""POST audio/transcriptions and translations on the real server, with a tiny random model that hears letters.

`tests/engine/speech/test_whisper.py` has the real model.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai._models import validate_type
from openai.types.audio import TranscriptionStreamEvent

from tests.conftest import Server, start_process
from tests.speech import RATE, RECORDING, graph, samples, tiny_whisper, wav

pytestmark = pytest.mark.long

WORDS = "enable_word_timestamps: true"
F32 = 'plugin_config: \'{"INFERENCE_PRECISION_HINT": "f32"}\''
NOISE = np.random.default_rng(3).normal(0, 900, 5 * RATE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("speech")
    (place / "plain").mkdir()
    (place / "plain/graph.pbtxt").write_text(graph("../ear", F32, loopback=False))
    tiny_whisper(place / "ear")
    (place / "ear/graph.pbtxt").write_text(graph("./", F32, WORDS))
    server = start_process("--graphs_dir", str(place), "--metrics_enable", "--max_audio_seconds", "600")
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:
        yield client


def post(
    server: Server, data: bytes | None = None, to: str = "transcriptions", **fields: Any
) -> httpx.Response:
    files = {"file": ("a.wav", wav(samples()) if data is None else data)}
    fields = {"model": "ear"} | fields
    return httpx.post(f"{server.v3}/audio/{to}", files=files, data=fields, timeout=230)


def metric(server: Server, name: str) -> float:
    """The value for the servable "ear"."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{") and '"ear"' in line)


def error(answer: httpx.Response) -> tuple[int, str, str]:
    detail = answer.json()["error"]
    return answer.status_code, detail["param"], detail["message"]


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]


def test_openai_s_client_gets_each_form(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> Any:
        return client.audio.transcriptions.create(model="ear", file=RECORDING, language="en", **more)

    text = ask().text
    assert text
    assert ask(response_format="text").rstrip("\n") == text
    verbose = ask(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert verbose.task == "transcribe"
    assert verbose.language == "english"
    assert verbose.duration == pytest.approx(len(samples()) / RATE, abs=0.1)
    assert verbose.segments
    assert all(0 <= s.start <= s.end <= verbose.duration + 0.1 for s in verbose.segments)
    assert all(s.tokens is s.avg_logprob is s.no_speech_prob is None for s in verbose.segments)
    assert all(s.compression_ratio > 0 for s in verbose.segments if s.text)
    assert [s.id for s in verbose.segments] == list(range(len(verbose.segments)))
    assert verbose.words is not None
    srt, vtt = ask(response_format="srt"), ask(response_format="vtt")
    assert srt.startswith("1\n00:00:")
    assert " --> " in srt
    assert vtt.startswith("WEBVTT\n\n00:00:")
    with pytest.warns(DeprecationWarning, match="deprecated"):  # the client's own, of its overloads
        assert client.audio.translations.create(model="ear", file=RECORDING).text


def test_openai_s_client_streams(client: openai.OpenAI) -> None:
    stream = client.audio.transcriptions.create(model="ear", file=RECORDING, stream=True)
    made = list(stream)
    assert [e.type for e in made[-2:]] == ["transcript.text.delta", "transcript.text.done"]
    assert made[-1].text == "".join(e.delta for e in made[:-1])
    assert len(made) > 2  # random weights: their text depends on the processor


def test_a_stream_has_the_text_of_the_whole_answer_and_no_done_line(server: Server) -> None:
    whole = post(server).json()
    streamed = events(post(server, stream="true"))
    assert "[DONE]" not in post(server, stream="True").text
    assert streamed[-1]["text"].strip() == whole["text"]
    assert whole["usage"] == {"type": "duration", "seconds": -(-len(samples()) // RATE)}
    for fields in ({"timestamp_granularities[]": "segment"}, {"response_format": "verbose_json"}):
        made = events(post(server, stream="1", **fields))
        for event in (*streamed, *made):
            assert validate_type(type_=TranscriptionStreamEvent, value=event).type == event["type"]
        segments = [e for e in made if "start" in e]
        assert [e["id"] for e in segments] == [f"seg_{i}" for i in range(len(segments))]
        assert segments


def test_silence_and_noise_have_no_words(server: Server) -> None:
    for quiet in (np.zeros(3 * RATE), NOISE, np.zeros(200)):
        assert post(server, wav(quiet)).json()["text"] == ""
    assert post(server, wav(NOISE), response_format="vtt").text == "WEBVTT\n\n"
    (done,) = events(post(server, wav(NOISE), stream="true"))
    assert done["text"] == ""


def test_a_long_recording_is_read_in_pieces(server: Server) -> None:
    said = samples()
    pause = np.zeros(RATE, np.int16)
    long = wav(np.concatenate([np.concatenate([said, pause])] * 16))
    before = metric(server, "ovserve_speech_pieces_total")
    made = post(server, long, response_format="verbose_json").json()
    assert metric(server, "ovserve_speech_pieces_total") - before >= 4
    starts = [s["start"] for s in made["segments"]]
    assert starts == sorted(starts)
    assert starts[-1] > 60
    assert made["segments"][-1]["end"] <= made["duration"] + 0.1


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"language": "klingon"}, "language", "is not known to the model; it knows de, en"),
        ({"temperature": "2.1"}, "temperature", "2"),
        ({"temperature": "-1"}, "temperature", "0"),
        ({"temperature": "nan"}, "temperature", ""),
        ({"temperature": "warm"}, "temperature", "warm"),
        ({"response_format": "xml"}, "response_format", "json, srt, text, verbose_json, vtt"),
        ({"response_format": "diarized_json"}, "response_format", "diarized_json"),
        ({"response_format": "srt", "stream": "true"}, "response_format", "cannot be streamed"),
        (
            {"response_format": "srt", "timestamp_granularities[]": "word"},
            "timestamp_granularities",
            "only with",
        ),
        ({"timestamp_granularities[]": "letter"}, "timestamp_granularities[0]", "segment, word"),
        ({"stream": "perhaps"}, "stream", "perhaps"),
        ({"stream": "true", "timestamp_granularities[]": "word"}, "stream", "timestamp_granularities word"),
        ({"prompt": "p" * 70_000}, "prompt", ""),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names", "not supported"),
        ({"file": "text"}, "file", "expected a file"),
        ({"model": ["ear", "ear"]}, "model", "occurs 2 times"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_a_field_that_is_wrong_is_named(server: Server, fields: Any, param: str, says: str) -> None:
    status, named, message = error(post(server, **fields))
    assert (status, named) == (400, param)
    assert says in message


def test_forms_that_are_wrong(server: Server) -> None:
    url = f"{server.v3}/audio/transcriptions"
    assert error(httpx.post(url, files={"file": ("a.wav", b"x")}))[:2] == (400, "model")
    assert httpx.post(url, json={"model": "ear"}).status_code == 415
    head = {"content-type": "multipart/form-data; boundary=x"}
    for body in (b"", b"--x", b"--y\r\n\r\n", b"--x\r\nContent-Disposition: form-data\r\n\r\nv\r\n--x--\r\n"):
        assert httpx.post(url, content=body, headers=head).status_code == 400, body
    assert httpx.post(url, content=b"", headers={"content-type": "multipart/form-data"}).status_code == 400
    nameless = httpx.post(url, data={"model": "ear"}, files={"other": ("a.wav", wav(samples()))})
    assert error(nameless)[:2] == (400, "file")
    broken = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\xfe\r\n--x--\r\n'
    assert error(httpx.post(url, content=broken, headers=head))[:2] == (400, "model")
    many = [("n", "v")] * 70
    assert httpx.post(url, data={"model": "ear"}, files=[(k, (None, v)) for k, v in many]).status_code == 400
    nine = {f"file{at}": (f"{at}.wav", b"x") for at in range(9)}
    assert error(httpx.post(url, data={"model": "ear"}, files=nine))[:2] == (400, "file8")
    unknown = post(server, model="nobody")
    assert error(unknown)[:2] == (404, "model")
    assert post(server, surprise="x").headers["x-ovserve-ignored-params"] == "surprise"


def test_parts_as_other_clients_write_them(server: Server) -> None:
    """Java's clients name Latin-1 and mean it; mail libraries encode."""
    sound = wav(samples())

    def answer(*parts: tuple[bytes, bytes]) -> httpx.Response:
        body = b"".join(
            b"--x\r\nContent-Disposition: form-data; name=" + head + b"\r\n\r\n" + value + b"\r\n"
            for head, value in ((b"model", b"ear"), (b"response_format", b"text"), *parts)
        )
        return httpx.post(
            f"{server.v3}/audio/transcriptions",
            content=body + b"--x--\r\n",
            headers={"content-type": "multipart/form-data; boundary=x"},
        )

    file = (b'file; filename="a.wav"', sound)
    wanted = answer(file).text
    assert answer((b'file; filename="\xe4.wav"\r\nContent-Type: audio/\xe4', sound)).text == wanted
    latin = b"language\r\nContent-Type: text/plain; charset=ISO-8859-1"
    assert error(answer(file, (latin, b"\xe4"))) == (
        400, "language", "language: 'ä' is not known to the model; it knows de, en",
    )  # fmt: skip
    base64 = b"\r\nContent-Transfer-Encoding: Base64"
    for parts, param, says in (
        ([file, (b'"\xe4"', b"x")], None, "a name is not UTF-8"),
        ([file, (b"prompt" + base64, b"YQ==")], "prompt", "its Content-Transfer-Encoding is not supported"),
        (
            [(file[0] + base64, b"YQ==")],
            "file",
            "its Content-Transfer-Encoding is not supported, got 'Base64'",
        ),
        ([(file[0] + b"\r\nContent-Encoding: gzip", b"x")], "file", "its Content-Encoding is not supported"),
        ([(b"file", sound)], "file", "a part that is a file has a filename"),
        ([file, (b"prompt", b"ab"), (b'"prompt[]"', b"cd")], "prompt", "not with prompt[]"),
        ([file, (b'"prompt[]"', b"cd"), (b"prompt", b"ab")], "prompt", "not with prompt[]"),
    ):
        status, named, message = error(answer(*parts))
        assert (status, named, says in message) == (400, param, True), message
    assert answer((file[0] + b"\r\nContent-Transfer-Encoding: binary", sound)).text == wanted
    cut = httpx.post(
        f"{server.v3}/audio/transcriptions",
        content=b"--x\r\nContent-Disposition: form-data; name=model\r\n\r\near",
        headers={"content-type": "multipart/form-data; boundary=x"},
    )
    assert "it ends within a part" in error(cut)[2]


def test_files_that_are_wrong(server: Server) -> None:
    for data in (b"", b"These are words and no sound. " * 9, wav(samples())[:40]):
        status, param, message = error(post(server, data))
        assert (status, param) == (400, "file"), message
    assert error(post(server, wav(np.zeros(601 * RATE))))[2].endswith("it is longer than 600 s")
    assert error(post(server, b"x" * (26 << 20)))[:2] == (400, "file")
    assert post(server, b"x" * (33 << 20)).status_code == 413


def test_a_graph_without_loopback_answers_whole(server: Server) -> None:
    assert post(server, model="plain").json()["text"]
    assert "LOOPBACK not configured" in error(post(server, model="plain", stream="true"))[2]
    words = {"timestamp_granularities[]": "word"}
    assert "word timestamps are not supported" in error(post(server, model="plain", **words))[2]


def test_languages_have_many_spellings(server: Server) -> None:
    for spelling in ("DE", "ger", "German", "de-AT"):
        made = post(server, language=spelling, response_format="verbose_json").json()
        assert made["language"] == "german", spelling


def test_lists_of_languages_and_words_as_openai_s_client_sends_them(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> tuple[Any, str | None]:
        answer = client.audio.transcriptions.with_raw_response.create(
            model="ear", file=RECORDING, response_format="verbose_json", **more
        )
        return answer.parse(), answer.headers.get("x-ovserve-ignored-params")

    assert ask(languages=["de", "en"])[1] == "languages"
    words, ignored = ask(language="en", keywords=["harbour", "ship"])
    assert ignored is None
    assert words.text == ask(language="en", extra_body={"hotwords": "harbour, ship"})[0].text
    assert words.text != ask(language="en")[0].text


def test_a_client_that_leaves_frees_the_engine(server: Server) -> None:
    long = wav(np.concatenate([samples()] * 60))
    form = httpx.Request(
        "POST", f"{server.v3}/audio/transcriptions", data={"model": "ear"}, files={"file": ("a.wav", long)}
    )
    host, port = server.v3.removeprefix("http://").split("/")[0].split(":")
    with socket.create_connection((host, int(port))) as raw:
        head = "".join(f"{k}: {v}\r\n" for k, v in form.headers.items())
        raw.sendall(f"POST /v3/audio/transcriptions HTTP/1.1\r\n{head}\r\n".encode() + form.read())
        limit = time.monotonic() + 230
        while metric(server, "ovserve_speech_open_requests") < 1:
            assert time.monotonic() < limit
            time.sleep(0.05)
    while metric(server, "ovserve_speech_open_requests"):
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert post(server).status_code == 200


def test_requests_take_turns(server: Server) -> None:
    """A short one does not wait for the end of a long one."""
    long = wav(np.concatenate([samples()] * 40))
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):  # on a busy machine all may be done when this thread looks
            slow = pool.submit(post, server, long)
            while metric(server, "ovserve_speech_open_requests") < 1 and not slow.done():
                time.sleep(0.02)
            fast = [pool.submit(post, server) for _ in range(2)]
            assert [f.result().status_code for f in fast] == [200, 200]
            overtaken = not slow.done()
            assert slow.result().status_code == 200
            if overtaken:
                break
        assert overtaken

"""Audio parts of a chat, which a speech-to-text node of the graph transcribes: two layers of the default model, and a
tiny random one that hears letters. An answer to audio has to be the answer to the same text."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.conftest import ROOT, Server, start_process
from tests.speech import RATE, graph, samples, tiny_whisper, wav

pytestmark = pytest.mark.long

F32 = 'plugin_config: \'{"INFERENCE_PRECISION_HINT": "f32"}\''
SPEECH = """
node {{
  name: "Hear"
  calculator: "SpeechModelCalculator"
  input_side_packet: "STT_NODE_RESOURCES:stt"
  node_options: {{
    [type.googleapis.com / mediapipe.S2tCalculatorOptions]: {{ models_path: "{ear}" {options} }}
  }}
}}
"""
PACKET = 'input_side_packet: "LLM_NODE_RESOURCES:llm"'
BOUND = 4 << 20
SHORT = wav(samples()[: 3 * RATE])
# The same in 2.3 MB of base64, which is parsed in a process of its own.
LARGE = wav(np.repeat(samples()[: 3 * RATE], 18), 6 * RATE, 3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, short_model: Path) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("heard")
    ear = tiny_whisper(place / "ear", speakable=True)
    (place / "ear/graph.pbtxt").write_text(graph("./", F32, loopback=False))
    for name, source in (("five", "smollm2"), ("one", "single_node"), ("deaf", "smollm2")):
        text = (ROOT / "graphs" / source / "graph.pbtxt").read_text()
        text = re.sub(r'models_path: "[^"]*"', f'models_path: "{short_model}"', text)
        # Else what is in the prefix cache may change the rounding, and with it a token.
        text, count = re.subn(r"(enable_prefix_caching: \w+)", r"\1 deterministic: true", text)
        assert count == 1
        if name != "deaf":
            assert PACKET in text
            text = text.replace(PACKET, f'{PACKET}\n  input_side_packet: "STT_NODE_RESOURCES:stt"', 1)
            text += SPEECH.format(ear=ear, options=F32)
        (place / name).mkdir()
        (place / name / "graph.pbtxt").write_text(text)
    server = start_process("--graphs_dir", str(place), "--metrics_enable", "--max_audio_bytes", str(BOUND))
    yield server
    server.stop()
    shutil.rmtree(place)


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:
        yield client


def part(data: bytes = SHORT, format_: str = "wav") -> dict[str, Any]:
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": format_},
    }


def heard(server: Server, data: bytes = SHORT) -> str:
    answer = httpx.post(
        f"{server.v3}/audio/transcriptions",
        files={"file": ("a.wav", data)},
        data={"model": "ear"},
        timeout=230,
    )
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["text"].strip()
    assert text
    return text


def ask(client: openai.OpenAI, content: Any, model: str = "five", **more: Any) -> Any:
    return client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": content}],
        temperature=0,
        max_tokens=12,
        **more,
    )


def pieces(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("ovserve_speech_pieces_total{") and f'"{name}"' in line
    )


@pytest.mark.parametrize("name", ["five", "one"])
@pytest.mark.parametrize("data", [SHORT, LARGE], ids=["short", "large body"])
def test_audio_is_answered_as_its_text(server: Server, client: openai.OpenAI, name: str, data: bytes) -> None:
    before = {"type": "text", "text": "Answer what was said:"}
    spoken = ask(client, [before, part(data)], name)
    written = ask(client, [before, {"type": "text", "text": heard(server, data)}], name)
    assert spoken.usage.prompt_tokens == written.usage.prompt_tokens
    assert spoken.choices[0].message.content == written.choices[0].message.content != ""


def test_a_stream_and_a_data_url(server: Server, client: openai.OpenAI) -> None:
    url = "data:audio/wav;base64," + base64.b64encode(SHORT).decode()
    stream = ask(client, [{"type": "audio_url", "audio_url": {"url": url}}], stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == ask(client, heard(server)).choices[0].message.content


def test_responses_hear_too_and_a_turn_before_is_not_transcribed_again(
    server: Server, client: openai.OpenAI
) -> None:
    other = wav(samples()[RATE : 4 * RATE])
    item: Any = {"role": "user", "content": [part(other)]}
    first = client.responses.create(model="one", input=[item], temperature=0, max_output_tokens=12)
    assert first.output_text == ask(client, heard(server, other), "one").choices[0].message.content
    count = pieces(server, "one")
    assert count
    second = client.responses.create(
        model="one", input="And?", previous_response_id=first.id, temperature=0, max_output_tokens=12
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert pieces(server, "one") == count


def test_four_at_once(server: Server, client: openai.OpenAI) -> None:
    clips = [wav(samples()[i * RATE : (i + 2) * RATE]) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        spoken = list(pool.map(lambda clip: ask(client, [part(clip)]), clips))
    for clip, answer in zip(clips, spoken, strict=True):
        assert answer.usage.prompt_tokens == ask(client, heard(server, clip)).usage.prompt_tokens


WHERE = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("wrong", "param", "why"),
    [
        (part(b"not audio at all" * 9), f"{WHERE}.input_audio.data", "the audio cannot be read"),
        (part(wav(samples()[:80])), f"{WHERE}.input_audio.data", "too short"),
        (part(SHORT, "vinyl"), f"{WHERE}.input_audio.format", "expected one of wav, mp3"),
        ({"type": "input_audio", "input_audio": {"data": "%%%", "format": "wav"}}, f"{WHERE}.input_audio.data", "expected base64"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, f"{WHERE}.input_audio.data", "empty string"),
        ({"type": "input_audio"}, f"{WHERE}.input_audio.data", "required, but missing"),
        ({"type": "audio_url", "audio_url": {"url": "http://127.0.0.1:1/a.wav"}}, f"{WHERE}.audio_url.url", "expected a data URL"),
        (part(b"\0" * (BOUND + 1000)), f"{WHERE}.input_audio.data", "more than the 4194304"),
    ],
    ids=["noise", "short", "format", "base64", "empty", "missing", "http", "large"],
)  # fmt: skip
def test_what_cannot_be_heard_is_an_error_that_names_it(
    client: openai.OpenAI, wrong: dict[str, Any], param: str, why: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, [wrong])
    assert caught.value.param == param
    assert why in caught.value.message


def test_parts_have_a_bound(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="65 parts of audio, of at most 64") as caught:
        ask(client, [part(wav(samples()[:400]))] * 65)
    assert caught.value.param == "messages[0].content[64].input_audio.data"


def test_a_graph_without_ears_and_a_count_say_so(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="a graph with a speech-to-text node") as caught:
        ask(client, [part()], "deaf")
    assert caught.value.param == f"{WHERE}.input_audio.data"
    counted = httpx.post(
        f"{server.v3}/responses/input_tokens",
        json={"model": "five", "input": [{"role": "user", "content": [part()]}]},
        timeout=230,
    )
    assert counted.status_code == 400
    assert "speech-to-text" in counted.json()["error"]["message"]

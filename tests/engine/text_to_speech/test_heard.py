"""Kokoro's speech as whisper-base hears it: the words of the text, whatever signs it is written with."""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from ovserve.kinds.voice.worker.normalize import normalize
from tests.conftest import ROOT, Server, start_process
from tests.speech import RATE, graph, wav, whisper, word_errors
from tests.voices import voice_graph

KOKORO = ROOT / "models/kokoro"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not KOKORO.is_dir(), reason="`ovserve pull kokoro` fetches the model"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("heard")
    for name, text in (("voice", voice_graph(str(KOKORO))), ("ear", graph(str(whisper())))):
        (place / name).mkdir()
        (place / name / "graph.pbtxt").write_text(text)
    started = start_process("--graphs_dir", str(place))
    yield started
    started.stop()


def heard(server: Server, text: str) -> str:
    body = {"model": "voice", "input": text, "voice": "af_heart"}
    answer = httpx.post(f"{server.v3}/audio/speech", json=body, timeout=230)
    assert answer.status_code == 200, answer.text
    with wave.open(io.BytesIO(answer.content)) as audio:
        samples = np.frombuffer(audio.readframes(audio.getnframes()), "<i2")
        step = audio.getframerate() / RATE
    at = np.arange(int(len(samples) / step)) * step
    resampled = np.interp(at, np.arange(len(samples)), samples).astype("<i2")
    files = {"file": ("a.wav", wav(resampled))}
    made = httpx.post(
        f"{server.v3}/audio/transcriptions", files=files, data={"model": "ear", "language": "en"}, timeout=230
    )
    assert made.status_code == 200, made.text
    return str(made.json()["text"])


def plain(text: str) -> str:
    """Words alone: the recognizer writes digits and signs where it hears their names."""
    return " ".join(re.findall(r"[a-z']+", normalize(text).lower().replace(" and ", " ")))


@pytest.mark.parametrize(
    "text",
    [
        "We met at the café near the river yesterday evening.",
        "Finally, the ﬁrst ofﬁce opened in ｗｉｄｅ letters.",
        "They played rock & roll -- really loud music -- until midnight.",
        "The ticket to the museum costs €50 for adults.",
        "Last night it was −5 degrees in the old town.",
        "The parcel weighs 5 kg and the truck drives 80 km/h.",
        "Please read pages 40-60 before the lesson.",
        "The company paid $1.2 million for the house.",
        "About 20% of the 1,234 visitors came from Spain.",
        "You can send a message to john@example.com before Friday.",
    ],
)
def test_what_is_written_is_heard(server: Server, text: str) -> None:
    said = plain(text)
    made = plain(heard(server, text))
    assert word_errors(said, made) <= 1 + len(said.split()) // 6, (said, made)

"""A voice whose memory has grown is loaded again between two sentences, and speaks on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ovserve.engine.protocol.call_backend import Invocation
from ovserve.engine.protocol.messages import Call
from ovserve.kinds.voice.spec import SPEAK, SpeakArguments, TextToSpeechSpec
from ovserve.kinds.voice.worker import pipeline
from ovserve.kinds.voice.worker.backend import TextToSpeechBackend
from tests.conftest import until
from tests.voices import tiny_voice


def speak(backend: TextToSpeechBackend) -> bytes:
    arguments = SpeakArguments("Hello world. The ship left.", "af_one", "en-us")
    results = [*backend.call(Invocation(Call(1, SPEAK, msgspec.msgpack.encode(arguments), ())))]
    assert results[-1].last
    return b"".join(bytes(blob) for result in results for blob in result.blobs)


def test_a_voice_that_has_grown_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    backend = TextToSpeechBackend(TextToSpeechSpec(str(tiny_voice(tmp_path / "voice"))))
    loaded = backend._pipeline._pipeline
    audio = speak(backend)
    assert not backend._pipeline.has_grown
    monkeypatch.setattr(pipeline, "MAX_GROWTH", -(10**15))
    assert speak(backend) == audio
    until(lambda: backend._pipeline._pipeline is not loaded)
    monkeypatch.setattr(pipeline, "MAX_GROWTH", 10**15)
    assert speak(backend) == audio

    monkeypatch.setattr(pipeline, "MAX_GROWTH", -(10**15))
    (tmp_path / "voice" / "openvino_model.xml").unlink()
    loaded = backend._pipeline._pipeline
    assert speak(backend) == audio
    until(lambda: "was not loaded again" in capfd.readouterr().err)
    assert backend._pipeline._pipeline is loaded
    assert speak(backend) == audio, "the old one stays"

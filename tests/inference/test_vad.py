"""Voice activity with its real model and the shipped client: speech is found, and each client has its own state."""

from __future__ import annotations

import array
import importlib.util
import math
import wave
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import ROOT, Server, start_process

MODEL = ROOT / "models/vad"
RATE = 16_000
VOWELS = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480)]  # formants in Hz

pytestmark = pytest.mark.skipif(
    not (MODEL / "1/model.onnx").is_file(),
    reason="`ovserve pull vad` fetches its model, 11 MB; CI has it by `make setup-dev`",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = start_process("--model_name", "vad", "--model_path", str(MODEL))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vad_client", ROOT / "examples/08_vad_client.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def voice(seconds: float) -> list[float]:
    """Four vowels in turn: pulses of a changing pitch through three resonances each."""
    count, phase, pulses = int(seconds * RATE), 0.0, []
    for i in range(count):
        phase += (120 + 20 * math.sin(6 * math.pi * i / RATE)) / RATE
        pulses.append(1.0 if phase >= 1 else 0.0)
        phase %= 1
    made = [0.0] * count
    for formant, gain in enumerate((1.0, 0.6, 0.3)):
        decay = math.exp(-math.pi * (60 + 30 * formant) / RATE)
        one = two = 0.0
        for i, pulse in enumerate(pulses):
            hertz = VOWELS[i * 6 // RATE % 4][formant]
            now = pulse * (1 - decay) + 2 * decay * math.cos(math.tau * hertz / RATE) * one - decay**2 * two
            one, two = now, one
            made[i] += now * gain
    most = max(map(abs, made))
    return [value / most / 2 for value in made]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second of silence, a second and a half of voice, a second of silence."""
    path = tmp_path_factory.mktemp("vad") / "voice.wav"
    samples = [0.0] * RATE + voice(1.5) + [0.0] * RATE
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(array.array("h", [int(s * 32767) for s in samples]).tobytes())
    return path


def test_speech_is_found_where_it_is(server: Server, client: ModuleType, recording: Path) -> None:
    listener = client.Listener(server.url)
    heard = list(map(listener.hear, client.windows(str(recording))))
    listener.close()
    ((begin, end),) = client.segments(iter(heard))
    assert begin == pytest.approx(1.0, abs=0.2)
    assert end == pytest.approx(2.5, abs=0.2)
    assert max(heard[:28]) < 0.1


def test_two_streams_do_not_hear_each_other(server: Server, client: ModuleType, recording: Path) -> None:
    silence = bytes(4 * client.WINDOW)
    alone, first, second = (client.Listener(server.url) for _ in range(3))
    windows = list(client.windows(str(recording)))[28:60]
    expected = [alone.hear(window) for window in windows]
    together = [(first.hear(window), second.hear(silence)) for window in windows]
    assert [one for one, _ in together] == pytest.approx(expected, abs=1e-5)
    assert max(other for _, other in together) < 0.1
    for listener in (alone, first, second):
        listener.close()

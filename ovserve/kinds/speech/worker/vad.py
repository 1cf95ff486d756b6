"""Voice activity: the probability of speech in each 32 ms of audio, by Silero's model in OpenVINO.

The model, silero_vad_16k_sequence.onnx next to this file, takes all windows at once: 28 s of audio cost 20 ms
of one core (2026-11-22, EPYC with avx512), so no audio is read twice for fear of the cost.
Source: https://github.com/snakers4/silero-vad 6.2.3 (MIT, its licence is next to this file), read 2026-11-22
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovserve.engine.host.device_properties import device_properties
from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.engine.protocol.specs import Facts
from ovserve.errors import InvalidArgument
from ovserve.kinds.speech.spec import ACTIVITY, RATE, VAD_FRAME, VAD_MODEL, VoiceActivitySpec

NARROW_HZ = 4800  # a telephone has nothing above it, whatever filter made 16 kHz of it
NOTHING_RMS = 2 / 32768  # the rounding of 16 bits
FRAME, CONTEXT, STATE = VAD_FRAME, 64, 128  # samples, samples of the frame before, width of the state

Samples = NDArray[np.float32]


class VoiceActivity:
    def __init__(self) -> None:
        core = ov.Core()
        settings = device_properties("", "CPU") | {
            "INFERENCE_NUM_THREADS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self._request = core.compile_model(core.read_model(VAD_MODEL), "CPU", settings).create_infer_request()
        self._lock = threading.Lock()  # a request object serves one thread at a time

    def probabilities(self, audio: Samples) -> Samples:
        """Return a value from 0 to 1 for each frame; the last frame is filled with zeros."""
        return self.continued(audio, b"")[0]

    def continued(self, audio: Samples, state: bytes) -> tuple[Samples, bytes]:
        """Return the same for audio that goes on where `state` was returned, and the state after it."""
        audio = widened(audio)
        count = -(-audio.size // FRAME)
        if not count:
            return np.zeros(0, np.float32), state
        before = np.frombuffer(state, np.float32) if state else np.zeros(2 * STATE + CONTEXT, np.float32)
        h, c = before[: 2 * STATE].reshape(2, 1, 1, STATE)
        frames = np.zeros((count, CONTEXT + FRAME), np.float32)
        body = np.zeros((count, FRAME), np.float32)
        body.reshape(-1)[: audio.size] = audio
        frames[:, CONTEXT:] = body
        frames[0, :CONTEXT] = before[2 * STATE :]
        frames[1:, :CONTEXT] = body[:-1, -CONTEXT:]
        with self._lock:
            outputs = self._request.infer({"input": frames, "h": h, "c": c})
            values = np.array(outputs["speech_probs"], np.float32).reshape(-1)
            parts = (outputs["hn"].reshape(-1), outputs["cn"].reshape(-1), body[-1, -CONTEXT:])
            return values, np.concatenate(parts).astype(np.float32).tobytes()


def widened(audio: Samples) -> Samples:
    """Return telephone speech with a mirror image of it above 4 kHz, and other audio as it is.

    The model takes clean speech that has nothing there for silence."""
    if audio.size < FRAME:
        return audio
    # By Parseval: its energy is twice that of these lines, divided by the length; Hann's window takes 5/8.
    above = np.fft.rfft(audio * np.hanning(audio.size))[NARROW_HZ * audio.size // RATE :]
    if 2 * np.sum(np.abs(above) ** 2) > 0.375 * (NOTHING_RMS * audio.size) ** 2:
        return audio
    wide = audio.copy()
    between = wide[1:-1:2]
    between[:] = (audio[0::2][: between.size] + audio[2::2][: between.size]) / 2
    return wide


class VoiceActivityBackend:
    """Voice activity of streams: each call brings the state of its stream and takes it away."""

    def __init__(self, spec: VoiceActivitySpec) -> None:
        self._voice = VoiceActivity()
        self.facts = Facts(engine=f"openvino {ov.__version__.partition('-')[0]}")

    def call(self, invocation: Invocation) -> Iterator[Any]:
        if invocation.method != ACTIVITY:
            raise InvalidArgument(f"method: expected {ACTIVITY}, got {invocation.method}")
        audio = np.frombuffer(invocation.blobs[0], "<i2").astype(np.float32) / np.float32(32768)
        values, state = self._voice.continued(audio, bytes(invocation.blobs[1]))
        yield Result(values.tolist(), (state,), last=True)

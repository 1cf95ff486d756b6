"""Voice activity: the probability of speech in each 32 ms of audio, by Silero's model in OpenVINO.

The model, silero_vad_16k_sequence.onnx next to this file, takes all windows at once: 28 s of audio cost 20 ms
of one core (2026-11-22, EPYC with avx512), so no audio is read twice for fear of the cost.
Source: https://github.com/snakers4/silero-vad 6.2.3 (MIT, its licence is next to this file), read 2026-11-22
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovserve.engine.host.device_properties import device_properties

MODEL = Path(__file__).with_name("silero_vad_16k_sequence.onnx")
FRAME, CONTEXT, STATE = 512, 64, 128  # samples, samples of the frame before, width of the state

Samples = NDArray[np.float32]


class VoiceActivity:
    def __init__(self) -> None:
        core = ov.Core()
        settings = device_properties("", "CPU") | {
            "INFERENCE_NUM_THREADS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self._request = core.compile_model(core.read_model(MODEL), "CPU", settings).create_infer_request()
        self._lock = threading.Lock()  # a request object serves one thread at a time

    def probabilities(self, audio: Samples) -> Samples:
        """Return a value from 0 to 1 for each frame; the last frame is filled with zeros."""
        count = -(-audio.size // FRAME)
        if not count:
            return np.zeros(0, np.float32)
        frames = np.zeros((count, CONTEXT + FRAME), np.float32)
        body = np.zeros((count, FRAME), np.float32)
        body.reshape(-1)[: audio.size] = audio
        frames[:, CONTEXT:] = body
        frames[1:, :CONTEXT] = body[:-1, -CONTEXT:]
        zeros = np.zeros((1, 1, STATE), np.float32)
        with self._lock:
            found = self._request.infer({"input": frames, "h": zeros, "c": zeros})["speech_probs"]
            return np.array(found, np.float32).reshape(-1)

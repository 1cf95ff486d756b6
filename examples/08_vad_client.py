"""Finds speech in a recording, window by window, with a plain model whose state the client keeps.

    ovserve pull vad
    ovserve serve --model_name vad --model_path models/vad
    python examples/08_vad_client.py speech.wav

The model takes 32 ms of audio at 16 kHz, with the last 4 ms of the window before, and a state of 256 numbers.
It returns the state for the next window, so any number of clients can listen at a time.
"""

from __future__ import annotations

import array
import http.client
import json
import sys
import wave
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

URL = "http://127.0.0.1:8000"
RATE, WINDOW, CONTEXT, STATE = 16_000, 512, 64, 2 * 128
SPEECH, PAUSE = 0.5, 10  # the probability from which it is speech, and windows of silence that end it


class Listener:
    """One stream of audio; `hear` takes windows in their order."""

    def __init__(self, url: str = URL, model: str = "vad") -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._path = f"/v2/models/{model}/infer"
        self._state = bytes(4 * STATE)
        self._before = bytes(4 * CONTEXT)

    def hear(self, window: bytes) -> float:
        """Return the probability of speech in 512 samples, as little-endian floats from -1 to 1."""
        given = {"input": ([1, CONTEXT + WINDOW], self._before + window), "state": ([2, 1, 128], self._state)}
        inputs = [
            {"name": n, "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": len(raw)}}
            for n, (shape, raw) in given.items()
        ]
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        body = head + b"".join(raw for _, raw in given.values())
        self._connection.request(
            "POST", self._path, body, {"Inference-Header-Content-Length": str(len(head))}
        )
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(data.decode())
        end = int(answer.headers["Inference-Header-Content-Length"])
        found: dict[str, Any] = {}
        for output in json.loads(data[:end])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            found[output["name"]] = data[end : end + size]
            end += size
        self._state, self._before = found["stateN"], window[-4 * CONTEXT :]
        return float(array.array("f", found["output"])[0])

    def close(self) -> None:
        self._connection.close()


def windows(path: str) -> Iterator[bytes]:
    """Yield the windows of a WAV file of 16 bits, one channel and 16 kHz."""
    with wave.open(path) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit("expected 16 kHz, one channel, 16 bits")
        while raw := file.readframes(WINDOW):
            samples = array.array("h", raw.ljust(2 * WINDOW, b"\0"))
            yield array.array("f", [sample / 32768 for sample in samples]).tobytes()


def segments(probabilities: Iterator[float]) -> Iterator[tuple[float, float]]:
    """Yield begin and end of speech in seconds."""
    began, last = None, 0
    for number, probability in enumerate(probabilities):
        if probability >= SPEECH:
            began, last = number if began is None else began, number
        elif began is not None and number - last >= PAUSE:
            yield began * WINDOW / RATE, (last + 1) * WINDOW / RATE
            began = None
    if began is not None:
        yield began * WINDOW / RATE, (last + 1) * WINDOW / RATE


if __name__ == "__main__":
    listener = Listener(sys.argv[2] if len(sys.argv) > 2 else URL)
    for begin, end in segments(map(listener.hear, windows(sys.argv[1]))):
        print(f"{begin:7.2f} s to {end:7.2f} s")
    listener.close()

"""TextToSpeechBackend: speaks texts sentence by sentence; calls take turns after each one.

The library runs one sentence at a time and cannot be interrupted in it. So a sentence is the unit in which
calls are interleaved, cancelled and answered.

Samples become bytes of an audio format piece by piece, so that a client can play while the rest is spoken.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.voice.spec import (
    FORMATS,
    RAW,
    SPEAK,
    AudioFormat,
    SpeakArguments,
    Spoken,
    TextToSpeechSpec,
)
from ovserve.kinds.voice.worker.pipeline import Pipeline
from ovserve.llm.sentences import sentences

Samples = np.ndarray[Any, Any]


class Pcm:
    """Signed 16-bit little-endian samples; also those of WAV, whose head the server writes."""

    def encode(self, samples: Samples) -> bytes:
        return int16(samples).tobytes()

    def finish(self) -> bytes:
        return b""


class Form(NamedTuple):
    container: str
    codec: str
    sample_format: str
    bit_rate: int  # 0: lossless
    options: dict[str, str]


FORMS: dict[AudioFormat, Form] = {
    "flac": Form("flac", "flac", "s16", 0, {}),
    # Without the Xing header, which is written at the end, into what has been sent.
    "mp3": Form("mp3", "libmp3lame", "s16p", 64_000, {"write_xing": "0", "id3v2_version": "0"}),
    # A page every 0.2 s, in microseconds; the default of 1 s would be kept back at the end of a sentence.
    "opus": Form("ogg", "libopus", "s16", 32_000, {"page_duration": "200000"}),
    "aac": Form("adts", "aac", "fltp", 64_000, {}),
}


class _Sink:
    """The file that the container writes to. It has no `seek`, so nothing is written into earlier bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        joined = b"".join(self._parts)
        self._parts.clear()
        return joined


class Compressed:
    """FLAC, MP3, Opus in Ogg, or AAC in ADTS, by PyAV, which may keep a part for the next samples."""

    def __init__(self, audio_format: AudioFormat, rate: int) -> None:
        import av  # 60 ms, and an extra

        form = FORMS[audio_format]
        self._new_frame = av.AudioFrame.from_ndarray
        self._rate, self._at = rate, 0
        self._sink = _Sink()
        self._container = av.open(self._sink, "w", format=form.container, options=form.options)
        stream: Any = self._container.add_stream(form.codec, rate=rate)
        stream.layout, stream.format = "mono", form.sample_format
        if form.bit_rate:
            stream.bit_rate = form.bit_rate
        stream.codec_context.open()
        self._stream = stream
        frame = stream.codec_context.frame_size or None
        self._resampler = av.AudioResampler(form.sample_format, "mono", rate, frame_size=frame)

    def encode(self, samples: Samples) -> bytes:
        frame = self._new_frame(int16(samples).reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts = self._rate, self._at
        self._at += np.size(samples)
        self._mux(frame)
        return self._sink.take()

    def finish(self) -> bytes:
        self._mux(None)
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()

    def _mux(self, frame: Any) -> None:
        for ready in self._resampler.resample(frame):
            self._container.mux(self._stream.encode(ready))


def int16(samples: Samples) -> Samples:
    bounded: Samples = np.clip(np.nan_to_num(samples), -1.0, 1.0)
    return (bounded * 32767.0).astype("<i2")


MAX_CALLS = 8  # that take turns; more wait in the server's queue, which is fair among callers


class TextToSpeechBackend:
    def __init__(self, spec: TextToSpeechSpec) -> None:
        began = time.monotonic()
        self._pipeline = Pipeline(spec)
        # Its queue is in the order in which calls came, which that of a lock is not.
        self._turns = ThreadPoolExecutor(1, "speak")
        self.facts = msgspec.structs.replace(
            self._pipeline.facts,
            formats=FORMATS if importlib.util.find_spec("av") is not None else RAW,  # with the extra `audio`
            max_calls=MAX_CALLS,
            load_seconds=time.monotonic() - began,
        )

    def call(self, invocation: Invocation) -> Iterator[Result]:
        """Yield `Spoken` per sentence. Raises InvalidArgument for a text of which nothing can be spoken."""
        if invocation.method != SPEAK:
            raise InvalidArgument(f"{invocation.method!r} is not a method of this engine; it has {SPEAK!r}")
        arguments = invocation.arguments(SpeakArguments)
        audio_format, rate = arguments.format, self.facts.sample_rate
        encoder = Pcm() if audio_format in RAW else Compressed(audio_format, rate)
        silent = 0
        arrived, spoke = invocation.arrived, False
        for sentence in sentences(self._pipeline.in_words(arguments.text, arguments.language)):
            turn = self._turns.submit(self._speak, sentence, arguments, invocation).result()
            if turn is None:
                return
            samples, began, duration = turn
            if not len(samples):
                silent += 1
                continue
            spoke = True
            seconds = len(samples) / self.facts.sample_rate
            spoken = Spoken(sentence, seconds, duration, began - arrived)
            yield Result(spoken, (encoder.encode(samples),))
            arrived = time.monotonic()
        if not spoke:
            raise InvalidArgument.at(
                "input", f"the model found nothing to speak in it in the language {arguments.language!r}"
            )
        if silent:
            language = arguments.language
            sys.stderr.write(f"{silent} sentences had nothing that can be spoken in {language!r}\n")
        if self._pipeline.has_grown:
            self._turns.submit(self._reload)
        yield Result(Spoken(), (encoder.finish(),), last=True)

    def _speak(
        self, sentence: str, arguments: SpeakArguments, invocation: Invocation
    ) -> tuple[Samples, float, float] | None:
        """Return samples, when they were begun and the seconds that they took; None for a cancelled call."""
        if invocation.cancelled:
            return None
        began = time.monotonic()
        samples = self._pipeline.speak(sentence, arguments.voice, arguments.language, arguments.speed)
        return samples, began, time.monotonic() - began

    def _reload(self) -> None:
        """Load the model again between two sentences. If that fails, the old one stays."""
        if not self._pipeline.has_grown:  # another call has seen to it
            return
        try:
            self._pipeline.reload()
        except LoadError as error:
            sys.stderr.write(f"the model was not loaded again to free memory: {error.message}\n")

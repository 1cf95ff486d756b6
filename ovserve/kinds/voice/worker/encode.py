"""Samples to bytes of an audio format, piece by piece, so that a client can play while the rest is spoken."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple, Protocol

import numpy as np

from ovserve.kinds.voice.spec import FORMATS, RAW, AudioFormat

Samples = np.ndarray[Any, Any]


class Encoder(Protocol):
    def encode(self, samples: Samples) -> bytes:
        """Return what is ready; the encoder may keep a part for the next samples."""

    def finish(self) -> bytes:
        """Return the rest."""


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
    """FLAC, MP3, Opus in Ogg, or AAC in ADTS, by PyAV."""

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
        self._put(frame)
        return self._sink.take()

    def finish(self) -> bytes:
        self._put(None)
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()

    def _put(self, frame: Any) -> None:
        for ready in self._resampler.resample(frame):
            self._container.mux(self._stream.encode(ready))


def installed_formats() -> tuple[AudioFormat, ...]:
    """Return the formats of this installation: all with the extra `audio`."""
    return FORMATS if importlib.util.find_spec("av") is not None else RAW


def encoder_of(audio_format: AudioFormat, rate: int) -> Encoder:
    if audio_format in RAW:
        return Pcm()
    return Compressed(audio_format, rate)


def int16(samples: Samples) -> Samples:
    bounded: Samples = np.clip(np.nan_to_num(samples), -1.0, 1.0)
    return (bounded * 32767.0).astype("<i2")

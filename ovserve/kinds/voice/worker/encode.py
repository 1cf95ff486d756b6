"""Samples to bytes of an audio format, piece by piece, so that a client can play while the rest is spoken."""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

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


def installed_formats() -> tuple[AudioFormat, ...]:
    """Return the formats of this installation: all with the extra `audio`."""
    return FORMATS if importlib.util.find_spec("av") is not None else RAW


def encoder_of(audio_format: AudioFormat, rate: int) -> Encoder:
    if audio_format in RAW:
        return Pcm()
    from ovserve.kinds.voice.worker.compress import Compressed  # an import of 60 ms, and an extra

    return Compressed(audio_format, rate)


def int16(samples: Samples) -> Samples:
    bounded: Samples = np.clip(np.nan_to_num(samples), -1.0, 1.0)
    return (bounded * 32767.0).astype("<i2")

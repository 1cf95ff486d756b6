"""Audio of a realtime session: G.711 and sample rates, with a state from one chunk to the next.

Source: ITU-T G.711 (11/88), tables 1 and 2, https://www.itu.int/rec/T-REC-G.711, read 2026-11-27
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import soxr
from numpy.typing import NDArray

from ovserve.api.openai.realtime.config import ALaw, Format, MuLaw, Pcm
from ovserve.llm.audio import SAMPLES_PER_SECOND

QUIET_LEVEL = 300  # of 32,768: below it nothing is heard
KEPT_SECONDS = 0.05  # of the silence before and after sound
BIAS, CLIP = 132, 32_635  # of u-law, on a scale of 16 bits
MAX_CHUNK = 1 << 16  # samples that are resampled at once

Samples = NDArray[np.int16]


def _mu_law_values() -> Samples:
    codes = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = (codes >> 4 & 7).astype(np.int32), (codes & 15).astype(np.int32)
    size = ((mantissa << 3) + BIAS << exponent) - BIAS
    return np.where(codes & 0x80, -size, size).astype(np.int16)


def _a_law_values() -> Samples:
    codes = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = (codes >> 4 & 7).astype(np.int32), (codes & 15).astype(np.int32)
    size = np.where(exponent == 0, (mantissa << 4) + 8, (mantissa << 4) + 264 << np.maximum(exponent - 1, 0))
    return np.where(codes & 0x80, size, -size).astype(np.int16)


VALUES = {MuLaw: _mu_law_values(), ALaw: _a_law_values()}


def _nearest_codes(values: Samples) -> NDArray[np.uint8]:
    """Return the code of the nearest value for each sample, from -32768 on."""
    order = np.argsort(values, kind="stable")
    levels = values[order].astype(np.int32)
    borders = (levels[:-1] + levels[1:] + 1) // 2
    samples = np.arange(-32768, 32768, dtype=np.int32)
    return order[np.searchsorted(borders, samples, side="right")].astype(np.uint8)


CODES = {kind: _nearest_codes(values) for kind, values in VALUES.items()}


class Resampler:
    """One stream of 16-bit samples from one rate to another."""

    def __init__(self, source: int, target: int) -> None:
        self._stream = None if source == target else soxr.ResampleStream(source, target, 1, dtype="int16")

    def __call__(self, samples: Samples, *, last: bool = False) -> Samples:
        if self._stream is None or (not samples.size and not last):
            return samples
        parts = [samples[at : at + MAX_CHUNK] for at in range(0, samples.size or 1, MAX_CHUNK)]
        chunks = [self._stream.resample_chunk(p, last=last and p is parts[-1]) for p in parts]
        return np.concatenate(chunks)


def decoded(data: bytes, format_: Format) -> Samples:
    if isinstance(format_, Pcm):
        return np.frombuffer(data, "<i2").astype(np.int16, copy=False)
    return VALUES[type(format_)][np.frombuffer(data, np.uint8)]


def encoded(samples: Samples, format_: Format) -> bytes:
    if isinstance(format_, Pcm):
        return samples.astype("<i2", copy=False).tobytes()
    return CODES[type(format_)][samples.astype(np.int32) + 32768].tobytes()


def without_silence(audio: bytes, rate: int, *, begin: bool, end: bool) -> bytes:
    """Return 16-bit samples without the silence at their beginning or end; Kokoro's is 0.3 and 0.4 s."""
    loud = np.flatnonzero(np.abs(np.frombuffer(audio, "<i2").astype(np.int32)) > QUIET_LEVEL)
    if not loud.size:
        return audio
    margin = int(KEPT_SECONDS * rate)
    first = max(int(loud[0]) - margin, 0) if begin else 0
    return audio[2 * first : 2 * (int(loud[-1]) + margin) if end else None]


def rate_of(format_: Format) -> int:
    return 24_000 if isinstance(format_, Pcm) else 8_000


def ear(format_: Format) -> Callable[[bytes], bytes]:
    """Return a function from what a client sends to samples at 16 kHz; it has a state."""
    resample = Resampler(rate_of(format_), SAMPLES_PER_SECOND)
    return lambda data: encoded(resample(decoded(data, format_)), Pcm())


def mouth(rate: int, format_: Format) -> Callable[[bytes, bool], bytes]:
    """Return a function from samples at `rate` to what the client gets; its second argument ends the
    stream."""
    resample = Resampler(rate, rate_of(format_))
    return lambda data, last: encoded(resample(decoded(data, Pcm()), last=last), format_)

"""Decode an audio file; runs only in an audio process, see `loader.py`. WAV is read here.

Any other by the library `av`, which is FFmpeg: mp3, m4a, mp4, ogg, opus, flac, webm, aac and others.
Demuxers are named one by one: others of FFmpeg's open what a file names, such as playlists. The file is
handed over open, and no protocol is allowed, so nothing else is read.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from ovserve.errors import extra
from ovserve.llm.audio import SAMPLE_BYTES, SAMPLES_PER_SECOND
from ovserve.sandbox.messages import Undecodable


class Samples:
    """Write 16-bit samples, and count them. Raises Undecodable past the limit."""

    def __init__(self, file: BinaryIO, max_seconds: float) -> None:
        self._file = file
        self._max_seconds = max_seconds
        self.count = 0

    def write(self, data: bytes) -> None:
        self.count += len(data) // SAMPLE_BYTES
        if self.count > self._max_seconds * SAMPLES_PER_SECOND:
            raise Undecodable(f"it is longer than {self._max_seconds:g} s")
        self._file.write(data)


# WAV files without a library: PCM of 8 to 32 bit and float, any number of channels, any sample rate.
#
# Sizes in the header are not trusted, because a recorder that writes to a pipe does not know them: what it
# claims beyond the end of the file is what is there.
# Source: https://www.mmsp.ece.mcgill.ca/Documents/AudioFormats/WAVE/WAVE.html, read 2026-11-22


PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
RIFX = b"RIFX"
MOST_CHANNELS = 64
RATES = (1000, 768_000)
BLOCK_FRAMES = 1 << 18  # frames that are read at once
FILTER_TAPS = 32  # of the filter, per sample of the lower rate
MOST_WEIGHTS = 1 << 20  # of all filters, and eight times that of the windows they are applied to at once
KAISER_BETA = 8.0  # of its Kaiser window: about 80 dB

Floats = NDArray[np.float64]


class Format(msgspec.Struct, frozen=True):
    kind: int  # PCM or FLOAT
    channels: int
    rate: int
    bits: int
    big_endian: bool = False

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.bits // 8


class OtherCodec(Exception):
    """A WAV file with a codec that is not read here, such as ADPCM."""


def is_wav(head: bytes) -> bool:
    """Return whether the first 12 bytes are those of a WAV file; RF64 is one of more than 4 GiB, RIFX a
    big-endian one, of which FFmpeg makes noise."""
    return head[:4] in (b"RIFF", b"RF64", RIFX) and head[8:12] == b"WAVE"


def decode_wav(source: Path, samples: Samples) -> None:
    """Raises Undecodable, or OtherCodec if a library may read the file."""
    raw = np.memmap(source, np.uint8, mode="r")
    form, begin, end = _chunks(raw)
    frames = (end - begin) // form.frame_bytes
    resample = Resampler(form.rate)
    for at in range(0, frames, BLOCK_FRAMES):
        size = min(BLOCK_FRAMES, frames - at)
        block = raw[begin + at * form.frame_bytes : begin + (at + size) * form.frame_bytes]
        values = _values(block, form).reshape(size, form.channels).mean(1)
        samples.write(_packed(resample.feed(values)))
    samples.write(_packed(resample.end()))


def _chunks(raw: NDArray[np.uint8]) -> tuple[Format, int, int]:
    """Return the format, and where the samples begin and end."""
    form: Format | None = None
    order, at = ">" if bytes(raw[:4]) == RIFX else "<", 12
    while at + 8 <= raw.size:
        name, size = struct.unpack(f"{order}4sI", bytes(raw[at : at + 8]))
        at += 8
        if name == b"fmt ":
            form = _format(bytes(raw[at : at + min(size, 40)]), order)
        elif name == b"data":
            if form is None:
                raise Undecodable("its header has no format before the samples")
            claimed = raw.size if size in (0, 0xFFFFFFFF) else at + size
            return form, at, min(claimed, raw.size)
        at += size + size % 2
    raise Undecodable("it has no samples" if form else "its header has no format")


def _format(data: bytes, order: str) -> Format:
    if len(data) < 16:
        raise Undecodable("its format is cut off")
    kind, channels, rate, _, _, bits = struct.unpack_from(f"{order}HHIIHH", data)
    if kind == EXTENSIBLE and len(data) >= 28:
        (kind,) = struct.unpack_from(f"{order}I", data, 24)
    if not 1 <= channels <= MOST_CHANNELS:
        raise Undecodable(f"it has {channels} channels; expected 1 to {MOST_CHANNELS}")
    if not RATES[0] <= rate <= RATES[1]:
        raise Undecodable(f"its sample rate is {rate}; expected {RATES[0]} to {RATES[1]}")
    if (kind, bits) not in {(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)}:
        raise OtherCodec
    return Format(kind, channels, rate, bits, order == ">")


def _values(block: NDArray[np.uint8], form: Format) -> Floats:
    """Return samples from -1 to 1."""
    if form.big_endian:
        block = block.reshape(-1, form.bits // 8)[:, ::-1].reshape(-1)
    if form.kind == FLOAT:
        values = block.view(f"<f{form.bits // 8}").astype(np.float64)
        return np.nan_to_num(np.clip(values, -1, 1), nan=0.0)
    if form.bits == 8:
        return (block.astype(np.float64) - 128) / 128
    if form.bits == 24:
        wide = np.zeros((block.size // 3, 4), np.uint8)
        wide[:, 1:] = block.reshape(-1, 3)
        block = wide.reshape(-1)
    whole: NDArray[Any] = block.view("<i2" if form.bits == 16 else "<i4")
    return whole.astype(np.float64) / (1 << (15 if form.bits == 16 else 31))


def _packed(values: Floats) -> bytes:
    return np.clip(np.rint(values * 32768), -32768, 32767).astype("<i2").tobytes()


class Resampler:
    """Convert a stream of samples to SAMPLES_PER_SECOND: a low-pass filter in as many phases as the ratio
    has."""

    def __init__(self, rate: int) -> None:
        divisor = math.gcd(rate, SAMPLES_PER_SECOND)
        self._up, self._down = SAMPLES_PER_SECOND // divisor, rate // divisor
        self._half = math.ceil(FILTER_TAPS / 2 * max(1.0, rate / SAMPLES_PER_SECOND))
        self._next = 0  # number of the output sample that comes next
        self._first = -self._half  # number of the first input sample that is held
        self._held: Floats = np.zeros(self._half)
        self._width = 2 * self._half + 1
        # A ratio such as 767,999 to 16,000 has 16,000 phases. Fewer shift a sample by less than 1/600 of the
        # time to the next.
        self._phases = min(self._up, MOST_WEIGHTS // self._width)
        self._filters = self._weights()

    def feed(self, values: Floats) -> Floats:
        if self._up == self._down:
            return values
        self._held = np.concatenate([self._held, values])
        # An output needs the inputs up to `_half` after it.
        known = self._first + len(self._held) - self._half - 1
        return self._until(known * self._up // self._down + 1)

    def end(self) -> Floats:
        """Return the last samples, which need some silence after the input."""
        if self._up == self._down:
            return np.zeros(0)
        total = (self._first + len(self._held)) * self._up // self._down
        self._held = np.concatenate([self._held, np.zeros(self._half + 1)])
        return self._until(total)

    def _until(self, end: int) -> Floats:
        numbers = np.arange(self._next, max(end, self._next))
        self._next = max(end, self._next)
        out = np.zeros(len(numbers))
        count = 8 * MOST_WEIGHTS // self._width  # at a time, because the windows are copied
        for begin in range(0, len(numbers), count):
            some = numbers[begin : begin + count]
            centre = some * self._down // self._up - self._first
            windows = np.lib.stride_tricks.sliding_window_view(self._held, self._width)[centre - self._half]
            phases = some * self._down % self._up * self._phases // self._up
            out[begin : begin + count] = (windows * self._filters[phases]).sum(1)
        drop = max(0, self._next * self._down // self._up - self._half - self._first)
        self._held, self._first = self._held[drop:], self._first + drop
        return out

    def _weights(self) -> Floats:
        """Return [phase, tap]: a windowed sinc at each offset between two input samples."""
        offsets = np.arange(self._phases)[:, None] / self._phases
        distance = np.arange(-self._half, self._half + 1)[None, :] - offsets
        cut = min(1.0, self._up / self._down) * 0.95
        shape = np.clip(1 - (distance / (self._half + 1)) ** 2, 0, None)
        filters = np.sinc(distance * cut) * np.i0(KAISER_BETA * np.sqrt(shape))
        return np.asarray(filters / filters.sum(1, keepdims=True))


DECODER_NICENESS = 10  # below the engine
DEMUXERS = (
    "aac,aiff,amr,au,caf,flac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpeg,ogg,wav,w64,asf,avi,mpegts"
)
MOST_BROKEN = 100  # packets without one that can be decoded between them


def initialize() -> None:
    os.nice(DECODER_NICENESS)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads reserve more address space than there is


def decode(source: str, target: str, max_seconds: float) -> int:
    """Write samples to `target`, which exists and is empty, and return their number. Raises Undecodable."""
    path = Path(source)
    try:
        with path.open("rb") as file:
            head = file.read(12)
        if not head:
            raise Undecodable("it is empty")
        with open(target, "wb") as out:
            samples = Samples(out, max_seconds)
            if not is_wav(head):
                decode_container(path, samples)
                return samples.count
            try:
                decode_wav(path, samples)
            except OtherCodec:
                decode_container(path, samples)
            return samples.count
    except OSError as error:
        raise Undecodable(f"it cannot be stored: {error.strerror}") from None


def decode_container(source: Path, samples: Samples) -> None:
    """Raises Undecodable."""
    try:
        import av
    except ImportError:
        raise Undecodable(f"only WAV is read without the library av; {extra('audio')}") from None
    av.logging.set_level(None)
    options = {"format_whitelist": DEMUXERS, "protocol_whitelist": "none"}
    try:
        with source.open("rb") as file, av.open(file, options=options, metadata_errors="ignore") as container:
            if not container.streams.audio:
                raise Undecodable("it has no audio")
            _decode(av, container, samples)
    except av.PatchWelcomeError:  # FFmpeg's word for what Ogg allows and it does not follow
        raise Undecodable(
            "its channels or its codec change after the start; send such parts as files"
        ) from None
    except av.FFmpegError as error:
        raise Undecodable(f"it is not a known audio file: {error.strerror}") from None
    except (ValueError, OSError) as error:
        raise Undecodable(f"it is broken: {error}") from None


def _decode(av: Any, container: Any, samples: Samples) -> None:
    converter, broken = _Converter(av, samples), 0
    for packet in container.demux(container.streams.audio[0]):
        try:
            frames = packet.decode()
        except av.InvalidDataError:  # a damaged packet costs its own sound only
            broken += 1
            if broken > MOST_BROKEN:
                raise
            continue
        for frame in frames:
            broken = 0
            converter.write(frame)
    converter.end()


class _Converter:
    """Make samples of frames. Their form may change: in files joined to one, on the radio, in some AAC."""

    def __init__(self, av: Any, samples: Samples) -> None:
        self._new, self._samples = av.AudioResampler, samples
        self._form: Any = None
        self._resampler = self._new()  # of frames of this form alone

    def write(self, frame: Any) -> None:
        form = frame.format.name, frame.layout.name, frame.sample_rate
        if form != self._form:
            self.end()
            self._form, self._resampler = form, self._new("s16", "mono", SAMPLES_PER_SECOND)
        frame.pts = None
        self.end(frame)

    def end(self, frame: Any = None) -> None:
        """Write what a frame makes; without one, what the resampler holds back."""
        for part in self._resampler.resample(frame):
            self._samples.write(bytes(part.planes[0])[: part.samples * SAMPLE_BYTES])

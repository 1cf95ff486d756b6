"""Audio of a request end to end: a file in, samples out, through real decoder processes."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import struct
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from ovserve.errors import InvalidArgument
from ovserve.sandbox.audio_loader import AudioBounds, AudioLoader, Recording
from tests.speech import RATE, RECORDING, samples, wav

CODECS = {
    "mp3": ("libmp3lame", "mp3"),
    "mpga": ("libmp3lame", "mp3"),
    "mpeg": ("mp2", "mpeg"),
    "mp4": ("aac", "mp4"),
    "m4a": ("aac", "ipod"),
    "ogg": ("libopus", "ogg"),
    "webm": ("libopus", "webm"),
    "flac": ("flac", "flac"),
}  # with wav all that OpenAI lists


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loader() -> AsyncIterator[AudioLoader]:
    loader = AudioLoader(AudioBounds(seconds=60))
    yield loader
    await loader.stop()


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def load(loader: AudioLoader, data: bytes, tmp_path: Path) -> np.ndarray[Any, np.dtype[np.int16]]:
    (tmp_path / "file").write_bytes(data)
    recording = await loader.load(tmp_path / "file", "file")
    try:
        read = recording.read(0, recording.samples + 1)
        assert len(read) == 2 * recording.samples
        return np.frombuffer(read, "<i2")
    finally:
        recording.close()


def tone(rate: int, seconds: float = 1.0, hertz: float = 440.0) -> Any:
    return np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def riff(
    data: bytes, kind: int, channels: int, rate: int, bits: int, size: int | None = None, order: str = "<"
) -> bytes:
    head = struct.pack(f"{order}IHHIIHH", 16, kind, channels, rate, 0, 0, bits)
    length = struct.pack(f"{order}I", len(data) if size is None else size)
    name = b"RIFF" if order == "<" else b"RIFX"
    return name + b"\xff\xff\xff\xffWAVEfmt " + head + b"data" + length + data


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 24000, 44100, 48000, 96000, 191_999, 767_999])
async def test_any_sample_rate_keeps_a_tone(loader: AudioLoader, tmp_path: Path, rate: int) -> None:
    got = await load(loader, wav(tone(rate) * 16000, rate), tmp_path)
    assert abs(len(got) - RATE) <= 2
    wanted = tone(RATE) * 16000
    inner = slice(200, 15800)
    assert np.abs(got[inner] - wanted[: len(got)][inner]).max() < 40  # 52 dB below the tone


async def test_what_would_alias_is_removed(loader: AudioLoader, tmp_path: Path) -> None:
    got = await load(loader, wav(tone(48000, hertz=10_000) * 16000, 48000), tmp_path)
    assert np.abs(got[200:-200]).max() < 40


@pytest.mark.parametrize(
    ("kind", "bits", "make"),
    [
        (1, 8, lambda x: (x * 127 + 128).astype(np.uint8).tobytes()),
        (1, 16, lambda x: (x * 32767).astype("<i2").tobytes()),
        (1, 24, lambda x: (x * 8388607).astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()),
        (1, 32, lambda x: (x * 2147483647).astype("<i4").tobytes()),
        (3, 32, lambda x: x.astype("<f4").tobytes()),
        (3, 64, lambda x: x.astype("<f8").tobytes()),
    ],
)
@pytest.mark.parametrize("size", [None, 0, 0xFFFFFFFF, 1 << 30])
async def test_any_width_and_a_size_that_is_not_true(
    loader: AudioLoader, tmp_path: Path, kind: int, bits: int, make: Any, size: int | None
) -> None:
    half = tone(RATE, 0.1) / 2
    stereo = np.stack([half, half], 1).reshape(-1)
    got = await load(loader, riff(make(stereo), kind, 2, RATE, bits, size), tmp_path)
    assert np.abs(got - half * 32768).max() < (520 if bits == 8 else 3)
    turned = np.frombuffer(make(stereo), np.uint8).reshape(-1, bits // 8)[:, ::-1].tobytes()
    big_endian = await load(loader, riff(turned, kind, 2, RATE, bits, size, ">"), tmp_path)
    assert np.array_equal(big_endian, got)


def coded(codec: str, form: str, rate: int, layout: str) -> bytes:
    """A tone of a second."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=form) as out:
        stream = out.add_stream(codec, rate=rate, layout=layout)
        values = np.stack([tone(rate)] * (2 if layout == "stereo" else 1)).astype(np.float32) / 2
        frame = av.AudioFrame.from_ndarray(values, format="fltp", layout=layout)
        frame.sample_rate = rate
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize(
    ("codec", "form", "first", "second"),
    [
        ("libmp3lame", "mp3", (44100, "stereo"), (22050, "mono")),
        ("libmp3lame", "mp3", (16000, "mono"), (44100, "stereo")),
        ("aac", "adts", (44100, "stereo"), (48000, "mono")),
    ],
    ids=["narrower", "wider", "aac"],
)
async def test_files_joined_to_one_are_heard_whole(
    loader: AudioLoader, tmp_path: Path, codec: str, form: str, first: Any, second: Any
) -> None:
    one, other = (coded(codec, form, *shape) for shape in (first, second))
    parts = [await load(loader, data, tmp_path) for data in (one, other)]
    joined = await load(loader, one + other, tmp_path)
    assert abs(len(joined) - sum(map(len, parts))) < RATE / 5  # what encoders add at ends
    for heard in (joined[RATE // 4 : RATE // 2], joined[-RATE // 2 : -RATE // 4]):
        assert abs(np.argmax(np.abs(np.fft.rfft(heard))) * RATE / len(heard) - 440) < 5
        assert np.abs(heard).max() == pytest.approx(16384, rel=0.1)


async def test_joined_files_of_other_channels_are_named_as_such(loader: AudioLoader, tmp_path: Path) -> None:
    """It was called no known audio file, and not yet implemented."""
    joined = coded("libopus", "ogg", 48000, "mono") + coded("libopus", "ogg", 48000, "stereo")
    with pytest.raises(InvalidArgument, match="its channels or its codec change after the start"):
        await load(loader, joined, tmp_path)


@pytest.mark.parametrize("broken", ["\u00e4\u00e4\u00e4\u00e4", "%%%%", "YWJj-", "YWJ"])
async def test_text_that_is_no_base64_is_an_error(loader: AudioLoader, broken: str) -> None:
    with pytest.raises(InvalidArgument, match="data: expected base64") as caught:
        await loader.load_base64(broken, "data")
    assert caught.value.param == "data"


@pytest.mark.parametrize(
    "wrap", [str.strip, lambda text: text.replace("\n", "\r\n"), "data:;base64,{}".format]
)
async def test_base64_may_have_lines(loader: AudioLoader, wrap: Any) -> None:
    """Shells and mail libraries break it; the bound is that of the file."""
    file = wav(samples())
    bounded = AudioLoader(AudioBounds(bytes=len(file)))
    try:
        heard = await bounded.load_base64(wrap(base64.encodebytes(file).decode()), "data")
        assert heard.samples == len(samples())
        heard.close()
        with pytest.raises(
            InvalidArgument, match=f"data: {len(file) + 2} bytes are more than the {len(file)}"
        ):
            await bounded.load_base64(wrap(base64.encodebytes(file + b"xx").decode()), "data")
    finally:
        await bounded.stop()


@pytest.mark.parametrize("extension", CODECS)
async def test_every_format_that_openai_lists(loader: AudioLoader, tmp_path: Path, extension: str) -> None:
    import av

    codec, form = CODECS[extension]
    rate = RATE if codec == "flac" else 48000
    file = tmp_path / f"a.{extension}"
    with av.open(file, "w", format=form) as out, av.open(RECORDING) as source:
        stream = out.add_stream(codec, rate=rate, layout="mono")
        for frame in source.decode(audio=0):
            frame.pts = None
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    got, said = await load(loader, file.read_bytes(), tmp_path), samples()
    assert abs(len(got) - len(said)) < RATE / 10
    loud = [np.sqrt(np.mean(np.square(values[: 4 * RATE].astype(float)))) for values in (got, said)]
    assert loud[0] == pytest.approx(loud[1], rel=0.1)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b"These are words, not sound. " * 100, "not a known audio file"),
        (b"ID3\x04\x00\x00\x00\x00\x00\x00" + b"words " * 1000, "not a known audio file|broken|too short"),
        (wav(np.zeros(16000))[:30], "its format is cut off"),
        (wav(np.zeros(16000))[:36], "it has no samples"),
        (wav(np.zeros(16000))[:44], "too short: 0 samples"),
        (riff(b"\0" * 100, 1, 0, RATE, 16), "it has 0 channels"),
        (riff(b"\0" * 100, 1, 1, 0, 16), "its sample rate is 0"),
        (riff(b"\0" * 100, 1, 1, 4_000_000_000, 16), "its sample rate is 4000000000"),
        (riff(b"\0" * 100, 99, 1, RATE, 16), "not a known audio file|broken|not supported|no audio"),
        (b"#EXTM3U\n#EXTINF:9,\nfile:///etc/passwd\n", "not a known audio file"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "not a known audio file"),
        (wav(np.zeros(61 * RATE)), "it is longer than 60 s"),
    ],
    ids=lambda value: value.split("|")[0] if isinstance(value, str) else "",
)
async def test_a_file_that_cannot_be_used_is_named(
    loader: AudioLoader, tmp_path: Path, data: bytes, why: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"file: .*({why})") as caught:
        await load(loader, data, tmp_path)
    assert caught.value.param == "file"


async def test_a_bomb_ends_at_the_limit(loader: AudioLoader, tmp_path: Path) -> None:
    """Hours of silence in a flac file of some kilobytes."""
    import av

    file = tmp_path / "bomb.flac"
    with av.open(file, "w") as out:
        stream = out.add_stream("flac", rate=8000, layout="mono")
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 65536), np.int16), format="s16", layout="mono")
        silence.sample_rate = 8000
        for _ in range(120):
            silence.pts = None
            out.mux(stream.encode(silence))
        out.mux(stream.encode(None))
    assert file.stat().st_size < 200_000
    with pytest.raises(InvalidArgument, match="longer than 60 s"):
        await load(loader, file.read_bytes(), tmp_path)


async def test_a_truncated_file_gives_what_it_has(loader: AudioLoader, tmp_path: Path) -> None:
    whole = RECORDING.read_bytes()
    got = await load(loader, whole[: len(whole) // 2], tmp_path)
    assert 0.3 < len(got) / len(samples()) < 0.7


async def test_no_file_stays_and_two_are_decoded_at_once(
    loader: AudioLoader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # tests of other processes use the usual one
    began = os.stat(tmp_path).st_mtime_ns
    two: list[Recording] = await asyncio.gather(*(loader.load(RECORDING, "file") for _ in range(2)))
    assert os.stat(tmp_path).st_mtime_ns > began, "there was a file"
    assert not os.listdir(tmp_path)
    assert two[0].read(100, 50) == two[1].read(100, 50)
    for recording in (*two, *two):
        recording.close()

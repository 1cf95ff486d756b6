"""Decode an audio file; runs only in an audio process, see `loader.py`. WAV is read by `wav.py`.

Any other by the library `av`, which is FFmpeg: mp3, m4a, mp4, ogg, opus, flac, webm, aac and others.
Demuxers are named one by one: others of FFmpeg's open what a file names, such as playlists. The file is
handed over open, and no protocol is allowed, so nothing else is read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ovserve.errors import extra
from ovserve.sandbox.audio.sound import SAMPLES_PER_SECOND, Samples
from ovserve.sandbox.messages import Undecodable

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
    from ovserve.sandbox.audio.wav import OtherCodec, decode_wav, is_wav

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
    except av.FFmpegError as error:
        raise Undecodable(f"it is not a known audio file: {error.strerror}") from None
    except (ValueError, OSError) as error:
        raise Undecodable(f"it is broken: {error}") from None


def _decode(av: Any, container: Any, samples: Samples) -> None:
    stream = container.streams.audio[0]
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLES_PER_SECOND)
    broken = 0
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.InvalidDataError:  # a damaged packet costs its own sound only
            broken += 1
            if broken > MOST_BROKEN:
                raise
            continue
        for frame in frames:
            broken = 0
            frame.pts = None
            _write(resampler.resample(frame), samples)
    _write(resampler.resample(None), samples)


def _write(frames: list[Any], samples: Samples) -> None:
    for frame in frames:
        samples.write(bytes(frame.planes[0])[: frame.samples * 2])

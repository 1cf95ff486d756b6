"""Shared by decoders of audio: the error of an unusable file, and the file that samples are written to.

Samples have one channel, 16 bits and 16,000 per second.
"""

from __future__ import annotations

from typing import BinaryIO

RATE = 16_000  # samples per second
SAMPLE_BYTES = 2


class SoundError(Exception):
    """A file that cannot be used; the message says why."""


class Samples:
    """Write 16-bit samples, and count them. Raises SoundError past the limit."""

    def __init__(self, file: BinaryIO, max_seconds: float) -> None:
        self._file = file
        self._max_seconds = max_seconds
        self.count = 0

    def write(self, data: bytes) -> None:
        self.count += len(data) // SAMPLE_BYTES
        if self.count > self._max_seconds * RATE:
            raise SoundError(f"it is longer than {self._max_seconds:g} s")
        self._file.write(data)

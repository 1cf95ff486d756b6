"""The file that decoders of audio write samples to.

Samples have one channel, 16 bits and 16,000 per second.
"""

from __future__ import annotations

from typing import BinaryIO

from ovserve.sandbox.messages import Undecodable

SAMPLES_PER_SECOND = 16_000
SAMPLE_BYTES = 2


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

"""The frames between the server and a process that decodes audio. One answer per request, in order."""

from __future__ import annotations

import msgspec


class DecodeAudio(msgspec.Struct, frozen=True, tag=True):
    """Paths of a file as it was sent, and of the one for its samples, which exists and is empty."""

    source: str
    target: str
    max_seconds: float


class DecodedAudio(msgspec.Struct, frozen=True, tag=True):
    """The number of samples that were written: 16 bit, one channel, 16,000 per second."""

    samples: int


class UndecodableAudio(msgspec.Struct, frozen=True, tag=True):
    why: str


AudioResult = DecodedAudio | UndecodableAudio

"""The input audio buffer of a session: bytes as they came, and the same at 16 kHz for the models.

Between turns only what may be the beginning of the next one is kept.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from ovserve.api.openai.realtime.config import Format, Pcm, bytes_a_second, fault
from ovserve.api.openai.realtime.packets import SAMPLES_PER_SECOND
from ovserve.api.openai.realtime.turns import MAX_TURN_SECONDS

SHORTEST_MS = 100  # of what can be committed
KEPT_SECONDS = 2  # between turns, with voice activity
MOST_SECONDS = MAX_TURN_SECONDS + 10

Ear = Callable[[bytes], bytes]  # from the client's format to 16 kHz, with a state of its own


class InputBuffer:
    """Positions are samples at 16 kHz since the session began."""

    def __init__(self, make_ear: Callable[[Format], Ear]) -> None:
        self._make_ear = make_ear
        self.begin = self.end = 0
        self._raw, self._audio = bytearray(), bytearray()
        self.set_format(Pcm())

    def set_format(self, format_: Format) -> None:
        self._format = format_
        self._ear = self._make_ear(format_)
        self._a_second = bytes_a_second(format_)
        self._raw.clear()
        self._audio.clear()
        self.begin = self.end

    def append(self, encoded: Any, room: float = MOST_SECONDS) -> bytes:
        """Add base64; return the audio that is new. `room`: the seconds that fit. Raises EventError."""
        if not isinstance(encoded, str):
            raise fault("audio: expected a string of base64", "audio")
        try:
            raw = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise fault("audio: not valid base64", "audio") from None
        if isinstance(self._format, Pcm) and len(raw) % 2:
            raise fault(f"audio: {len(raw)} bytes are no whole samples of 16 bits", "audio")
        if (len(self._raw) + len(raw)) / self._a_second > room:
            raise fault(
                f"audio: the buffer is full: at most {MAX_TURN_SECONDS} s; commit or clear it",
                "audio",
                "input_audio_buffer_full",
            )
        heard = self._ear(raw)
        self._raw += raw
        self._audio += heard
        self.end += len(heard) // 2
        return heard

    def converted(self, raw: bytes) -> bytes:
        """Return audio that is not of the buffer at 16 kHz."""
        return self._make_ear(self._format)(raw)

    @property
    def milliseconds(self) -> int:
        return len(self._raw) * 1000 // self._a_second

    def audio(self, start: int, end: int) -> bytes:
        """Return what was heard from one sample to another."""
        start, end = max(start, self.begin), max(end, self.begin)
        return bytes(self._audio[(start - self.begin) * 2 : (end - self.begin) * 2])

    def raw(self, start: int, end: int) -> bytes:
        """Return the same as it came."""
        first, last = (self._place(max(at, self.begin)) for at in (start, end))
        return bytes(self._raw[first:last])

    def drop(self, before: int) -> None:
        """Forget what is before a sample."""
        before = min(before, self.end)
        if before <= self.begin:
            return
        del self._raw[: self._place(before)]
        del self._audio[: (before - self.begin) * 2]
        self.begin = before

    def clear(self) -> None:
        self.drop(self.end)
        self._raw.clear()

    def trim(self, looked: int) -> None:
        """Forget all but the last seconds of what was `looked` at: more may have come since."""
        if looked - self.begin > 2 * KEPT_SECONDS * SAMPLES_PER_SECOND:  # seldom, because what stays is moved
            self.drop(looked - KEPT_SECONDS * SAMPLES_PER_SECOND)

    def _place(self, at: int) -> int:
        place = (at - self.begin) * self._a_second // SAMPLES_PER_SECOND
        return place & ~1 if isinstance(self._format, Pcm) else place

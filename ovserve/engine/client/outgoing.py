"""Outgoing: frames on their way to an engine process, those of one turn of the event loop in one write.

Each write is a system call that may wake the engine's reader. Requests that arrive together are sent
together, so the engine also reads them together and can run them as one batch.
"""

from __future__ import annotations

import asyncio

LARGE_BYTES = 64 << 10  # of a frame that is not copied to join it with others


class Outgoing:
    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []

    def write(self, frame: bytes) -> None:
        """Write a frame at the end of this turn, or at once if it is large; in the order of the calls."""
        if len(frame) > LARGE_BYTES:
            self._flush()
            if not self._transport.is_closing():
                self._transport.write(frame)
            return
        if not self._frames:
            self._loop.call_soon(self._flush)
        self._frames.append(frame)

    def abort(self) -> None:
        self._transport.abort()

    def _flush(self) -> None:
        """Write what is kept; dropped if the engine is gone."""
        frames, self._frames = self._frames, []
        if frames and not self._transport.is_closing():
            self._transport.write(b"".join(frames))

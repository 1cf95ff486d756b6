"""The processes that decode images and files, one request at a time each.

A C decoder fed with untrusted data may crash, hang or exhaust memory, and some formats are decoded by Python.
"""

from __future__ import annotations

import msgspec

from ovserve.engine.protocol.frames import encode
from ovserve.sandbox.children import ChildEnded, ChildPool, ChildTimeout
from ovserve.sandbox.images.messages import DecodeResult, Question, Undecodable

MOST = 2  # processes
SECONDS = 10.0  # for one image
MEMORY = 1 << 30  # bytes of a process's address space
WORKER = "ovserve.sandbox.images.worker"

_answer: msgspec.msgpack.Decoder[DecodeResult] = msgspec.msgpack.Decoder(DecodeResult)


class Decoders:
    """Decoder processes. Times in seconds, memory in bytes."""

    def __init__(self, *, seconds: float = SECONDS, memory: int = MEMORY, most: int = MOST) -> None:
        self._seconds = seconds
        self._pool = ChildPool(WORKER, "images and files", seconds=seconds, memory=memory, most=most)

    @property
    def pids(self) -> list[int]:
        """Return the PIDs of idle processes."""
        return self._pool.pids

    async def ask(self, question: Question) -> DecodeResult:
        """Decode an image or a file. Raises Unavailable when no process becomes free in time."""
        async with self._pool.slot():
            try:
                return _answer.decode(await self._pool.ask([encode(question)], "an image or a file"))
            except ChildTimeout:
                return Undecodable(f"it took more than {self._seconds:g} s to decode")
            except ChildEnded:
                return Undecodable("it is broken: the decoder process ended while decoding it")

    async def stop(self) -> None:
        """End the idle processes; busy ones end with their requests."""
        await self._pool.stop()

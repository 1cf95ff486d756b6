"""AudioLoader: the server's side of decoding. A file becomes samples in another file, read piece by piece.

So memory does not grow with the length of a recording: an hour is 115 MB on disk. A decoded file has no name,
and the next server removes what one that was killed while decoding has left (`scratch.py`).
"""

from __future__ import annotations

import asyncio
import binascii
import os
from pathlib import Path

import msgspec

from ovserve.errors import InvalidArgument, Unavailable
from ovserve.llm.audio import SAMPLE_BYTES, SAMPLES_PER_SECOND, base64_bytes
from ovserve.sandbox.messages import Undecodable
from ovserve.sandbox.pool import Pool
from ovserve.scratch import scratch_file

FILE_SECONDS = 120.0  # for one file; an hour takes 4 to 10
MAX_MEMORY = 2 << 30  # bytes of a process's address space
FUNCTIONS = "ovserve.sandbox.audio_decoder"
MIN_SAMPLES = SAMPLES_PER_SECOND // 100  # samples; 10 ms


def _write(descriptor: int, data: str) -> int:
    """Return the number of bytes. Raises binascii.Error."""
    if data.startswith("data:"):
        data = data.partition(",")[2]
    with open(descriptor, "wb", closefd=False) as file:
        return file.write(base64_bytes(data))


class AudioBounds(msgspec.Struct, frozen=True):
    """The operator's limits: --max_audio_bytes, --max_audio_seconds."""

    bytes: int = 25 << 20  # of a file; OpenAI's
    seconds: float = 4 * 3600.0  # 460 MB of samples


class Recording:
    """Samples on disk: 16 kHz, one channel, 16 bit, little-endian. `close` it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.samples = os.fstat(descriptor).st_size // SAMPLE_BYTES

    @property
    def seconds(self) -> float:
        return self.samples / SAMPLES_PER_SECOND

    def read(self, begin: int, count: int) -> bytes:
        """Return at most `count` samples from `begin` on."""
        return os.pread(self._descriptor, count * SAMPLE_BYTES, begin * SAMPLE_BYTES)

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    def close(self) -> None:
        """Release the disk space; any number of times."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class AudioLoader:
    def __init__(self, bounds: AudioBounds | None = None) -> None:
        self.bounds = bounds or AudioBounds()
        self._pool = Pool(
            f"{FUNCTIONS}:initialize", seconds=FILE_SECONDS, memory=MAX_MEMORY, purpose=" to decode audio"
        )

    async def load_base64(self, data: str, param: str) -> Recording:
        """Decode a file that is base64, or a data URL with base64. Raises as `load`."""
        try:
            descriptor, path = scratch_file()
            try:
                size = await asyncio.to_thread(_write, descriptor, data)
                self.check_size(size, param)
                return await self.load(path, param)
            finally:
                path.unlink()
                os.close(descriptor)
        except binascii.Error as error:
            raise InvalidArgument.at(param, f"expected base64: {error}") from None
        except OSError as error:
            raise Unavailable(f"the server cannot store audio: {error.strerror}") from error

    def check_size(self, size: int, param: str) -> None:
        """Raises InvalidArgument for more bytes than a file may have."""
        if size > (most := self.bounds.bytes):
            raise InvalidArgument.at(param, f"{size} bytes are more than the {most} that a file may have")

    async def load(self, source: Path, param: str) -> Recording:
        """Decode a file. Raises InvalidArgument naming `param` for one that cannot be used, Unavailable when
        no process becomes free in time."""
        try:
            descriptor, target = scratch_file()
        except OSError as error:
            raise Unavailable(f"the server cannot store decoded audio: {error.strerror}") from error
        try:
            samples: int = await self._pool.decode(
                f"{FUNCTIONS}:decode", str(source), str(target), self.bounds.seconds, returns=int
            )
            if samples < MIN_SAMPLES:
                raise InvalidArgument.at(param, f"the audio is too short: {samples} samples")
        except Undecodable as error:
            os.close(descriptor)
            raise InvalidArgument.at(param, f"the audio cannot be read: {error}") from None
        except BaseException:
            os.close(descriptor)
            raise
        finally:
            target.unlink()
        return Recording(descriptor)

    async def stop(self) -> None:
        await self._pool.stop()

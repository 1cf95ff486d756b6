"""The server's handle on the processes that decode images and files, one request at a time each.

They are processes because a C decoder fed with untrusted data may crash, hang or exhaust memory. Some formats
are decoded by Python, which would hold the event loop's lock. The kernel limits a process; a thread cannot be
ended.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from ovserve.engine.protocol.frames import HEADER_BYTES, encode
from ovserve.errors import Unavailable
from ovserve.sandbox.images.messages import DecodeResult, Question, Undecodable

MOST = 2  # processes
SECONDS = 10.0  # for one image
MEMORY = 1 << 30  # bytes of a process's address space
WAIT = 30.0  # seconds for a process to be free
GRACE = 30.0  # added to SECONDS, for a process that starts or is not scheduled
LAST_WORDS = 1.0  # seconds between a closed socket and the end of its process
RETRY_AFTER = 1.0  # seconds
BUFFER_BYTES = 1 << 20

log = logging.getLogger(__name__)

_answer: msgspec.msgpack.Decoder[DecodeResult] = msgspec.msgpack.Decoder(DecodeResult)


class DecoderProcess:
    """One process, not started yet: `await DecoderProcess.start(...)`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, seconds: float, memory: int) -> DecoderProcess:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                arguments = (str(theirs.fileno()), str(seconds), str(memory))
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "ovserve.sandbox.images.worker",
                    *arguments,
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                )
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=BUFFER_BYTES)
        except BaseException:
            ours.close()
            raise
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, question: Question) -> DecodeResult | None:
        """Send a request; return None when the process ended over it."""
        try:
            self._writer.write(encode(question))
            await self._writer.drain()
            header = await self._reader.readexactly(HEADER_BYTES)
            return _answer.decode(await self._reader.readexactly(int.from_bytes(header, "big")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def end(self, within: float = 0.0) -> int:
        """Return its exit code, negative for a signal. Kills it unless it ends by itself within so many
        seconds."""
        try:
            async with asyncio.timeout(within):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
        self._writer.transport.abort()
        return await self._process.wait()


class Decoders:
    """Decoder processes, started when needed and kept. Times in seconds, memory in bytes."""

    def __init__(self, *, seconds: float = SECONDS, memory: int = MEMORY, most: int = MOST) -> None:
        self._seconds = seconds
        self._memory = memory
        self._free = asyncio.Semaphore(most)
        self._idle: list[DecoderProcess] = []

    @property
    def pids(self) -> list[int]:
        """Return the PIDs of idle processes."""
        return [process.pid for process in self._idle]

    async def ask(self, question: Question) -> DecodeResult:
        """Decode an image or a file. Raises Unavailable when no process becomes free in time."""
        try:
            async with asyncio.timeout(WAIT):
                await self._free.acquire()
        except TimeoutError:
            raise Unavailable(
                f"no process was free to decode an image or a file for {WAIT:g} s", retry_after=RETRY_AFTER
            ) from None
        try:
            return await self._ask(question)
        finally:
            self._free.release()

    async def _ask(self, question: Question) -> DecodeResult:
        for _ in range(2):
            process = await self._take()
            try:
                async with asyncio.timeout(self._seconds + GRACE):  # the process also has its own alarm
                    answer = await process.ask(question)
            except TimeoutError:
                answer = None
            except BaseException:
                await process.end()  # the client disconnected, and no one reads the answer
                raise
            if answer is not None:
                self._idle.append(process)
                return answer
            code = await process.end(within=LAST_WORDS)
            if code in (-signal.SIGALRM, -signal.SIGKILL):
                log.warning("an image or a file was not decoded within %g s", self._seconds)
                return Undecodable(f"it took more than {self._seconds:g} s to decode")
            log.error("an image process ended with %d over an image or a file", code)
        return Undecodable("it is broken: the decoder process ended while decoding it")

    async def _take(self) -> DecoderProcess:
        if self._idle:
            return self._idle.pop()
        try:
            return await DecoderProcess.start(self._seconds, self._memory)
        except OSError as error:
            log.error("an image process cannot be started: %s", error)
            raise Unavailable("images and files cannot be decoded now", retry_after=RETRY_AFTER) from error

    async def stop(self) -> None:
        """End the idle processes; busy ones end with their requests."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.end() for process in idle))

"""The server's handle on the processes that decode large bodies.

They are processes because decoding a million values takes a second and holds Python's global lock inside a
few C calls. On a thread it would stop every stream as well. The kernel limits a process in time and memory.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from ovserve.engine.protocol.frames import HEADER_BYTES, encode
from ovserve.errors import Internal, OvserveError, PayloadTooLarge, Unavailable
from ovserve.sandbox.bodies.messages import Answer, Broken, Call, Raised, Returned

MOST = 2  # processes
SECONDS = 30.0  # for one call; the largest body within the default limits takes 3
MEMORY = 2 << 30  # bytes of a process's address space
WAIT = 30.0  # seconds for a process to be free
GRACE = 30.0  # added to SECONDS, for a process that starts or is not scheduled
LAST_WORDS = 1.0  # seconds between a closed socket and the end of its process
RETRY_AFTER = 2.0  # seconds
BUFFER_BYTES = 1 << 20

T = TypeVar("T")

log = logging.getLogger(__name__)

_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class BodyProcess:
    """One process, not started yet: `await BodyProcess.start(...)`."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer

    @classmethod
    async def start(cls, seconds: float, memory: int) -> BodyProcess:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                arguments = (str(theirs.fileno()), str(seconds), str(memory))
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "ovserve.sandbox.bodies.worker",
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

    async def ask(self, frame: bytes) -> Answer | None:
        """Send a call; return None when the process ended over it."""
        try:
            view = memoryview(frame)
            for at in range(0, len(frame), BUFFER_BYTES):  # of one piece the transport makes copies at once
                self._writer.write(view[at : at + BUFFER_BYTES])
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


class BodyPool:
    """Processes that decode bodies, started when needed and kept. Times in seconds, memory in bytes."""

    def __init__(self, *, seconds: float = SECONDS, memory: int = MEMORY, most: int = MOST) -> None:
        self._seconds = seconds
        self._memory = memory
        self._free = asyncio.Semaphore(most)
        self._idle: list[BodyProcess] = []

    @property
    def pids(self) -> list[int]:
        """Return the PIDs of idle processes."""
        return [process.pid for process in self._idle]

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a module's function in a process and return its result; raise the OvserveError that it raises.

        Raises Unavailable when no process is free or the time is over, PayloadTooLarge when memory runs out.
        """
        name = f"{function.__module__}:{function.__qualname__}"
        try:
            async with asyncio.timeout(WAIT):
                await self._free.acquire()
        except TimeoutError:
            raise Unavailable(
                f"no process was free to decode a large body for {WAIT:g} s", retry_after=RETRY_AFTER
            ) from None
        try:
            data = pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL)
            await asyncio.sleep(0)  # each copy of a large body in a turn of the loop of its own
            frame = encode(Call(name, data))
            del data
            await asyncio.sleep(0)
            answer = await self._ask(name, frame)
        finally:
            self._free.release()
        await asyncio.sleep(0)
        if isinstance(answer, Returned):
            value: T = pickle.loads(answer.value)
            return value
        if isinstance(answer, Raised):
            error: OvserveError = pickle.loads(answer.error)
            raise error
        if answer.memory:
            raise PayloadTooLarge(f"the body cannot be decoded: {answer.why}")
        raise Internal(f"{name} failed in a body process:\n{answer.why}")

    async def _ask(self, name: str, frame: bytes) -> Answer:
        code = 0
        for _ in range(2):
            process = await self._take()
            try:
                async with asyncio.timeout(self._seconds + GRACE):  # the process also has its own alarm
                    answer = await process.ask(frame)
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
                log.warning("%s was killed after %g s", name, self._seconds)
                raise Unavailable(
                    f"the body was not decoded within {self._seconds:g} s", retry_after=RETRY_AFTER
                )
            log.error("a body process ended with %d over %s", code, name)
        return Broken(True, f"it ended its process twice, with {code}")

    async def _take(self) -> BodyProcess:
        if self._idle:
            return self._idle.pop()
        try:
            return await BodyProcess.start(self._seconds, self._memory)
        except OSError as error:
            log.error("a body process cannot be started: %s", error)
            raise Unavailable("large bodies cannot be decoded now", retry_after=RETRY_AFTER) from error

    async def stop(self) -> None:
        """End the idle processes; busy ones end with their requests."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.end() for process in idle))

"""A pool of child processes that decode untrusted data; this is the server's side.

They are processes because the kernel limits one in time and memory, while a thread cannot be ended and holds
the event loop's lock. `sandbox/base.py` is the other end.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from ovserve.engine.protocol.frames import HEADER_BYTES
from ovserve.errors import Unavailable

WAIT = 30.0  # seconds for a process to be free
GRACE = 30.0  # added to a process's time limit, for one that starts or is not scheduled
LAST_WORDS = 1.0  # seconds between a closed socket and the end of its process
RETRY_AFTER = 1.0  # seconds
BUFFER_BYTES = 1 << 20

log = logging.getLogger(__name__)


class ChildTimeout(Exception):
    """A request took longer than its process may run."""


class ChildEnded(Exception):
    """Two processes ended over a request; `code` as in subprocess, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Child:
    """One process, not started yet: `await Child.start(...)`."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer

    @classmethod
    async def start(cls, module: str, seconds: float, memory: int) -> Child:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    module,
                    *(str(theirs.fileno()), str(seconds), str(memory)),
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

    async def ask(self, parts: Sequence[bytes]) -> bytes | None:
        """Send the parts of a frame and return the answer's payload; None when the process ended over it."""
        try:
            for part in parts:
                view = memoryview(part)
                for at in range(0, len(view), BUFFER_BYTES):  # of one piece the transport makes copies
                    self._writer.write(view[at : at + BUFFER_BYTES])
                    await self._writer.drain()
            header = await self._reader.readexactly(HEADER_BYTES)
            return await self._reader.readexactly(int.from_bytes(header, "big"))
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


class ChildPool:
    """Processes of `module`, started when needed and kept. Times in seconds, memory in bytes.

    `what` names what they decode, for messages: "large bodies".
    """

    def __init__(self, module: str, what: str, *, seconds: float, memory: int, most: int) -> None:
        self._module, self._what = module, what
        self._seconds, self._memory = seconds, memory
        self._free = asyncio.Semaphore(most)
        self._idle: list[Child] = []

    @property
    def pids(self) -> list[int]:
        """Return the PIDs of idle processes."""
        return [child.pid for child in self._idle]

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one of the `most` places. Raises Unavailable when none becomes free in time."""
        try:
            async with asyncio.timeout(WAIT):
                await self._free.acquire()
        except TimeoutError:
            raise Unavailable(
                f"no process was free to decode {self._what} for {WAIT:g} s", retry_after=RETRY_AFTER
            ) from None
        try:
            yield
        finally:
            self._free.release()

    async def ask(self, parts: Sequence[bytes], name: str) -> bytes:
        """Return a process's answer, within a slot; a new process is tried if the first one ends, which may
        have been killed while it was idle.

        `name` is for the log. Raises ChildTimeout, ChildEnded, and Unavailable if none can be started.
        """
        code = 0
        for attempt in range(2):
            child = self._idle.pop() if self._idle and attempt == 0 else await self._start()
            answer, overdue = None, False
            try:
                async with asyncio.timeout(self._seconds + GRACE):  # the process also has its own alarm
                    answer = await child.ask(parts)
            except TimeoutError:
                overdue = True
            except BaseException:
                await child.end()  # the client disconnected, and no one reads the answer
                raise
            if answer is not None:
                self._idle.append(child)
                return answer
            code = await child.end(within=LAST_WORDS)
            if overdue or code == -signal.SIGALRM:  # SIGKILL may be the kernel's, which needed memory
                log.warning("%s took longer than %g s", name, self._seconds)
                raise ChildTimeout
            log.error("a process for %s ended with %d over %s", self._what, code, name)
        raise ChildEnded(code)

    async def _start(self) -> Child:
        try:
            return await Child.start(self._module, self._seconds, self._memory)
        except OSError as error:
            log.error("a process for %s cannot be started: %s", self._what, error)
            raise Unavailable(f"{self._what} cannot be decoded now", retry_after=RETRY_AFTER) from error

    async def stop(self) -> None:
        """End the idle processes; busy ones end with their requests."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.end() for child in idle))

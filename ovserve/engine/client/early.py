"""An engine process started before the server has imported anything, for the first engine.

The libraries of the engine process take 0.25 s to import, and so do the parts of the server that find out
what it should load. An event loop starts a process 0.15 s after the interpreter, so this is done without
one: `EngineProcess.adopt` takes the process over. This module imports only the standard library, and no
asyncio.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ovserve.engine.protocol.launch import PREPARE, WORKER

if TYPE_CHECKING:
    import asyncio


SHARED_MEMORY = "/dev/shm"


def choose_temporary_directory() -> None:
    """Set TMPDIR to shared memory where no directory for temporary files can be written.

    Containers with a read-only root have such a one all the same. It is for this process and its children.
    """
    places = [os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")]
    places += ["/tmp", "/var/tmp", "/usr/tmp", os.curdir]  # as `tempfile`, which takes long to import
    if not any(place and os.access(place, os.W_OK | os.X_OK) for place in places):
        os.environ["TMPDIR"] = SHARED_MEMORY


class EarlyProcess:
    """The process and our end of its socket, until `EngineProcess.adopt` or `end`."""

    def __init__(self, process: subprocess.Popen[bytes], ours: socket.socket, pidfd: int) -> None:
        self._process = process
        self._ours = ours
        self._pidfd = pidfd
        self._owned = True

    @classmethod
    def spawn(cls) -> EarlyProcess | None:
        """Return None where it is not possible; the event loop starts a process then, and reports errors."""
        if not hasattr(os, "pidfd_open"):
            return None
        with suppress(OSError):
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    process = subprocess.Popen(
                        [sys.executable, "-m", WORKER, str(theirs.fileno()), PREPARE],
                        pass_fds=(theirs.fileno(),),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                    )
            except OSError:
                ours.close()
                raise
            early = cls(process, ours, -1)
            try:
                early._pidfd = os.pidfd_open(process.pid)
            except OSError:  # a kernel before Linux 5.3
                early.end()
                raise
            return early
        return None

    def end(self) -> None:
        """Kill it, unless it was adopted."""
        if not self._owned:
            return
        self._owned = False
        self._process.kill()
        self._process.wait()
        self._ours.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)

    async def adopt(self) -> tuple[AdoptedProcess, socket.socket]:
        """Return the process as an event loop has it, and our end of its socket."""
        import asyncio

        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout)
        self._owned = False
        return AdoptedProcess(self._process, self._pidfd, reader, loop), self._ours


class AdoptedProcess:
    """A process that the event loop did not start, with the part of `asyncio.subprocess.Process` that
    `EngineProcess` uses. The kernel reports its end on `pidfd`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        pidfd: int,
        stdout: asyncio.StreamReader,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._process = process
        self._pidfd = pidfd
        self._loop = loop
        self.stdout = stdout
        self.pid = process.pid
        self.returncode: int | None = None
        self._ended: asyncio.Future[int] = loop.create_future()
        self._remove: Callable[[int], object] = loop.remove_reader
        loop.add_reader(pidfd, self._on_end)

    async def wait(self) -> int:
        import asyncio

        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError if it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        self._process.send_signal(number)

    def kill(self) -> None:
        """Raises ProcessLookupError if it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        self._process.kill()

    def _on_end(self) -> None:
        self._remove(self._pidfd)
        os.close(self._pidfd)
        self.returncode = self._process.wait()
        self._ended.set_result(self.returncode)

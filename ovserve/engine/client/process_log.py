"""The output of an engine process: copied to the log line by line, its last lines kept for error messages."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress

from ovserve.engine.client.early import AdoptedProcess

log = logging.getLogger(__name__)

TAIL_LINES = 20
TAIL_LINE_CHARS = 500
DUMP_SECONDS, DUMP_PAUSE = 2.0, 0.3  # wait for stacks, and the silence after which they are complete


class ProcessLog:
    def __init__(self) -> None:
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._wrote = asyncio.Event()

    async def copy(self, process: asyncio.subprocess.Process | AdoptedProcess) -> None:
        """Copy the output until it ends."""
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > 1 << 16:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._log_line(process.pid, line)
        self._log_line(process.pid, rest)

    def tail(self) -> str:
        """Return the last lines, to be appended to an error message."""
        return "; its last output:\n" + "\n".join(self._tail) if self._tail else ""

    async def silence(self) -> None:
        """Wait until it has written something and paused, for a few seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DUMP_SECONDS):
                self._wrote.clear()
                await self._wrote.wait()
                while self._wrote.is_set():
                    self._wrote.clear()
                    await asyncio.sleep(DUMP_PAUSE)

    def _log_line(self, pid: int, line: bytes) -> None:
        if text := line.decode("utf-8", errors="replace").rstrip():
            self._tail.append(text[:TAIL_LINE_CHARS])
            self._wrote.set()
            log.info("engine[%d]: %s", pid, text)

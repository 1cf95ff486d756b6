"""One engine process as seen from the server: spawn, wait for Ready, frames both ways, log lines, the end.

Used by `client.py` and `grammars.py`, which decide when to start another, and by `spare.py`. Frames are
dispatched where they arrive, in the protocol's data_received(): a reader task between would cost a loop turn
per step.

Why a plain subprocess and not multiprocessing: no second import of __main__, no pickle, and the child's
output is a pipe we can prefix and quote when it dies. POSIX (`pass_fds`, a socketpair).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import msgspec

from ovserve.engine.client.process_log import ProcessLog
from ovserve.engine.host.memory import oom_kills
from ovserve.engine.host.threads import thread_states
from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.frames import FrameDecoder, FrameError, encode
from ovserve.engine.protocol.messages import (
    DUMP_SIGNAL,
    PREPARE,
    Accepted,
    Compiled,
    Detokenized,
    Done,
    Failed,
    FromEngine,
    Item,
    Load,
    LoadFailed,
    Pong,
    Ready,
    Steps,
    Stop,
    ToEngine,
    Tokenized,
)
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import LoadError

log = logging.getLogger(__name__)

EXIT_WAIT = 5.0  # seconds for a process whose socket is closed already

EngineMessage = Accepted | Failed | Steps | Tokenized | Detokenized | Compiled | Item | Done | Pong


def _ignore(word: EngineMessage) -> None:
    pass


def _ignore_end() -> None:
    pass


class EngineProcess(asyncio.Protocol):
    """`on_word` gets every frame after Ready, `on_end` is called once, when nothing more can come."""

    def __init__(
        self, on_word: Callable[[EngineMessage], None] = _ignore, on_end: Callable[[], None] = _ignore_end
    ) -> None:
        self.serve(on_word, on_end)
        self._frames: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)
        self.segments = Segments(os.getpid(), secrets.token_hex(4))
        self._transport: asyncio.WriteTransport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._log = ProcessLog()
        self._first: asyncio.Future[Ready | LoadFailed | None] = asyncio.get_running_loop().create_future()
        self._protocol_error = self._killed_for = ""
        self._kills = deque([oom_kills()], maxlen=2)  # as of the last two looks
        self._by_kernel = False
        self.ended = asyncio.Event()
        self.sent = 0  # messages

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def prepare(self) -> None:
        """Spawn it before it is known what it will load; `start` or `stop` is to follow."""
        await self._spawn(PREPARE)

    async def start(self, spec: Spec, *, ready_timeout: float) -> Facts:
        """Returns when the engine is ready; LoadError, with the process gone, when it will not be."""
        try:
            if self._process is None:
                await self._spawn(spec.kind)  # without effect; it tells processes apart in a list
            self.send(Load.of(spec, self.segments.connection))
            try:
                async with asyncio.timeout(ready_timeout):
                    first = await self._first
            except TimeoutError:
                await self._kill()
                raise LoadError(
                    f"the engine was not ready after {ready_timeout:g} s{self._log.tail()}",
                    file=spec.model_path,
                ) from None
            if isinstance(first, Ready):
                facts: Facts = msgspec.msgpack.decode(first.facts, type=spec.facts_type)
                return facts
            await self._gone()
            if first is None:
                raise LoadError(
                    f"the engine process ended while loading ({self.how_it_ended()}){self._log.tail()}",
                    file=spec.model_path,
                )
            raise LoadError(first.message, field=first.field)
        except BaseException:
            await self._kill()
            raise

    def send(self, message: ToEngine) -> None:
        """Raises FrameError for a message that is too large; to an engine that is gone nothing is sent."""
        frame = encode(message)
        self.sent += 1
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    async def stop(self, grace: float) -> None:
        """Polite first: Stop, `grace` seconds, SIGKILL. For a dead process it only collects the remains."""
        self.send(Stop())
        await self._gone(grace)

    @property
    def killed_by_kernel(self) -> bool:
        """For want of memory; known when nothing more can come of it."""
        return self._by_kernel

    @property
    def exit_status(self) -> int | None:
        """Negative: the signal that ended it. None: it runs, or was never started."""
        return self._process.returncode if self._process else None

    @property
    def ended_by_itself(self) -> bool:
        """False if someone else killed it, or its frames were broken."""
        code = self.exit_status
        killed = code == -signal.SIGKILL and not self._killed_for
        return code not in (None, 0) and not killed and not self._protocol_error

    def how_it_ended(self) -> str:
        if self._protocol_error or self._killed_for:
            return self._protocol_error or f"killed by the server: {self._killed_for}"
        code = self._process.returncode if self._process else None
        if code is None:
            return "its socket is closed"
        if code < 0:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
            if -code == signal.SIGKILL:
                return "killed by the kernel: out of memory" if self._by_kernel else f"killed by {name}"
            return f"killed by {name}"
        return f"exit status {code}"

    # ---- the protocol of the parent's end of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                if isinstance(message, Ready | LoadFailed):
                    if not self._first.done():
                        self._first.set_result(message)
                else:
                    self._on_word(message)
        except FrameError as error:
            self._protocol_error = f"protocol error: {error}"
            log.error("engine[%d]: %s", self.pid, self._protocol_error)
            self.kill()
            if self._transport is not None:
                self._transport.abort()  # connection_lost() follows

    def connection_lost(self, exc: Exception | None) -> None:
        self._by_kernel = oom_kills() > self._kills[0]
        if not self._first.done():
            self._first.set_result(None)
        self.segments.clear()
        self.ended.set()
        self._on_end()

    # ---- inside

    async def _spawn(self, *marks: str) -> None:
        """Whole, also for a caller that is cancelled: half a process, whose pid or socket nobody knows yet,
        could not be ended."""
        spawning = asyncio.create_task(self._spawn_whole(*marks))
        try:
            await asyncio.shield(spawning)
        finally:
            await asyncio.wait({spawning})

    async def _spawn_whole(self, *marks: str) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "ovserve.engine.worker.main",
                    str(theirs.fileno()),
                    *marks,
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                )
            self._log_task = asyncio.create_task(
                self._log.copy(self._process), name=f"engine[{self.pid}] log"
            )
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise

    async def _gone(self, grace: float = EXIT_WAIT) -> None:
        """Until the process has ended, by force after `grace` seconds, and its output has been read."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            if grace:  # else nobody meant to wait
                log.warning("engine[%d] did not end within %g s and is killed", self.pid, grace)
        await self._kill()

    async def _kill(self) -> None:
        if self._process is not None:
            self.kill()
            await self._process.wait()
        if self._transport is not None:
            self._transport.abort()
        if self._log_task is not None:
            await self._log_task

    def serve(self, on_word: Callable[[EngineMessage], None], on_end: Callable[[], None]) -> None:
        """Whom its words and its end concern."""
        self._on_word, self._on_end = on_word, on_end

    def mute(self) -> None:
        """Its words and its end concern nobody any more."""
        self.serve(_ignore, _ignore_end)

    def look(self) -> None:
        """Now and then: what the kernel had killed at the look before was not this one. What it has killed
        since may be: a process that held much needs a while to end."""
        self._kills.append(oom_kills())

    def threads(self) -> list[str]:
        """What the kernel says of its threads."""
        return list(thread_states(self.pid))

    async def dump_stacks(self) -> None:
        """Have it write its threads' Python stacks to its output, which is copied to the log. Also one that
        was stopped by a signal, which goes on for that."""
        if self._process is None or self._process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            self._process.send_signal(DUMP_SIGNAL)
            self._process.send_signal(signal.SIGCONT)
        await self._log.silence()

    def kill(self, reason: str = "") -> None:
        """At once; `stop` is to be called all the same. `reason` is what is told of its end."""
        self._killed_for = reason or self._killed_for
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):  # it ended, and nobody has told us yet
                self._process.kill()

"""One engine process as seen from the server: spawn, wait for Ready, frames both ways, log lines, the end.

Frames are dispatched where they arrive, in the protocol's data_received(): a reader task between would cost a
loop turn per step.

It is a plain subprocess (`spawn.py`) and not multiprocessing: no second import of __main__, no pickle, and
the child's output is a pipe that can be prefixed, and quoted when the process dies. POSIX (`pass_fds`, a
socketpair).

Outgoing: frames on their way to an engine process, those of one turn of the event loop in one write.

Each write is a system call that may wake the engine's reader. Requests that arrive together are sent
together, so the engine also reads them together and can run them as one batch.

The output of an engine process: copied to the log line by line, its last lines kept for error messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import subprocess
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import msgspec

from ovserve.engine.client.spawn import Child
from ovserve.engine.host.cpu import thread_states
from ovserve.engine.host.memory import oom_kills
from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.frames import FrameDecoder, FrameError, encode
from ovserve.engine.protocol.launch import DUMP_SIGNAL, PREPARE
from ovserve.engine.protocol.messages import (
    Accepted,
    Compiled,
    Detokenized,
    Done,
    Failed,
    FromEngine,
    FromModel,
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

TAIL_LINES = 20
TAIL_LINE_CHARS = 500
EXIT_WAIT = 5.0  # seconds, for a process whose socket is already closed
EXIT_POLL_SECONDS = 0.1  # where the kernel does not report the end of a process
LAST_WORDS_SECONDS = 1.0  # for the output and the frames of an ended process to be read
DUMP_SECONDS, DUMP_PAUSE = 2.0, 0.3  # wait for stacks, and the silence after which they are complete


class ProcessLog:
    def __init__(self) -> None:
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._wrote = asyncio.Event()

    async def copy(self, process: subprocess.Popen[bytes]) -> None:
        """Copy the output until the process has ended, and collect its exit status.

        What a handler of a Python node has started may keep the output open for longer.
        """
        reader = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        copying = asyncio.create_task(self._copy_lines(process.pid, reader))
        await _wait_for_exit(process)
        await asyncio.wait({copying}, timeout=LAST_WORDS_SECONDS)
        copying.cancel()
        pipe.close()  # uvloop keeps it open

    async def _copy_lines(self, pid: int, reader: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await reader.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > 1 << 16:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._log_line(pid, line)
        self._log_line(pid, rest)

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


async def _wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait for the process itself: processes that it has forked may hold its output and its socket open."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux 5.3
        while process.poll() is None:  # noqa: ASYNC110  no child of the event loop
            await asyncio.sleep(EXIT_POLL_SECONDS)
        return
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    process.wait()


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


EngineMessage = (
    Accepted | Failed | Steps | Tokenized | Detokenized | Compiled | Item | Done | Pong | FromModel
)


def ignore(message: EngineMessage) -> None:
    pass


def ignore_end() -> None:
    pass


class EngineProcess(asyncio.Protocol):
    """One process. `on_message` gets each frame after Ready; `on_end` is called once, when no more come."""

    to_blame = True  # for its end: see host.py, where others share the process
    name = retiring = ""
    memory_limit = None

    def __init__(
        self, on_message: Callable[[EngineMessage], None] = ignore, on_end: Callable[[], None] = ignore_end
    ) -> None:
        self.serve(on_message, on_end)
        self._frames: FrameDecoder[FromEngine] = FrameDecoder(FromEngine)
        self.segments = Segments(os.getpid(), secrets.token_hex(4))
        self._outgoing: Outgoing | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loading: Spec | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._log = ProcessLog()
        self._first: asyncio.Future[Ready | LoadFailed | None] = asyncio.get_running_loop().create_future()
        self._protocol_error = self._killed_for = ""
        self._kills = deque([oom_kills()], maxlen=2)  # at the last two checks
        self._by_kernel = False
        self.was_killed = False  # from outside, before it was ready
        self.ended = asyncio.Event()
        self.sent = 0  # messages

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def prepare(self, child: Child | None = None) -> None:
        """Start it before its model is known, if it is not `child`; `start` or `stop` is to follow.

        Raises OSError.
        """
        try:
            await self._connect(child or Child(PREPARE))
        except BaseException:
            await self._kill()
            raise

    async def load(self, spec: Spec) -> None:
        """Let a prepared process begin to load; `start` with the same spec is to follow, or `stop`."""
        self._loading = spec
        self.send(Load.of(spec, self.segments.connection))
        await asyncio.sleep(0)  # messages are written at the end of the event loop's turn

    async def start(self, spec: Spec, *, ready_timeout: float) -> Facts:
        """Return when the engine is ready. Raises LoadError, with the process gone, when it fails to load."""
        try:
            if self._process is None:
                await self._connect(Child(spec.kind, spec.python))
            if self._loading != spec:
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
                self.was_killed = self.exit_status == -signal.SIGKILL and not self._killed_for
                raise LoadError(
                    f"the engine process ended while loading ({self.how_it_ended()}){self._log.tail()}",
                    file=spec.model_path,
                )
            raise LoadError(first.message, field=first.field, node=first.node, transient=first.transient)
        except OSError as error:  # without a name of a file: a limit, which may not be reached a little later
            await self._kill()
            hint = "" if error.filename else "; `ulimit -u` and pids.max limit processes"
            reason = f"its process cannot be started: {error.strerror}{hint}"
            raise LoadError(reason, file=error.filename or "", transient=not error.filename) from error
        except BaseException:
            await self._kill()
            raise

    def send(self, message: ToEngine) -> None:
        """Send a message; dropped if the engine is gone. Raises FrameError for one that is too large."""
        frame = encode(message)
        self.sent += 1
        if self._outgoing is not None:
            self._outgoing.write(frame)

    async def stop(self, grace: float) -> None:
        """Send Stop, wait `grace` seconds, then SIGKILL. For a dead process it only collects the exit
        status."""
        self.send(Stop())
        await self._gone(grace)

    @property
    def killed_by_kernel(self) -> bool:
        """Return whether the kernel killed it to free memory; known once no more messages can come."""
        return self._by_kernel

    @property
    def exit_status(self) -> int | None:
        """Return the exit status; negative: the signal that ended it. None: it runs, or was never started."""
        return self._process.returncode if self._process else None

    @property
    def ended_by_itself(self) -> bool:
        """Return False if it was killed from outside, or its frames were broken."""
        code = self.exit_status
        killed = code == -signal.SIGKILL and not self._killed_for
        return code not in (None, 0) and not killed and not self._protocol_error

    def how_it_ended(self) -> str:
        if self._protocol_error or self._killed_for:
            return self._protocol_error or f"killed by the server: {self._killed_for}"
        code = self._process.returncode if self._process else None
        if code is None:
            return "its socket is closed"
        if code >= 0:
            return f"exit status {code}"
        if code == -signal.SIGKILL and self._by_kernel:
            return "killed by the kernel: out of memory"
        if code == -signal.SIGBUS:
            return "killed by SIGBUS: a file that it had mapped, such as the model's weights, was cut short"
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        return f"killed by {name}"

    # ---- the protocol of the parent's end of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._outgoing = Outgoing(cast(asyncio.WriteTransport, transport))  # uvloop's is not one

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                if isinstance(message, Ready | LoadFailed):
                    if not self._first.done():
                        self._first.set_result(message)
                else:
                    self._on_message(message)
        except FrameError as error:
            self._protocol_error = f"protocol error: {error}"
            log.error("engine[%d]: %s", self.pid, self._protocol_error)
            self.kill()
            if self._outgoing is not None:
                self._outgoing.abort()  # connection_lost() follows

    def connection_lost(self, exc: Exception | None) -> None:
        self._by_kernel = oom_kills() > self._kills[0]
        if not self._first.done():
            self._first.set_result(None)
        self.segments.clear()
        self.ended.set()
        self._on_end()

    # ---- inside

    async def _connect(self, child: Child) -> None:
        self._process = child.process
        self._log_task = asyncio.create_task(self._follow(child.process), name=f"engine[{self.pid}] log")
        self.segments.hold()
        try:
            child.socket.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=child.socket)
        except BaseException:
            self.segments.clear()
            child.socket.close()
            raise

    async def _follow(self, process: subprocess.Popen[bytes]) -> None:
        await self._log.copy(process)
        if self._outgoing is not None and not self.ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), LAST_WORDS_SECONDS)
            self._outgoing.abort()  # where a forked process holds the socket

    async def _gone(self, grace: float = EXIT_WAIT) -> None:
        """Wait until the process has ended, by force after `grace` seconds, and its output has been read."""
        if self._log_task is not None:
            _, waiting = await asyncio.wait({self._log_task}, timeout=grace)
            if waiting and grace:  # else no wait was intended
                log.warning("engine[%d] did not end within %g s; killing it", self.pid, grace)
        await self._kill()

    async def _kill(self) -> None:
        self.kill()
        if self._log_task is not None:
            await asyncio.wait({self._log_task})  # goes on if the caller is cancelled
        if self._outgoing is not None:
            self._outgoing.abort()

    def serve(self, on_message: Callable[[EngineMessage], None], on_end: Callable[[], None]) -> None:
        """Set the receivers of its messages and of its end."""
        self._on_message, self._on_end = on_message, on_end

    def mute(self) -> None:
        """Drop its messages and its end from now on."""
        self.serve(ignore, ignore_end)

    def check_kills(self) -> None:
        """Read the kernel's kill counts; call it now and then. Those of before the previous check cannot be
        of this process. Later ones may be: a process that held much memory needs a while to end."""
        self._kills.append(oom_kills())

    def threads(self) -> list[str]:
        """Return the kernel's view of its threads."""
        return list(thread_states(self.pid))

    async def dump_stacks(self) -> None:
        """Make it write the Python stacks of its threads to its output, which is copied to the log. A process
        that was stopped by a signal is continued for that."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(DUMP_SIGNAL)
        self._process.send_signal(signal.SIGCONT)
        await self._log.silence()

    def kill(self, reason: str = "") -> None:
        """Kill it at once; `stop` is still to be called. `reason` is reported as the cause of its end."""
        self._killed_for = reason or self._killed_for
        if self._process is not None:
            self._process.kill()  # no effect if it has ended

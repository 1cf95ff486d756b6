"""Pool: functions called in child processes, under limits of time and memory; this is the server's side.

What a client or a model's author sends may make a decoder or a template loop, allocate without end or
crash. On the event loop that stops every stream; on a thread it holds the global lock inside one long C
call and cannot be ended. The kernel ends a process on time and limits its memory, and whatever happens in
its interpreter stays there. `worker.py` is the other end.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import msgspec

from ovserve.engine.protocol.frames import FrameDecoder, FrameError, frame_parts
from ovserve.errors import INTERNAL_MESSAGE, Internal, PayloadTooLarge, Unavailable
from ovserve.sandbox.messages import (
    Answer,
    Call,
    DataUnpickler,
    Failed,
    OutOfMemory,
    Raised,
    Returned,
    Text,
    Undecodable,
    typed_decoder,
)

WAIT_SECONDS = 30.0  # for a process to be free
GRACE_SECONDS = 30.0  # added to a call's time limit, for a process that starts or is not scheduled
ABANDONED_SECONDS = 1.0  # in which a call whose caller has left may end, before its process is ended
RETRY_AFTER = 1.0  # seconds
BUFFER_BYTES = 1 << 20  # that are written at once, because the transport makes copies

# What the decoding of an answer raises that is not of its form.
NOT_DATA = (
    *(msgspec.MsgspecError, pickle.UnpicklingError, EOFError),
    *(AttributeError, LookupError, TypeError, ValueError),
)

T = TypeVar("T")

log = logging.getLogger(__name__)


class CallTimeout(Exception):
    """The call took longer than it may."""


class ProcessEnded(Exception):
    """The process ended before it answered; `code` as in subprocess, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"it ended its process twice, with {code}")
        self.code = code


class Process(asyncio.Protocol):
    """One process. `on_free` is called when it can take a call again, `on_end` once, when it cannot any
    more."""

    def __init__(self, on_free: Callable[[Process], None], on_end: Callable[[Process], None]) -> None:
        self._on_free = on_free
        self._on_end = on_end
        self._frames: FrameDecoder[Answer] = FrameDecoder(Answer)
        self._texts: list[str] = []  # of the result that is arriving
        self._transport: asyncio.WriteTransport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._answer: asyncio.Future[Answer | None] | None = None
        self._deadline: asyncio.TimerHandle | None = None  # while a call is running
        self._resumed: asyncio.Future[None] | None = None  # while the socket's buffer is full
        self.works = False  # it has answered once

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self, initializer: str, seconds: float, memory: int) -> None:
        """Start it; return when calls can be sent. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "ovserve.sandbox.worker",
                    *(str(theirs.fileno()), str(seconds), str(memory), initializer),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                )
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise

    async def call(self, frame: Sequence[bytes], seconds: float) -> Answer:
        """Raises CallTimeout or ProcessEnded."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Answer | None] = loop.create_future()
        self._answer = reply
        self._deadline = loop.call_later(seconds, self.kill)  # its own alarm comes first, if it runs
        is_sent = False
        try:
            for part in frame:
                await self._write(part)
            is_sent = True
            answer = await reply
        except asyncio.CancelledError:  # the client disconnected, and no one reads the answer
            if not is_sent:
                self.kill()  # half a call is of no use
            elif self._answer is reply and self._deadline is not None:  # it has not answered
                self._deadline.cancel()
                self._deadline = loop.call_later(ABANDONED_SECONDS, self.kill)
            raise
        if answer is None:
            assert self._process is not None, "it was started"
            code = await self._process.wait()
            if code == -signal.SIGALRM:
                raise CallTimeout
            raise ProcessEnded(code)
        return answer

    async def _write(self, data: bytes) -> None:
        assert self._transport is not None, "it was started"
        if self._transport.is_closing():
            self._reply(None)
        elif len(data) <= BUFFER_BYTES:
            self._transport.write(data)
        else:
            view = memoryview(data)
            for at in range(0, len(view), BUFFER_BYTES):
                self._transport.write(view[at : at + BUFFER_BYTES])
                if self._resumed is not None:
                    await self._resumed
                if self._deadline is None:  # it ended meanwhile
                    return

    def _reply(self, answer: Answer | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    async def end(self) -> None:
        """Kill it: it holds nothing worth waiting for."""
        if self._process is not None:
            self.kill()
            await self._process.wait()
        if self._transport is not None:
            self._transport.abort()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):  # it has ended, but the event has not arrived yet
                self._process.kill()

    # ---- the protocol of the server's end of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is not a subclass of it

    def pause_writing(self) -> None:
        self._resumed = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._resumed = None

    def data_received(self, data: bytes) -> None:
        try:
            for answer in self._frames.feed(data):
                if isinstance(answer, Text) and (self._texts or not answer.is_end):
                    self._texts.append(answer.text)
                    if not answer.is_end:
                        continue
                    answer, self._texts = Text("".join(self._texts)), []
                if self._deadline is None:
                    raise FrameError("an answer without a call")
                self.works = True
                self._reply(answer)
                self._on_free(self)
        except FrameError as error:
            log.error("a sandbox process broke the protocol: %s", error)
            self.kill()  # connection_lost() follows

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        self._reply(None)
        self._on_end(self)


class Pool:
    """Processes started on demand, and kept. Times in seconds, memory in bytes.

    `initializer`, a function's name as module:function, is called first in each process. Another process is
    started when a call has waited for `grow_after`, up to `most`. A process that ended is replaced at once.
    """

    def __init__(
        self,
        initializer: str,
        *,
        seconds: float,
        memory: int,
        most: int = 2,
        wait: float = WAIT_SECONDS,
        grow_after: float = 0.0,
        process: str = "process",
        purpose: str = "",
    ) -> None:
        self._initializer, self.seconds, self._memory = initializer, seconds, memory
        self._most, self._wait, self._grow_after = most, wait, grow_after
        self._title, self._purpose = process, purpose  # "no process was free to decode audio"
        self._processes: set[Process] = set()
        self._idle: list[Process] = []
        self._waiting: deque[asyncio.Future[Process]] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def prepare(self) -> None:
        """Start a process in advance, for a call that is about to come."""
        if not self._processes:
            self._start_one()

    async def call(
        self, function: Callable[..., T] | str, *arguments: Any, label: str = "", returns: Any = None
    ) -> T:
        """Call a module's function in a process and return its result; raise what it raises on purpose:
        OvserveError, Undecodable or OutOfMemory.

        A function may be given as module:function, and `label` names the call in the log. `returns` is the
        type of a result that comes as msgpack. A second process is tried if the first one ends. Raises
        CallTimeout, ProcessEnded, Unavailable when no process is free or can be started, Internal if the
        function has a fault, and PayloadTooLarge for more data than a frame holds.
        """
        name = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
        try:
            frame = _frame(name, arguments, typed=returns is not None)
        except FrameError as error:
            raise PayloadTooLarge(f"it cannot be passed to the process that reads it: {error}") from None
        for repeats in (1, 0):
            process = await self._take()
            try:
                answer = await process.call(frame, self.seconds + GRACE_SECONDS)
                break
            except CallTimeout:
                log.warning("%s took longer than %g s", label or name, self.seconds)
                raise
            except ProcessEnded as ended:
                log.error(
                    "a %s%s ended with %d over %s", self._title, self._purpose, ended.code, label or name
                )
                if not repeats:
                    raise
                self._end_idle()
        if isinstance(answer, Raised):
            raise answer.error
        if isinstance(answer, Failed):
            fault = Internal(answer.traceback)
            log.error("%s failed in a %s", label or name, self._title, exc_info=fault)
            raise Internal(INTERNAL_MESSAGE)
        try:
            return cast(T, _value(answer, returns, (label or name).partition(".")[0]))
        except (*NOT_DATA, RecursionError) as error:
            log.error("a %s answered %s with what is not data: %s", self._title, label or name, error)
            process.kill()
            raise Internal(INTERNAL_MESSAGE) from None

    async def decode(self, function: str, *arguments: Any, returns: Any) -> Any:
        """Call a function that decodes. Raises Undecodable for every failure: the input is to blame."""
        try:
            return await self.call(function, *arguments, returns=returns)
        except CallTimeout:
            raise Undecodable(f"it took more than {self.seconds:g} s to decode") from None
        except OutOfMemory:
            raise Undecodable("decoding it needs too much memory") from None
        except (ProcessEnded, Internal):
            raise Undecodable("it is broken: the decoder process ended while decoding it") from None

    async def stop(self) -> None:
        self._stopping = True
        self._refuse_waiting("the server is stopping")
        await asyncio.gather(*self._starting)
        await asyncio.gather(*(process.end() for process in self._processes))

    # ---- idle processes

    async def _take(self) -> Process:
        if self._stopping:
            raise Unavailable("the server is stopping", retry_after=RETRY_AFTER)
        if self._idle:
            return self._idle.pop()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Process] = loop.create_future()
        self._waiting.append(future)
        if not self._processes:
            self._start_one()
        elif len(self._processes) < self._most:
            loop.call_later(self._grow_after, self._grow)
        taken = False
        try:
            async with asyncio.timeout(self._wait):
                process = await future
            taken = True
            return process
        except TimeoutError:
            raise Unavailable(
                f"no {self._title} was free{self._purpose} for {self._wait:g} s", retry_after=RETRY_AFTER
            ) from None
        finally:
            if not taken and future.done() and not future.cancelled() and future.exception() is None:
                self._give(future.result())  # it came just as the client disconnected or the time ran out
            with suppress(ValueError):
                self._waiting.remove(future)

    def _give(self, process: Process) -> None:
        if process not in self._processes:
            return
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(process)
                return
        self._idle.append(process)

    def _end_idle(self) -> None:
        """Leave a second try only processes that have just answered or started: the kernel, which killed one
        for want of memory, may have killed the others while they were idle."""
        while self._idle:
            self._idle.pop().kill()

    def _grow(self) -> None:
        """Start another process, unless those that are starting are enough for all that wait."""
        if len(self._waiting) > len(self._starting) and len(self._processes) < self._most:
            self._start_one()

    def _start_one(self) -> None:
        if self._stopping:
            return
        process = Process(self._give, self._lost)
        self._processes.add(process)
        task = asyncio.create_task(self._start(process), name=f"start of a {self._title}")
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, process: Process) -> None:
        try:
            await process.start(self._initializer, self.seconds, self._memory)
        except OSError as error:
            message = f"a {self._title} cannot be started{self._purpose}: {error.strerror}"
            log.error("%s", message)
            self._processes.discard(process)
            if not self._processes:
                self._refuse_waiting(message)
        else:
            self._give(process)

    def _refuse_waiting(self, message: str) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_exception(Unavailable(message, retry_after=RETRY_AFTER))

    def _lost(self, process: Process) -> None:
        self._processes.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        if self._waiting or (process.works and not self._processes):
            self._start_one()


def _value(answer: Text | Returned, returns: Any, package: str) -> Any:
    """Return the result. Raises MsgspecError or UnpicklingError for what is not of the type, or no data."""
    if isinstance(answer, Text):
        return answer.text if returns is None else msgspec.convert(answer.text, returns)
    if returns is None:
        return DataUnpickler(answer.value, package).load()
    return typed_decoder(returns).decode(answer.value)


def _frame(name: str, arguments: tuple[Any, ...], *, typed: bool) -> tuple[bytes, ...]:
    """Return a call's frame. The first argument of bytes, such as a request's body, is not pickled."""
    place, body = -1, b""
    for i, argument in enumerate(arguments):
        if type(argument) is bytes:
            place, body = i, argument
            arguments = arguments[:i] + arguments[i + 1 :]
            break
    return frame_parts(Call(name, pickle.dumps(arguments, pickle.HIGHEST_PROTOCOL), typed, place), body)

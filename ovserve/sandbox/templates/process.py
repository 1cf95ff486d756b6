"""One template process as seen from the server: spawn, one request at a time, the end."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from ovserve.engine.protocol.frames import FrameDecoder, FrameError, encode
from ovserve.llm.prompt.chat_template import ChatTemplate
from ovserve.sandbox.templates.messages import Compile, Frame, Part, Question, Rendered, RenderResult


class EndedError(Exception):
    """The process ended before it answered; `code` as in subprocess, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class TemplateProcess(asyncio.Protocol):
    """One process. `on_free` is called when it can take a request again, `on_end` once, when it cannot any
    more."""

    def __init__(
        self, on_free: Callable[[TemplateProcess], None], on_end: Callable[[TemplateProcess], None]
    ) -> None:
        self._on_free = on_free
        self._on_end = on_end
        self._frames: FrameDecoder[Frame] = FrameDecoder(Frame)
        self._parts: list[str] = []  # of the prompt that is arriving
        self._transport: asyncio.WriteTransport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._known: set[int] = set()  # templates it has compiled
        self._unasked = 0  # expected answers without a waiter
        self._answer: asyncio.Future[RenderResult | None] | None = None
        self.works = False  # it has answered once

    @property
    def templates(self) -> int:
        """Return how many templates it has compiled."""
        return len(self._known)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self, seconds: float, memory: int) -> None:
        """Start it; return when requests can be sent. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                arguments = (str(theirs.fileno()), str(seconds), str(memory))
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "ovserve.sandbox.templates.worker",
                    *arguments,
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                )
            ours.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise

    async def ask(self, template: ChatTemplate, question: Question, frame: bytes) -> RenderResult:
        """Send `frame`, the encoded request; one at a time. Raises EndedError."""
        if question.number not in self._known:
            self._known.add(question.number)
            if not isinstance(question, Compile):
                frame = encode(Compile(question.number, template)) + frame
                self._unasked += 1
        self._answer = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            self._answer.set_result(None)
        else:
            self._transport.write(frame)
        answer = await self._answer
        if answer is None:
            assert self._process is not None, "it was started"
            raise EndedError(await self._process.wait())
        return answer

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

    def data_received(self, data: bytes) -> None:
        try:
            answers = self._frames.feed(data)
        except FrameError:
            if self._transport is not None:
                self._transport.abort()  # connection_lost() follows
            return
        for answer in answers:
            if isinstance(answer, Part):
                self._parts.append(answer.text)
                continue
            if self._parts and isinstance(answer, Rendered):
                answer = Rendered("".join([*self._parts, answer.prompt]))
                self._parts.clear()
            self.works = True
            if self._unasked:
                self._unasked -= 1
                continue
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(answer)
            self._on_free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
        self._on_end(self)

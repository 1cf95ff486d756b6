"""The server's handle on its template processes: compile at load, render per request. Built by `server.py`.

A chat template is a program that came with a model, and it runs on what a client sends. It may loop over a
range in a range, double a string forty times, or be quadratic in the messages. Rendered on the event loop
that stops every stream; on a thread it holds the global lock inside one long call of C, and can never be
ended. A deadline woven into the compiled template catches loops, but not `'x' * 10**9`, `|center(10**9)` or
a `|replace` in a `|replace`: each filter and method would need a bound of its own. A process needs none of
that: the kernel ends it on time, keeps its memory in bounds, and whatever a template does to its interpreter
stays there. The price is 15 MB of memory, and 0.1 ms for a short prompt (`make bench-micro`).

One process is kept; a second is started when a request has waited for GROW_AFTER, so that one slow template
does not hold the others up. A process that was ended is replaced at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import signal
from collections import deque
from contextlib import suppress

from ovserve.engine.protocol.frames import FrameError, encode
from ovserve.errors import InvalidArgument, LoadError, Unavailable
from ovserve.llm.prompt.chat_template import ChatTemplate, Conversation, EncodedConversation
from ovserve.sandbox.templates.messages import (
    Compile,
    Compiled,
    Question,
    Refused,
    Render,
    Rendered,
    RenderResult,
)
from ovserve.sandbox.templates.process import EndedError, TemplateProcess

SECONDS = 5.0  # for one prompt; a conversation of 10 MB takes a tenth of a second
MEMORY = 1 << 30  # bytes of a process's address space
MOST = 2  # processes
TEMPLATES = 64  # remembered; reloads bring new ones, and nobody says which are not needed any more
GROW_AFTER = 0.1  # seconds
GRACE = 30.0  # seconds more, for a process that starts or is not scheduled
RETRY_AFTER = 1.0  # seconds a client is told to wait when nobody was free for SECONDS

log = logging.getLogger(__name__)


class TemplatePool:
    """Times in seconds. Start is lazy: a graph without chat templates costs nothing."""

    def __init__(self, *, seconds: float = SECONDS, memory: int = MEMORY, most: int = MOST) -> None:
        self._seconds = seconds
        self._memory = memory
        self._most = most
        self._numbers: dict[ChatTemplate, int] = {}
        self._next_number = itertools.count()
        self._processes: set[TemplateProcess] = set()
        self._idle: list[TemplateProcess] = []
        self._waiting: deque[asyncio.Future[TemplateProcess]] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def pids(self) -> list[int]:
        return [p.pid for p in self._processes]

    def prepare(self) -> None:
        """Have a process started meanwhile, for a template that is about to come."""
        if not self._processes:
            self._start_one()

    async def load(self, template: ChatTemplate) -> ChatTemplate:
        """The template with what it expects filled in. Raises LoadError in jinja's words."""
        try:
            answer = await self._ask(template, Compile(self._number(template), template))
        except InvalidArgument as error:  # it took too long
            raise LoadError(error.message) from error
        if isinstance(answer, Refused):
            raise LoadError(answer.message)
        assert isinstance(answer, Compiled)
        return dataclasses.replace(template, expects=answer.expects)

    async def render(self, template: ChatTemplate, conversation: Conversation | EncodedConversation) -> str:
        """The prompt. Raises InvalidArgument in the template's words, or when it takes too long."""
        try:
            if isinstance(conversation, Conversation):
                conversation = EncodedConversation.of(conversation)
            answer = await self._ask(template, Render(self._number(template), conversation.json))
        except InvalidArgument as error:
            error.param = conversation.param
            raise
        except (FrameError, RecursionError, UnicodeEncodeError) as error:
            raise InvalidArgument(
                f"{conversation.param}: cannot be given to the chat template: {error}",
                param=conversation.param,
            ) from error
        if isinstance(answer, Refused):
            raise InvalidArgument(answer.message, param=answer.param or conversation.param)
        assert isinstance(answer, Rendered)
        return answer.prompt

    async def stop(self) -> None:
        self._stopping = True
        for future in self._waiting:
            if not future.done():
                future.set_exception(Unavailable("the server is stopping", retry_after=RETRY_AFTER))
        await asyncio.gather(*self._starting)
        await asyncio.gather(*(p.end() for p in self._processes))

    # ---- one question

    def _number(self, template: ChatTemplate) -> int:
        if template not in self._numbers:
            if len(self._numbers) >= TEMPLATES:
                self._numbers.clear()  # those in use are compiled again at their next prompt
            self._numbers[template] = next(self._next_number)
        return self._numbers[template]

    async def _ask(self, template: ChatTemplate, question: Question) -> RenderResult:
        """Raises InvalidArgument when the process was ended over it: by the clock, or twice by anything."""
        frame = encode(question)
        code = 0
        for _ in range(2):
            process = await self._take()
            try:
                async with asyncio.timeout(self._seconds + GRACE):  # the process has an alarm of its own
                    return await process.ask(template, question, frame)
            except EndedError as ended:
                code = ended.code
            except TimeoutError:
                await process.end()
                code = -signal.SIGALRM
            if code == -signal.SIGALRM:
                log.warning("a chat template was ended after %g s", self._seconds)
                raise InvalidArgument(f"the chat template did not finish within {self._seconds:g} s")
            log.error("a template process ended with %d over a question", code)
        raise InvalidArgument(f"the chat template ended its process twice, with {code}")

    # ---- who is free

    async def _take(self) -> TemplateProcess:
        if self._stopping:
            raise Unavailable("the server is stopping", retry_after=RETRY_AFTER)
        if self._idle:
            return self._idle.pop()
        future: asyncio.Future[TemplateProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if not self._processes:
            self._start_one()
        elif len(self._processes) < self._most:
            asyncio.get_running_loop().call_later(GROW_AFTER, self._grow)
        taken = False
        try:
            async with asyncio.timeout(self._seconds):
                process = await future
            taken = True
            return process
        except TimeoutError:
            raise Unavailable(
                f"no template process was free for {self._seconds:g} s", retry_after=RETRY_AFTER
            ) from None
        finally:
            if not taken and future.done() and not future.cancelled() and future.exception() is None:
                self._give(future.result())  # it came as the client left, or as the time was over
            with suppress(ValueError):
                self._waiting.remove(future)

    def _give(self, process: TemplateProcess) -> None:
        if process not in self._processes:
            return
        if process.templates > 2 * TEMPLATES:  # most of them are of former times
            process.kill()  # _lost() starts another
            return
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(process)
                return
        self._idle.append(process)

    def _grow(self) -> None:
        if self._waiting and len(self._processes) < self._most:
            self._start_one()

    def _start_one(self) -> None:
        if self._stopping:
            return
        process = TemplateProcess(self._give, self._lost)
        self._processes.add(process)
        task = asyncio.create_task(self._start(process), name="start of a template process")
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, process: TemplateProcess) -> None:
        try:
            await process.start(self._seconds, self._memory)
        except OSError as error:
            log.error("a template process cannot be started: %s", error)
            self._processes.discard(process)
            for future in self._waiting:
                if not future.done():
                    future.set_exception(Unavailable(f"a template process cannot be started: {error}"))
        else:
            self._give(process)

    def _lost(self, process: TemplateProcess) -> None:
        self._processes.discard(process)
        if process in self._idle:
            self._idle.remove(process)
        if self._waiting or (process.works and not self._processes):
            self._start_one()

"""The server's handle on its template processes: compile at load, render per request.

A chat template is a program that came with a model, and it runs on untrusted input. It may loop over a range
in a range, double a string forty times, or be quadratic in the messages. On the event loop that stops every
stream; on a thread it holds the global lock inside one long C call and cannot be ended. A deadline woven into
the compiled template catches loops, but not `'x' * 10**9`, `|center(10**9)` or a `|replace` in a `|replace`:
each filter and method would need a limit of its own. A process needs none of that. The kernel ends it on time
and limits its memory, and whatever a template does to its interpreter stays there. The price is 15 MB of
memory, and 0.1 ms for a short prompt (`make bench-micro`).

One process is kept; a second is started when a request has waited for GROW_AFTER, so that one slow template
does not delay other requests. A process that ended is replaced at once.
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
TEMPLATES = 64  # remembered; reloads bring new ones, and unused ones are not reported
GROW_AFTER = 0.1  # seconds
GRACE = 30.0  # added, for a process that starts or is not scheduled
RETRY_AFTER = 1.0  # `Retry-After` when no process was free for SECONDS

log = logging.getLogger(__name__)


class TemplatePool:
    """Template processes, started on demand: a graph without chat templates costs nothing. Times in
    seconds."""

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
        """Start a process in advance, for a template that is about to come."""
        if not self._processes:
            self._start_one()

    async def load(self, template: ChatTemplate) -> ChatTemplate:
        """Return the template with its expectations filled in. Raises LoadError in jinja's words."""
        try:
            answer = await self._ask(template, Compile(self._number(template), template))
        except InvalidArgument as error:  # it took too long
            raise LoadError(error.message) from error
        if isinstance(answer, Refused):
            raise LoadError(answer.message)
        assert isinstance(answer, Compiled)
        return dataclasses.replace(template, expects=answer.expects)

    async def render(self, template: ChatTemplate, conversation: Conversation | EncodedConversation) -> str:
        """Return the prompt. Raises InvalidArgument in the template's words, or when rendering takes too
        long."""
        try:
            if isinstance(conversation, Conversation):
                conversation = EncodedConversation.of(conversation)
            answer = await self._ask(template, Render(self._number(template), conversation.json))
        except InvalidArgument as error:
            error.param = conversation.param
            raise
        except (FrameError, RecursionError, UnicodeEncodeError) as error:
            raise InvalidArgument(
                f"{conversation.param}: cannot be passed to the chat template: {error}",
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

    # ---- one request

    def _number(self, template: ChatTemplate) -> int:
        if template not in self._numbers:
            if len(self._numbers) >= TEMPLATES:
                self._numbers.clear()  # templates in use are compiled again at their next prompt
            self._numbers[template] = next(self._next_number)
        return self._numbers[template]

    async def _ask(self, template: ChatTemplate, question: Question) -> RenderResult:
        """Send a request. Raises InvalidArgument when the process ended over it: by the clock, or twice by
        anything."""
        frame = encode(question)
        code = 0
        for _ in range(2):
            process = await self._take()
            try:
                async with asyncio.timeout(self._seconds + GRACE):  # the process also has its own alarm
                    return await process.ask(template, question, frame)
            except EndedError as ended:
                code = ended.code
            except TimeoutError:
                await process.end()
                code = -signal.SIGALRM
            if code == -signal.SIGALRM:
                log.warning("a chat template was killed after %g s", self._seconds)
                raise InvalidArgument(f"the chat template did not finish within {self._seconds:g} s")
            log.error("a template process ended with %d over a request", code)
        raise InvalidArgument(f"the chat template ended its process twice, with {code}")

    # ---- idle processes

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
                self._give(future.result())  # it came just as the client disconnected or the time ran out
            with suppress(ValueError):
                self._waiting.remove(future)

    def _give(self, process: TemplateProcess) -> None:
        if process not in self._processes:
            return
        if process.templates > 2 * TEMPLATES:  # most of them are outdated
            process.kill()  # _lost() starts another
            return
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(process)
                return
        self._idle.append(process)

    def _grow(self) -> None:
        """Start another process, unless those that are starting are enough for all that wait."""
        if len(self._waiting) > len(self._starting) and len(self._processes) < self._most:
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

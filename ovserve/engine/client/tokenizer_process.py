"""Long texts to token ids and back, in a separate process.

The tokenizer holds the engine's global lock, so a long text would stop all streams while it runs.
So texts of more than LONG_TEXT characters go to a second child, the same worker with a `TokenizerSpec`: the
tokenizer without the model, started with the first long text. Shorter ones take a millisecond or two, and
the engine tokenizes them between two steps, many prompts in one call.

It handles one call at a time, so waiting calls can be counted. A call that takes too long is ended with the
process, which holds no other work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ovserve.engine.client.calls import PendingCalls, Question
from ovserve.engine.client.process import EngineProcess
from ovserve.engine.protocol.specs import Spec, TextFacts, TokenizerSpec
from ovserve.errors import EngineDead, InvalidArgument, LoadError, Unavailable

log = logging.getLogger(__name__)

LONG_TEXT = 32768  # characters in all texts of a request; some 2 ms
LONG_IDS = 8192  # the same for ids to detokenize
SECONDS = 60.0  # per call
WAITING = 64  # calls
STOP_GRACE = 5.0  # seconds for a killed process to be gone


def long_texts(prompts: Iterable[str | tuple[int, ...]]) -> bool:
    """Return whether the prompts are too long to tokenize between two steps."""
    return sum(len(prompt) for prompt in prompts if isinstance(prompt, str)) > LONG_TEXT


class TextProcess:
    def __init__(self, spec: Spec, *, ready_timeout: float, seconds: float = SECONDS) -> None:
        self._spec = TokenizerSpec(spec.model_path, spec.device, spec.properties)
        self._ready_timeout = ready_timeout
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._pending = PendingCalls()
        self._process: EngineProcess | None = None
        self._stopped = False

    @property
    def pid(self) -> int:
        """Return the PID of the process; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def call(self, facts: TextFacts, make: Callable[[int], Question]) -> Any:
        """Run one call. Raises InvalidArgument for a text that cannot be tokenized or takes too long.

        Raises Unavailable when too many calls wait, or no process can be started.
        """
        if self._waiting >= WAITING:
            raise Unavailable(f"{WAITING} long texts wait to be tokenised already", retry_after=1.0)
        self._waiting += 1
        try:
            async with self._turn:
                try:
                    return await self._ask(facts, make)
                except EngineDead:  # perhaps it was killed from outside; try once in a new one
                    return await self._ask(facts, make)
        except EngineDead as error:
            raise Unavailable(error.message, retry_after=1.0) from error
        finally:
            self._waiting -= 1

    async def _ask(self, facts: TextFacts, make: Callable[[int], Question]) -> Any:
        process = await self._ready(facts)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._pending.call(process.send, make)
        except TimeoutError:
            log.warning("a text took more than %g s to tokenise: rejected", self._seconds)
            await self._end()
            raise InvalidArgument(f"the text takes more than {self._seconds:g} s to tokenise") from None

    async def _ready(self, facts: TextFacts) -> EngineProcess:
        if self._process is not None and self._process.ended.is_set():
            log.warning("the process that tokenises ended (%s)", self._process.how_it_ended())
            await self._end()
        if self._stopped:
            raise Unavailable("the engine is stopping")
        if self._process is None:
            self._process = EngineProcess(self._pending.on_message, self._on_end)
            try:
                spec = msgspec.structs.replace(self._spec, facts=facts)
                await self._process.start(spec, ready_timeout=self._ready_timeout)
            except (LoadError, OSError) as error:
                self._process = None
                log.error("long texts cannot be tokenised: %s", error)
                raise Unavailable("long texts cannot be tokenised now", retry_after=5.0) from error
            except BaseException:
                self._process = None  # `start` has ended it
                raise
        return self._process

    def _on_end(self) -> None:
        self._pending.fail_all(EngineDead("the process that tokenises ended"))

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it may be deep in native code, and it holds nothing
            await process.stop(STOP_GRACE)

    async def stop(self) -> None:
        """Stop; running calls end with Unavailable."""
        self._stopped = True
        self._pending.fail_all(EngineDead("the engine is stopping"))
        async with self._turn:
            await self._end()

    async def rest(self) -> None:
        """End the process, if it has no work, until the next call."""
        if not self._waiting:
            await self._end()

"""Engines that take turns under the same load, as many at a time as fit into memory.

Each is the real engine process, started as the server starts it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from ovserve.engine.client.text import TextClient
from ovserve.engine.host.memory import cpu_seconds, is_runnable, waiting_seconds
from ovserve.engine.protocol.specs import TextSpec
from ovserve.llm.request import GenerateRequest
from ovserve.serving.engines import convert_spec
from ovserve.serving.settings import Convert
from ovserve.tools.tuning.load import Round, answer, play
from ovserve.tools.tuning.prompts import Prompts

LEAST_REQUESTS = 4  # per round, however few streams
LEAST_TOKENS, MOST_TOKENS = 16, 128  # per answer
COMPARED_ANSWERS = 4
COMPARED_TOKENS = 48

# What an engine still compiles when it is ready takes the paged engine five seconds. A round in that time was
# 1.2 to 2.4 times as slow as the next one.
LOOK_SECONDS, IDLE_SHARE, MOST_SETTLING = 0.5, 0.2, 60.0

Ask = Callable[[str], Awaitable[GenerateRequest]]


async def settled(pid: int, seconds: float = MOST_SETTLING) -> bool:
    """Wait until a process wants less than IDLE_SHARE of a core; return False if it still does in the end.

    The time that it waits for a core counts too, or on a busy machine it would seem idle. The kernel counts a
    wait when it ends, so a process that is ready to run is not idle either: at a load of 20 on two cores it
    may wait for longer than a look.
    """
    until = time.monotonic() + seconds
    before = _wanted_seconds(pid)
    while before is not None and time.monotonic() < until:
        await asyncio.sleep(LOOK_SECONDS)
        now = _wanted_seconds(pid)
        if now is None or (now - before < IDLE_SHARE * LOOK_SECONDS and not is_runnable(pid)):
            return True
        before = now
    return before is None


def _wanted_seconds(pid: int) -> float | None:
    cpu_time = cpu_seconds(pid)
    return None if cpu_time is None else cpu_time + waiting_seconds(pid)


class Benchmark:
    """Runs engines; `together` of them are kept loaded.

    `ask` makes a request from a user's text; it is set when the first engine has reported its chat template.
    """

    ask: Ask

    def __init__(
        self, prompts: Prompts, streams: Sequence[int], together: int, convert: Convert | None = None
    ) -> None:
        self._prompts = prompts
        self._convert = convert
        self._streams = tuple(streams)
        self._together = together
        self._loaded: dict[TextSpec, TextClient] = {}  # the most recent one is last
        self._compared: list[GenerateRequest] = []
        self.tokens = LEAST_TOKENS
        self.load_seconds = 0.0  # duration of the last load

    async def engine(self, spec: TextSpec) -> TextClient:
        """Return a loaded engine, ready for work. Raises LoadError in the library's words."""
        engine = self._loaded.pop(spec, None)
        if engine is None:
            while len(self._loaded) >= self._together:
                await self._loaded.pop(next(iter(self._loaded))).stop()
            began = time.monotonic()
            engine = await TextClient.start(await convert_spec(spec, self._convert))
            await settled(engine.pid)
            self.load_seconds = time.monotonic() - began
        self._loaded[spec] = engine
        return engine

    async def pair(self, first: TextSpec, second: TextSpec) -> tuple[Round, Round]:
        """Run one round of each, the first one first, on the same prompts, which are new to both."""
        requests = [(c, await self._take(max(c, LEAST_REQUESTS))) for c in self._streams]
        return await self._round(first, requests), await self._round(second, requests)

    async def texts(self, spec: TextSpec) -> list[str]:
        """Return greedy answers to the same few prompts every time, one after the other; a warm-up as
        well."""
        self._compared = self._compared or await self._take(COMPARED_ANSWERS)
        engine = await self.engine(spec)
        return [await answer(engine, request, COMPARED_TOKENS) for request in self._compared]

    async def calibrate(self, spec: TextSpec, seconds: float) -> None:
        """Set the length of answers so that a round takes about `seconds`."""
        durations = []
        for self.tokens in (LEAST_TOKENS, 2 * LEAST_TOKENS):
            requests = [(c, await self._take(max(c, LEAST_REQUESTS))) for c in self._streams]
            began = time.monotonic()
            await self._round(spec, requests)
            durations.append(time.monotonic() - began)
            if durations[0] >= seconds:
                self.tokens = LEAST_TOKENS
                return
        a_token = max(1e-6, (durations[1] - durations[0]) / LEAST_TOKENS)
        fitting = LEAST_TOKENS + int((seconds - durations[0]) / a_token)
        self.tokens = max(LEAST_TOKENS, min(MOST_TOKENS, fitting))

    async def drop(self, spec: TextSpec) -> None:
        """Unload it to make room; no effect if it is not loaded."""
        if (engine := self._loaded.pop(spec, None)) is not None:
            await engine.stop()

    async def close(self) -> None:
        for engine in self._loaded.values():
            await engine.stop()
        self._loaded.clear()

    async def _round(self, spec: TextSpec, requests: Sequence[tuple[int, list[GenerateRequest]]]) -> Round:
        engine = await self.engine(spec)
        return {c: await play(engine, of_round, c, self.tokens) for c, of_round in requests}

    async def _take(self, count: int) -> list[GenerateRequest]:
        return [await self.ask(prompt) for prompt in self._prompts.take(count)]

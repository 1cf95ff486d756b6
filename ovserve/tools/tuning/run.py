"""`tune`: measure a graph's choices and write the winner's graph.

Engines take turns under the same load, as many at a time as fit into memory. Each is the real engine process,
started as the server starts it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ovserve import __version__
from ovserve.engine.client.text import TextClient
from ovserve.engine.host.cpu import processor
from ovserve.engine.host.memory import BYTES_PER_GIB, cpu_seconds, is_runnable, memory, waiting_seconds
from ovserve.engine.protocol.specs import TextFacts, TextSpec
from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.text.resource import load_template
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.sandbox.templates import Templates
from ovserve.serving.engines import FIELD, convert_spec
from ovserve.serving.model_size import model_size
from ovserve.serving.settings import Convert
from ovserve.tools.tuning.graph_file import Choices, Target, dimensions, write
from ovserve.tools.tuning.prompts import Prompts, Round, answer, play
from ovserve.tools.tuning.report import evidence
from ovserve.tools.tuning.search import CONTROL_PAIRS, FINAL_PAIRS, Progress, Search, TuneResult

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
        requests = await self._requests()
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
            requests = await self._requests()
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

    async def _requests(self) -> list[tuple[int, list[GenerateRequest]]]:
        return [(c, await self._take(max(c, LEAST_REQUESTS))) for c in self._streams]

    async def _take(self, count: int) -> list[GenerateRequest]:
        return [await self.ask(prompt) for prompt in self._prompts.take(count)]


async def asker(target: Target, facts: TextFacts, templates: Templates) -> Ask:
    """Return what makes requests, without sampling, which the round sets.

    A model without a chat template gets the plain text. Raises LoadError in jinja's words.
    """
    template = await load_template(target.node, target.parsed, facts, templates)

    async def ask(text: str) -> GenerateRequest:
        prompt = text
        if template is not None:
            conversation = template.conversation([{"role": "user", "content": text}])
            prompt = await templates.render(template, conversation)
        return GenerateRequest("tune", (prompt,), template is None, Sampling())

    return ask


USUAL_PAIRS = 3  # pairs per match; losers have fewer, winners more
ROUND_SECONDS = (0.3, 10.0)  # shortest and longest


@dataclass(frozen=True)
class TuneOptions:
    """The operator's parameters. `seconds` is the budget; `prompts` are their own, none for the mix;
    `weights` are absolute paths of the same model in other forms.
    """

    goal: str
    streams: tuple[int, ...]
    seconds: float
    output: Path
    other_text: bool = False  # may win
    prompts: Sequence[str] = ()
    weights: Sequence[str] = ()
    only: Sequence[str] = ()  # names of dimensions; none for all
    convert: Convert | None = None


async def tune(target: Target, options: TuneOptions, progress: Progress) -> TuneResult:
    """Run it. The new graph is written if anything is better than the current one (`options` of the result).

    Raises LoadError and EngineDead of the graph's own engine, OSError when the file cannot be written.
    """
    began = time.monotonic()
    most = max(options.streams)
    if most > target.spec.max_num_seqs:
        raise InvalidArgument(
            f"{most} streams are more than the graph's max_num_seqs {target.spec.max_num_seqs}"
        )
    templates = Templates()
    arena = Benchmark(Prompts(options.prompts), options.streams, _together(target.spec), options.convert)
    try:
        progress(0.0, "loading the graph as it is")
        try:
            facts = (await arena.engine(target.spec)).facts
        except LoadError as error:
            fallback = target.parsed.engine.fallback
            if error.field != FIELD or not isinstance(fallback, TextSpec):
                raise
            target = replace(target, spec=fallback)
            facts = (await arena.engine(fallback)).facts
        arena.ask = await asker(target, facts, templates)
        choices = dimensions(
            target.spec,
            processor(),
            context=facts.max_length,
            weights=options.weights,
            only=options.only,
        )
        progress(0.0, "finding a length for the rounds")
        await arena.calibrate(target.spec, _round_seconds(options.seconds, choices, arena.load_seconds))
        search = Search(
            arena,
            target.spec,
            began=began,
            seconds=options.seconds,
            other_text=options.other_text,
            progress=progress,
        )
        result = await search.run(choices)
    finally:
        await arena.close()
        await templates.stop()
    if result.options:
        heading = _heading(options, facts, arena.tokens, result)
        write(target, result.options, evidence(result, heading), options.output)
    return result


def _together(spec: TextSpec) -> int:
    """Return how many engines fit into memory: weights plus half as much for compiled copies, and cache."""
    free = memory().available
    each = 1.5 * model_size(spec).weights + BYTES_PER_GIB * max(1, spec.cache_size)
    return 2 if not free or 2 * each <= free else 1


def _round_seconds(budget: float, choices: Mapping[str, Choices], load_seconds: float) -> float:
    """Return the duration of one round of one engine that leaves time for all choices."""
    count = sum(map(len, choices.values()))
    rounds = 2 * (CONTROL_PAIRS + FINAL_PAIRS + USUAL_PAIRS * count)
    return min(ROUND_SECONDS[1], max(ROUND_SECONDS[0], (budget - count * load_seconds) / rounds))


def _heading(options: TuneOptions, facts: TextFacts, tokens: int, result: TuneResult) -> list[str]:
    machine = processor()
    streams = ", ".join(map(str, options.streams))
    requests = ", ".join(str(max(c, LEAST_REQUESTS)) for c in options.streams)
    source = (
        f"{len(options.prompts)} prompts of the operator's"
        if options.prompts
        else "the built-in mix of chats"
    )
    return [
        f"Tuned for {options.goal} by `ovserve tune` (ovserve {__version__}, {facts.engine}) on "
        f"{time.strftime('%Y-%m-%d')}, in {result.seconds:.0f} s.",
        f"{machine.name}, {machine.cores} cores, {machine.logical} threads.",
        f"A round: {requests} greedy answers of at most {tokens} tokens, {streams} at a time; {source}.",
    ]

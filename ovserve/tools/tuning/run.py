"""`tune`: measure a graph's choices and write the winner's graph.

Render a user's text with the graph's chat template, like the server.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ovserve import __version__
from ovserve.engine.host.cpu import processor
from ovserve.engine.host.memory import memory
from ovserve.engine.protocol.specs import TextFacts, TextSpec
from ovserve.errors import InvalidArgument, LoadError
from ovserve.kinds.text.resource import load_template
from ovserve.llm.prompt.chat_template import ChatTemplate
from ovserve.llm.request import GenerateRequest, Sampling
from ovserve.sandbox.templates import Templates
from ovserve.serving.engines import FIELD
from ovserve.serving.model_size import GIGABYTE, model_size
from ovserve.serving.settings import Convert
from ovserve.tools.tuning.arena import LEAST_REQUESTS, Benchmark
from ovserve.tools.tuning.choices import Dimension, dimensions
from ovserve.tools.tuning.graph_file import write
from ovserve.tools.tuning.prompts import Prompts
from ovserve.tools.tuning.report import evidence
from ovserve.tools.tuning.search import CONTROL_PAIRS, FINAL_PAIRS, Allowed, Search, Tell, TuneResult
from ovserve.tools.tuning.target import Target


class Asker:
    """Makes requests; a model without a chat template gets the plain text."""

    def __init__(self, templates: Templates, template: ChatTemplate | None) -> None:
        self._templates = templates
        self._template = template

    @classmethod
    async def of(cls, target: Target, facts: TextFacts, templates: Templates) -> Asker:
        """Build it. Raises LoadError in jinja's words."""
        template = await load_template(target.node, target.parsed, facts, templates)
        return cls(templates, template)

    async def request(self, text: str) -> GenerateRequest:
        """Return the request without sampling, which the round sets."""
        prompt, plain = text, self._template is None
        if self._template is not None:
            conversation = self._template.conversation([{"role": "user", "content": text}])
            prompt = await self._templates.render(self._template, conversation)
        return GenerateRequest("tune", (prompt,), plain, Sampling())


USUAL_PAIRS = 3  # pairs per match; losers have fewer, winners more
ROUND_SECONDS = (0.3, 10.0)  # shortest and longest


@dataclass(frozen=True)
class Wish:
    """The operator's parameters. `seconds` is the budget; `prompts` are their own, none for the mix;
    `weights` are absolute paths of the same model in other forms.
    """

    goal: str
    streams: tuple[int, ...]
    seconds: float
    output: Path
    allowed: Allowed = field(default_factory=Allowed)
    prompts: Sequence[str] = ()
    weights: Sequence[str] = ()
    only: Sequence[str] = ()  # names of dimensions; none for all
    convert: Convert | None = None


async def tune(target: Target, wish: Wish, tell: Tell) -> TuneResult:
    """Run it. The new graph is written if anything is better than the current one (`options` of the result).

    Raises LoadError and EngineDead of the graph's own engine, OSError when the file cannot be written.
    """
    began = time.monotonic()
    most = max(wish.streams)
    if most > target.spec.max_num_seqs:
        raise InvalidArgument(
            f"{most} streams are more than the graph's max_num_seqs {target.spec.max_num_seqs}"
        )
    templates = Templates()
    arena = Benchmark(Prompts(wish.prompts), wish.streams, _together(target.spec), wish.convert)
    try:
        tell(0.0, "loading the graph as it is")
        try:
            facts = (await arena.engine(target.spec)).facts
        except LoadError as error:
            if error.field != FIELD or (fallback := target.parsed.engine.fallback) is None:
                raise
            target = replace(target, spec=fallback)
            facts = (await arena.engine(fallback)).facts
        arena.ask = (await Asker.of(target, facts, templates)).request
        choices = dimensions(
            target.spec,
            processor(),
            context=facts.max_length,
            weights=wish.weights,
            only=wish.only,
            may_look_up=target.spec.cache_eviction is None
            and not target.options.enable_tool_guided_generation,
        )
        tell(0.0, "finding a length for the rounds")
        await arena.calibrate(target.spec, _round_seconds(wish.seconds, choices, arena.load_seconds))
        search = Search(
            arena, target.spec, began=began, seconds=wish.seconds, allowed=wish.allowed, tell=tell
        )
        result = await search.run(choices)
    finally:
        await arena.close()
        await templates.stop()
    if result.options:
        heading = _heading(wish, facts, arena.tokens, result)
        write(target, result.options, evidence(result, heading), wish.output)
    return result


def _together(spec: TextSpec) -> int:
    """Return how many engines fit into memory: weights plus half as much for compiled copies, and cache."""
    free = memory().available
    each = 1.5 * model_size(spec).weights + GIGABYTE * max(1, spec.cache_size)
    return 2 if not free or 2 * each <= free else 1


def _round_seconds(budget: float, choices: Sequence[Dimension], load_seconds: float) -> float:
    """Return the duration of one round of one engine that leaves time for all choices."""
    count = sum(len(dimension.choices) for dimension in choices)
    rounds = 2 * (CONTROL_PAIRS + FINAL_PAIRS + USUAL_PAIRS * count)
    return min(ROUND_SECONDS[1], max(ROUND_SECONDS[0], (budget - count * load_seconds) / rounds))


def _heading(wish: Wish, facts: TextFacts, tokens: int, result: TuneResult) -> list[str]:
    machine = processor()
    streams = ", ".join(map(str, wish.streams))
    requests = ", ".join(str(max(c, LEAST_REQUESTS)) for c in wish.streams)
    source = f"{len(wish.prompts)} prompts of the operator's" if wish.prompts else "the built-in mix of chats"
    return [
        f"Tuned for {wish.goal} by `ovserve tune` (ovserve {__version__}, {facts.engine}) on "
        f"{time.strftime('%Y-%m-%d')}, in {result.seconds:.0f} s.",
        f"{machine.name}, {machine.cores} cores, {machine.logical} threads.",
        f"A round: {requests} greedy answers of at most {tokens} tokens, {streams} at a time; {source}.",
    ]

"""One round of load on one engine, chats in a closed loop, and its prompts: the operator's own, or a mix.

No two prompts of the mix begin alike, so a prefix cache gains nothing that it would not gain in service. They
are natural language, so drafting is neither helped by repetition nor hurt by noise.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from ovserve.engine.client.text import TextClient
from ovserve.errors import InvalidArgument
from ovserve.llm.request import GREEDY_TEMPERATURE, GenerateRequest, Sampling

_TOPICS = (
    "a lighthouse keeper who collects weather reports", "the repair of an old bicycle", "sourdough bread",
    "a small town that loses its railway", "how tides work", "the first winter on a farm",
    "choosing a laptop for school", "a detective who cannot remember faces", "growing tomatoes on a balcony",
    "the history of paper", "a letter to a landlord about a broken heater", "learning to swim at forty",
)  # fmt: skip
_TASKS = (
    "Write a short story about {}.",
    "Explain to a curious ten year old what matters about {}.",
    "Give me seven practical tips about {}, each with one sentence of reason.",
    "Write the opening of a newspaper article about {}.",
)
_SENTENCES = (
    "The harbour was built in three stages, of which the first took eight years.",
    "A stone pier of two hundred metres protects the boats from the north wind.",
    "The fishing fleet grew to ninety boats, and an inner basin had to be added.",
    "Its lock keeps the water level when the tide is low.",
    "Most of the boats are gone today, and the basin has become a marina.",
    "Ferries to the islands leave four times a day in summer and twice in winter.",
    "A storm in January damaged the pier, and its repair will cost eleven million.",
    "The council will decide in spring whether the lighthouse can stay a museum.",
    "Visitors climb its hundred and twelve steps for a view over the whole bay.",
    "A school for boat builders has moved into the old warehouses by the quay.",
)
_NAMES = ("values", "prices", "readings", "scores", "lengths", "weights")
_CODE = """\
def moving_average({0}, window):
    result, total = [], 0
    for index, value in enumerate({0}):
        total += value
        if index >= window:
            total -= {0}[index - window]
        if index >= window - 1:
            result.append(total / window)
    return result"""


class Prompts:
    """A source of prompts: `own` in their order, over and over; without them the mix."""

    def __init__(self, own: Sequence[str] = ()) -> None:
        self._own = tuple(own)
        self._next = 0

    def take(self, count: int) -> list[str]:
        """Return the next ones; those of the mix are all new, and the same in every run."""
        numbers = range(self._next, self._next + count)
        self._next += count
        return [self._own[i % len(self._own)] if self._own else _mixed(i) for i in numbers]


def read(file: Path) -> list[str]:
    """Read one prompt per line: plain text, or a JSON object with `prompt`. Raises InvalidArgument."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--prompts: {file} cannot be read: {error}") from error
    prompts = [_line(line, f"--prompts: {file}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InvalidArgument(f"--prompts: {file} has no prompt")
    return prompts


def _line(line: str, where: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError):
        raise InvalidArgument(f"{where}: expected text, or a JSON object with a prompt") from None
    if not isinstance(prompt, str) or not prompt:
        raise InvalidArgument(f"{where}: prompt: expected text, got {prompt!r}")
    return prompt


def _mixed(number: int) -> str:
    """Return a chat: of four, two are free, one has a text to summarise and one has code to change."""
    chance = random.Random(number)
    if number % 4 == 1:
        text = " ".join(chance.sample(_SENTENCES, 7))
        return f"{number}. Summarise this in two sentences:\n\n{text}"
    if number % 4 == 3:
        old, new = chance.sample(_NAMES, 2)
        code = _CODE.format(old)
        return f"{number}. Rename `{old}` to `{new}` and give back all of the code.\n\n{code}"
    return f"{number}. {chance.choice(_TASKS).format(chance.choice(_TOPICS))}"


class Speed(msgspec.Struct, frozen=True):
    """The speed of one round at one number of streams. Prompts are part of the time, not of the tokens."""

    tokens_per_second: float
    first_token: float  # seconds, median


Round = Mapping[int, Speed]  # by number of streams


def ratio(candidate: Round, baseline: Round) -> float:
    """Return the ratio of tokens per second: the geometric mean over all numbers of streams, equally
    weighted."""
    logs = [math.log(candidate[c].tokens_per_second / baseline[c].tokens_per_second) for c in baseline]
    return math.exp(sum(logs) / len(logs))


async def play(
    engine: TextClient, requests: Sequence[GenerateRequest], streams: int, max_tokens: int
) -> Speed:
    """Run all requests, greedy, `streams` at a time; each stream continues when it has its answer.

    Raises the error that ended a request.
    """
    waiting, firsts, tokens = deque(requests), list[float](), 0

    async def one_stream() -> None:
        nonlocal tokens
        while waiting:
            sent_at, first, num_tokens = time.perf_counter(), 0.0, 0
            stream = await engine.generate(_greedy(waiting.popleft(), max_tokens))
            try:
                while True:
                    delta = await stream.next()
                    num_tokens += delta.tokens
                    if num_tokens and not first:
                        first = time.perf_counter() - sent_at
                    if delta.last:
                        break
            finally:
                stream.abort_if_running()
            firsts.append(first)
            tokens += num_tokens

    began = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(streams, len(requests))):
                group.create_task(one_stream())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    # A model that generates nothing at all still needs a speed for comparison.
    return Speed(max(tokens, 1) / (time.perf_counter() - began), median(firsts))


async def answer(engine: TextClient, request: GenerateRequest, max_tokens: int) -> str:
    """Return a greedy answer, run alone, so that rounding in a shared batch does not matter."""
    stream = await engine.generate(_greedy(request, max_tokens))
    text = ""
    try:
        while not (delta := await stream.next()).last:
            text += delta.text
    finally:
        stream.abort_if_running()
    return text + delta.text


def _greedy(request: GenerateRequest, max_tokens: int) -> GenerateRequest:
    sampling = Sampling(max_tokens=max_tokens, temperature=GREEDY_TEMPERATURE)
    return msgspec.structs.replace(request, sampling=sampling)

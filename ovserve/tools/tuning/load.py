"""One round of load on one engine: chats in a closed loop, and their speed."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from ovserve.engine.client.text import TextClient
from ovserve.llm.request import GREEDY_TEMPERATURE, GenerateRequest, Sampling


@dataclass(frozen=True)
class Speed:
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

"""One round of load on one engine: chats in a closed loop, and how fast answers came. Used by `arena.py`."""

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
    """Of one round at one number of streams. Prompts are part of the time, not of the tokens."""

    tokens_per_second: float
    first_token: float  # seconds, median


Round = Mapping[int, Speed]  # by streams


def ratio(candidate: Round, baseline: Round) -> float:
    """Of tokens per second, the geometric mean over all numbers of streams: each counts alike."""
    logs = [math.log(candidate[c].tokens_per_second / baseline[c].tokens_per_second) for c in baseline]
    return math.exp(sum(logs) / len(logs))


async def play(
    engine: TextClient, requests: Sequence[GenerateRequest], streams: int, max_tokens: int
) -> Speed:
    """All of them, greedy, `streams` at a time; each stream asks again when it has its answer. Raises what
    ends a request."""
    waiting, firsts, tokens = deque(requests), list[float](), 0

    async def one_stream() -> None:
        nonlocal tokens
        while waiting:
            sent, first, gained = time.perf_counter(), 0.0, 0
            stream = await engine.generate(_greedy(waiting.popleft(), max_tokens))
            try:
                while True:
                    delta = await stream.next()
                    gained += delta.tokens
                    if gained and not first:
                        first = time.perf_counter() - sent
                    if delta.last:
                        break
            finally:
                stream.abort_if_running()
            firsts.append(first)
            tokens += gained

    began = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(streams, len(requests))):
                group.create_task(one_stream())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    # A model that says nothing at all still has a speed to be compared by.
    return Speed(max(tokens, 1) / (time.perf_counter() - began), median(firsts))


async def answer(engine: TextClient, request: GenerateRequest, max_tokens: int) -> str:
    """Greedy and alone, so that no neighbour's rounding shows."""
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

"""truncation: "auto": the oldest turns are left out until the conversation fits. Called by `responses.py`.

Only the engine can count tokens, so the fit is found by asking: a request that is too long is rejected before
any work, and a binary search over whole turns takes few of them. System and developer messages stay, and so
does the last turn; a call and its output are in one turn, so neither is left without the other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from msgspec import Raw

from ovserve.calculators.payload import HttpResponse
from ovserve.errors import ContextLengthExceeded
from ovserve.responses.input import ResolvedRequest
from ovserve.serving.graph_response import GraphResponse

Items = list[Raw]
# An answer to the request with so much of its history and its input; None: all of it.
Start = Callable[[Items | None, Items | None], GraphResponse]


class _Role(msgspec.Struct):
    role: str | None = None


def _turns(items: list[Raw]) -> list[list[int]]:
    """Indices of what may go, by turns: each begins with a user's message."""
    turns: list[list[int]] = []
    for i, item in enumerate(items):
        role = msgspec.json.decode(item, type=_Role).role
        if role in ("system", "developer"):
            continue
        if role == "user" or not turns:
            turns.append([])
        turns[-1].append(i)
    return turns


@asynccontextmanager
async def start_fitting(
    start: Start, asked: ResolvedRequest
) -> AsyncIterator[tuple[GraphResponse, HttpResponse, int]]:
    """A running answer, how it begins, and how many items were left out to make it fit."""
    async with start(None, None) as answer:
        first = await _first(answer, asked.truncate)
        if first is not None:
            yield answer, first, 0
            return
    past, own, dropped = await _shorten(start, asked)
    async with start(past, own) as answer:
        yield answer, await answer.first(), dropped


async def _first(answer: GraphResponse, truncate: bool) -> HttpResponse | None:
    """Return how it begins; None if it is too long and may be shortened."""
    try:
        return await answer.first()
    except ContextLengthExceeded:
        if not truncate:
            raise
        return None


async def _fits(start: Start, past: Items, own: Items) -> bool:
    async with start(past, own) as answer:
        return await _first(answer, truncate=True) is not None


async def _shorten(start: Start, asked: ResolvedRequest) -> tuple[Items, Items, int]:
    try:
        own = msgspec.json.decode(asked.input, type=list[Raw])
    except msgspec.ValidationError:  # a text
        own = [Raw(b'{"role":"user","content":' + bytes(asked.input) + b"}")]
    past = list(asked.context.history)
    turns = _turns([*past, *own])

    def without(count: int) -> tuple[Items, Items, int]:
        gone = {i for turn in turns[:count] for i in turn}
        kept_past = [item for i, item in enumerate(past) if i not in gone]
        kept_own = [item for i, item in enumerate(own) if i + len(past) not in gone]
        return kept_past, kept_own, len(gone)

    low, high = 1, max(len(turns) - 1, 0)
    while low < high:
        middle = (low + high) // 2
        past_left, own_left, _ = without(middle)
        if await _fits(start, past_left, own_left):
            high = middle
        else:
            low = middle + 1
    return without(high)

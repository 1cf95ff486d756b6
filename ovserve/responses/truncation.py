"""truncation: "auto": the oldest turns are left out until the conversation fits. Called by `responses.py`.

Only the engine can count tokens, so the fit is found by asking: a request that is too long is refused before
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
from ovserve.serving.servable import GraphResponse


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
    start: Callable[[bytes], GraphResponse], asked: ResolvedRequest
) -> AsyncIterator[tuple[GraphResponse, HttpResponse, int]]:
    """A running answer, how it begins, and how many items were left out to make it fit."""
    async with start(asked.body()) as answer:
        first = await _first(answer, asked.truncate)
        if first is not None:
            yield answer, first, 0
            return
    body, dropped = await _shorten(start, asked)
    async with start(body) as answer:
        yield answer, await answer.first(), dropped


async def _first(answer: GraphResponse, truncate: bool) -> HttpResponse | None:
    """How it begins; None if it is too long and may be shortened."""
    try:
        return await answer.first()
    except ContextLengthExceeded:
        if not truncate:
            raise
        return None


async def _fits(start: Callable[[bytes], GraphResponse], body: bytes) -> bool:
    async with start(body) as answer:
        return await _first(answer, truncate=True) is not None


async def _shorten(start: Callable[[bytes], GraphResponse], asked: ResolvedRequest) -> tuple[bytes, int]:
    try:
        own = msgspec.json.decode(asked.fields["input"], type=list[Raw])
    except msgspec.ValidationError:  # a text
        own = [Raw(b'{"role":"user","content":' + bytes(asked.fields["input"]) + b"}")]
    past = list(asked.history)
    turns = _turns([*past, *own])

    def without(count: int) -> tuple[bytes, int]:
        gone = {i for turn in turns[:count] for i in turn}
        kept_past = [item for i, item in enumerate(past) if i not in gone]
        kept_own = [item for i, item in enumerate(own) if i + len(past) not in gone]
        return asked.body(kept_past, kept_own), len(gone)

    low, high = 1, max(len(turns) - 1, 0)
    while low < high:
        middle = (low + high) // 2
        if await _fits(start, without(middle)[0]):
            high = middle
        else:
            low = middle + 1
    return without(high)

"""The engine ends under requests: those of which nothing was read are sent to the next one, once."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import count

import pytest
from conftest import Script, Start, eventually, kill_engine, reaches, read_all, request

from ovserve.engine.client.requests import SUSPECT_SECONDS, Suspects
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.messages import Add
from ovserve.errors import EndsEngine, EngineDead, Unavailable
from ovserve.llm.request import Sampling

WAITS = {"match": "waits", "wait_steps": 10**9, "text": "here it is"}
ANSWERS = WAITS | {"wait_steps": 2}
SLOW = {"match": "slow", "pieces": ["tick "], "repeat": 0}
STEP = 0.02


async def test_admitted_but_without_a_word(start: Start, script: Script) -> None:
    client = await start(script(WAITS, SLOW, step_seconds=STEP))
    begun, waits = await client.generate(request("slow")), await client.generate(request("waits", n=2))
    assert (await waits.next()).prompt_tokens == 1
    await begun.next()
    await begun.next()
    script(ANSWERS, step_seconds=STEP)  # the next engine reads it
    await kill_engine(client)
    with pytest.raises(EngineDead):
        await read_all(begun)
    found = [await waits.next()]
    while not found[-1].last:
        found.append(await waits.next())
    assert sum(delta.prompt_tokens for delta in found) == 0  # the admission is told once
    for choice in (0, 1):
        assert "".join(d.text for d in found if d.index == choice) == "here it is"
    stats = client.stats()
    assert (stats.running, stats.finished, stats.failed, stats.repeated) == (0, 2, 1, 1)
    assert stats.requests == stats.finished + stats.failed + stats.aborted


async def test_what_arrived_but_was_not_read_is_generated_again(start: Start, script: Script) -> None:
    """One choice of two is complete when the engine ends; its reader has seen neither."""
    client = await start(script({"match": "", "text": "not read ", "repeat": 0}, step_seconds=STEP))
    stream = await client.generate(request())
    await eventually(lambda: client.stats().generated_tokens >= 3)
    script({"match": "", "text": "a b c d e f g h"}, step_seconds=STEP)  # the next engine reads it
    await kill_engine(client)
    assert (await read_all(stream))[0] == "a b c d e f g h"


async def test_only_once(start: Start, script: Script) -> None:
    client = await start(script({"match": "", "exit_in_step": 1}))
    with pytest.raises(EngineDead):
        await read_all(await client.generate(request()))
    stats = client.stats()
    assert (stats.repeated, stats.failed, stats.requests) == (1, 1, 1)


async def test_its_client_leaves_between_two_engines(start: Start, script: Script) -> None:
    client = await start(script(WAITS, step_seconds=STEP, load_seconds=0.2))
    stream = await client.generate(request("waits"))
    await stream.next()
    await kill_engine(client)
    stream.abort_if_running()
    await reaches(client, "ready")
    with pytest.raises(Unavailable, match="aborted"):
        await stream.next()
    stats = client.stats()
    assert (stats.running, stats.aborted) == (0, 1)


async def test_no_engine_comes_any_more(start: Start, script: Script) -> None:
    client = await start(script(WAITS, step_seconds=STEP))
    stream = await client.generate(request("waits"))
    await stream.next()
    script(load="fail")
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(EngineDead, match="has failed"):
        await read_all(stream)
    assert client.in_flight == 0


async def test_an_engine_that_keeps_dying_has_failed(start: Start, script: Script) -> None:
    client = await start(script({"match": "bad", "exit_in_step": 1}, {"match": "", "text": "well"}))
    for n in count(1):  # each a request of its own: equal ones are not sent any more
        if client.state.name == "failed":
            break
        with pytest.raises(Unavailable):
            await read_all(await client.generate(request("bad", max_tokens=n)))
    assert "engines in a row ended soon after their start" in client.state.reason
    assert "exit status 13" in client.state.reason
    await reaches(client, "ready")  # tries go on
    assert (await read_all(await client.generate(request())))[0] == "well"


BAD, GOOD = {"match": "bad", "exit_in_step": 1}, {"match": "", "text": "well"}


async def ends_engines(client: TextClient, **sampling: int) -> bool:
    """True if it is sent, and the engine ends; False if it is not sent."""
    try:
        await read_all(await client.generate(request("bad", **sampling)))
    except EndsEngine:
        return False
    except EngineDead:
        await reaches(client, "ready")
        return True
    raise AssertionError("it was answered")


async def test_an_equal_request_is_not_sent_again(start: Start, script: Script) -> None:
    client = await start(script(BAD, GOOD))
    assert await ends_engines(client, seed=1)
    assert not await ends_engines(client, seed=2)
    assert client.stats().restarts == 2  # for the first try and the second
    assert (await read_all(await client.generate(request())))[0] == "well"
    assert client.pid


async def test_two_of_them_at_a_time_are_found_out_too(start: Start, script: Script) -> None:
    client = await start(script(BAD, GOOD, step_seconds=STEP))
    for _ in range(3):
        await asyncio.gather(*(ends_engines(client, max_tokens=n) for n in (1, 2)))
    assert client.stats().restarts <= 5
    assert not any(await asyncio.gather(*(ends_engines(client, max_tokens=n) for n in (1, 2))))


async def test_who_is_killed_from_outside_is_no_suspect(start: Start, script: Script) -> None:
    client = await start(script(WAITS, step_seconds=STEP))
    for _ in range(3):
        stream = await client.generate(request("waits"))
        await stream.next()
        script(ANSWERS, step_seconds=STEP)
        await kill_engine(client)
        assert (await read_all(stream))[0] == "here it is"
        script(WAITS, step_seconds=STEP)
        await kill_engine(client)
        await reaches(client, "ready")


def test_points_and_how_they_are_forgotten() -> None:
    now = 0.0
    suspects = Suspects(lambda: now)
    bad, other = [Add(1, "bad", False, Sampling())], [Add(2, "other", False, Sampling())]
    suspects.held([bad, other])
    suspects.ended(by_itself=True)
    suspects.completed(other)
    suspects.held([bad])
    suspects.ended(by_itself=False)
    suspects.check(bad)
    suspects.held([bad])
    suspects.ended(by_itself=True)
    suspects.check(other)
    with pytest.raises(EndsEngine, match="600 s"):
        suspects.check([Add(9, "bad", False, Sampling(seed=4), last=True)])
    now = SUSPECT_SECONDS
    suspects.check(bad)


def test_equal_requests_beside_the_one_that_ends_engines_are_counted_once() -> None:
    suspects = Suspects()
    bad, same = [Add(1, "bad", False, Sampling())], [Add(2, "same", False, Sampling())]
    for _ in range(2):
        suspects.held([bad, same, same, same, same])
        suspects.ended(by_itself=True)
    suspects.check(same)
    suspects.held([bad, bad])
    suspects.ended(by_itself=True)
    with pytest.raises(EndsEngine):
        suspects.check(bad)

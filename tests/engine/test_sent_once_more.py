"""The engine ends under requests: those of which nothing was read are sent to the next one, once."""

from __future__ import annotations

import os
import signal

import pytest
from conftest import Script, Start, eventually, kill_engine, reaches, read_all, request

from ovserve.errors import EngineDead, Unavailable

WAITS = {"match": "waits", "wait_steps": 30, "text": "here it is"}
SLOW = {"match": "slow", "pieces": ["tick "], "repeat": 0}
STEP = 0.02


async def test_admitted_but_without_a_word(start: Start, script: Script) -> None:
    client = await start(script(WAITS, SLOW, step_seconds=STEP))
    begun, waits = await client.generate(request("slow")), await client.generate(request("waits", n=2))
    assert (await waits.next()).prompt_tokens == 1
    await begun.next()
    await begun.next()
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
    client = await start(script({"match": "", "text": "a b c d e f g h"}, step_seconds=STEP))
    stream = await client.generate(request())
    await eventually(lambda: client.stats().generated_tokens >= 3)
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
    while client.state.name != "failed":
        with pytest.raises(Unavailable):
            await read_all(await client.generate(request("bad")))
    assert "engines in a row ended soon after their start" in client.state.reason
    assert "exit status 13" in client.state.reason
    await reaches(client, "ready")  # tries go on
    assert (await read_all(await client.generate(request())))[0] == "well"

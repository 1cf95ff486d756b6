"""Requests that arrive close together share the engine's first step; alone, the first would delay the rest."""

from __future__ import annotations

import asyncio
import time

from conftest import Script, Start, request

STEP = 0.2


async def test_a_burst_is_admitted_before_the_first_step(start: Start, script: Script) -> None:
    client = await start(script({"match": "", "text": "a b c"}, step_seconds=STEP))
    streams = []
    for _ in range(6):
        streams.append(await client.generate(request()))
        await asyncio.sleep(0)
    began = time.monotonic()
    arrivals = []
    for stream in streams:
        while not (await stream.next()).text:
            pass
        arrivals.append(time.monotonic() - began)
    assert max(arrivals) - min(arrivals) < STEP / 2, "one of them waited for a step of the others"


async def test_a_running_engine_does_not_wait_for_more(start: Start, script: Script) -> None:
    client = await start(script({"match": "", "text": "a ", "repeat": 0}, step_seconds=0.001))
    stream = await client.generate(request())
    tokens, until = 0, time.monotonic() + 1
    while time.monotonic() < until:
        tokens += (await stream.next()).tokens
    stream.abort_if_running()
    assert tokens > 300, "a pause of a millisecond per step would halve this"

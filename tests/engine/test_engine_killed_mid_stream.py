"""The engine process is killed (out of memory, an operator) while it answers."""

import asyncio
import os
import signal

import pytest
from conftest import Script, Start, eventually, is_running, kill_engine, reaches, read_all, request

from ovserve.errors import EngineDead

SLOW = {"match": "", "pieces": ["tick "], "repeat": 0, "step_seconds": 0.01}


async def test_text_that_arrived_comes_first_then_engine_dead(start: Start, script: Script) -> None:
    client = await start(script(SLOW))
    stream = await client.generate(request())
    assert (await stream.next()).prompt_tokens == 1
    assert (await stream.next()).text.startswith("tick ")
    read = client.stats().generated_tokens
    await eventually(lambda: client.stats().generated_tokens > read)  # more text arrives and waits
    await kill_engine(client)
    assert (await stream.next()).text.startswith("tick ")
    with pytest.raises(EngineDead):
        await stream.next()
    with pytest.raises(EngineDead):  # and stays so
        await stream.next()


async def test_every_running_request_ends(start: Start, script: Script) -> None:
    client = await start(script(SLOW))
    streams = [await client.generate(request()) for _ in range(20)]
    for stream in streams:
        assert not (await stream.next()).text
        assert (await stream.next()).text
    os.kill(client.pid, signal.SIGKILL)
    results = await asyncio.gather(*(read_all(stream) for stream in streams), return_exceptions=True)
    assert all(isinstance(result, EngineDead) for result in results)
    stats = client.stats()
    assert (stats.running, stats.failed, stats.requests) == (0, 20, 20)


async def test_a_reader_already_waiting_is_woken_at_once(start: Start, script: Script) -> None:
    client = await start(script({**SLOW, "step_seconds": 0.5}))
    stream = await client.generate(request())
    await stream.next()
    assert (await stream.next()).text
    waiting = asyncio.create_task(stream.next())
    await asyncio.sleep(0.05)
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(EngineDead):
        async with asyncio.timeout(60):
            await waiting


async def test_an_engine_that_exits_without_a_word(start: Start, script: Script) -> None:
    client = await start(script({"match": "", "pieces": ["a"], "repeat": 0, "exit_in_step": 3}))
    pid = client.pid
    with pytest.raises(EngineDead):
        await read_all(await client.generate(request()))
    await reaches(client, "ready")  # the next is started only when the last one is gone
    assert not is_running(pid)

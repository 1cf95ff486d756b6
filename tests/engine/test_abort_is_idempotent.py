"""A client may leave at any moment, more than once, and the engine must stop working for it."""

import asyncio

import pytest
from conftest import Script, Start, eventually, read_all, request, text_spec

from ovserve.engine.client.text import TextClient
from ovserve.errors import Unavailable

ENDLESS = {"match": "endless", "pieces": ["tick "], "repeat": 0, "step_seconds": 0.2}
SHORT = {"match": "", "text": "done"}


async def test_any_number_of_times_and_after_the_end(start: Start, script: Script) -> None:
    client = await start(script(ENDLESS, SHORT))
    stream = await client.generate(request("endless"))
    await stream.next()
    for _ in range(3):
        stream.abort_if_running()
    finished = await client.generate(request())
    await read_all(finished)
    finished.abort_if_running()
    stats = client.stats()
    assert (stats.running, stats.aborted, stats.finished) == (0, 1, 1)


async def test_the_engine_is_free_for_the_next(script: Script) -> None:
    """It takes one request at a time, and the one before it would never end."""
    client = await TextClient.start(text_spec(script(ENDLESS, SHORT), max_num_seqs=1))
    try:
        stream = await client.generate(request("endless"))
        await stream.next()
        stream.abort_if_running()
        async with asyncio.timeout(60):
            await read_all(await client.generate(request()))
    finally:
        await client.stop()


async def test_when_the_consumer_was_cancelled(start: Start, script: Script) -> None:
    client = await start(script(ENDLESS))

    async def consume() -> None:
        stream = await client.generate(request("endless"))
        try:
            while True:
                await stream.next()
        finally:
            stream.abort_if_running()

    task = asyncio.create_task(consume())
    await eventually(lambda: client.stats().generated_tokens)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.stats().aborted == 1
    assert client.stats().running == 0


async def test_before_the_admission_arrived(start: Start, script: Script) -> None:
    client = await start(script(ENDLESS, SHORT))
    stream = await client.generate(request("endless"))
    stream.abort_if_running()
    with pytest.raises(Unavailable, match="aborted"):
        await stream.next()
    assert (await read_all(await client.generate(request())))[0] == "done"


async def test_text_that_had_arrived_can_still_be_read(start: Start, script: Script) -> None:
    client = await start(script({**ENDLESS, "step_seconds": 0.01}))
    stream = await client.generate(request("endless"))
    await stream.next()
    await eventually(lambda: client.stats().generated_tokens)
    stream.abort_if_running()
    assert (await stream.next()).text.startswith("tick ")
    with pytest.raises(Unavailable):
        await stream.next()


async def test_after_the_engine_died(start: Start, script: Script) -> None:
    client = await start(script({"match": "", "exit_in_step": 1}))
    stream = await client.generate(request())
    with pytest.raises(Unavailable):
        await read_all(stream)
    stream.abort_if_running()
    assert client.stats().aborted == 0

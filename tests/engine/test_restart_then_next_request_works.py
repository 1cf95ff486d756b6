"""After a death: requests wait for the next engine, or are told when to come back; stop() is always clean."""

import asyncio
import os

import pytest
from conftest import FAST_RESTARTS, Script, Start, is_running, kill_engine, reaches, read_all, request

from ovserve.engine.client.state import RestartPolicy
from ovserve.errors import Unavailable


async def test_a_request_waits_for_the_next_engine(start: Start, script: Script) -> None:
    client = await start(script({"match": "", "text": "hello again"}))
    await kill_engine(client)
    assert client.state.name == "restarting"
    assert "SIGKILL" in client.state.reason or "ended" in client.state.reason
    assert (await read_all(await client.generate(request())))[0] == "hello again"
    assert client.state.name == "ready"


async def test_again_and_again(start: Start, script: Script) -> None:
    client = await start(script())
    for _ in range(3):
        await kill_engine(client)
        await read_all(await client.generate(request()))
    assert client.stats().restarts == 3


async def test_waiting_has_an_end(start: Start, script: Script) -> None:
    client = await start(script(load_seconds=0.3), restart_wait=0.2)
    script(load="hang")  # the same file: the next engine will not come up
    await kill_engine(client)
    with pytest.raises(Unavailable) as caught:
        await client.generate(request())
    assert caught.value.retry_after is not None
    assert "restarting" in str(caught.value)


async def test_repeated_failure_to_load_is_a_state_and_can_mend(start: Start, script: Script) -> None:
    client = await start(script(), restart_wait=1000.0)
    script(load="fail")
    await kill_engine(client)
    await reaches(client, "failed")
    assert "the script says that loading fails" in client.state.reason
    with pytest.raises(Unavailable, match="the engine has failed"):
        async with asyncio.timeout(60):  # at once, not after restart_wait
            await client.generate(request())
    script({"match": "", "text": "mended"})
    await reaches(client, "ready")
    assert (await read_all(await client.generate(request())))[0] == "mended"


async def test_a_model_that_vanished(start: Start, script: Script) -> None:
    path = script()
    client = await start(path)
    os.unlink(path)
    await kill_engine(client)
    await reaches(client, "failed")
    assert path in client.state.reason


@pytest.mark.parametrize("moment", ["pausing", "loading", "failed", "ready"])
async def test_stop_is_clean_at_any_moment(start: Start, script: Script, moment: str) -> None:
    tasks = asyncio.all_tasks()
    pause = 60.0 if moment == "pausing" else 0.01
    client = await start(script(), restarts=RestartPolicy(first_pause=pause, max_load_failures=1))
    pid = client.pid
    if moment != "ready":
        script(load="fail" if moment == "failed" else "hang")
        await kill_engine(client)
        waiting = asyncio.create_task(client.generate(request()))
        await asyncio.sleep(0.5)
        await client.stop()
        with pytest.raises(Unavailable):
            await waiting
    await client.stop()
    await client.stop()
    assert client.state.name == "stopped"
    assert not is_running(pid)
    assert asyncio.all_tasks() == tasks
    with pytest.raises(Unavailable):
        await client.generate(request())


async def test_stop_ends_running_requests_and_a_long_step(start: Start, script: Script) -> None:
    client = await start(script({"match": "", "step_seconds": 600}), stop_grace=0.2)
    pid = client.pid
    stream = await client.generate(request())
    await stream.next()
    async with asyncio.timeout(60):
        await client.stop()
    with pytest.raises(Unavailable, match="stopping"):
        await stream.next()
    assert not is_running(pid)


def test_pauses_grow_to_a_ceiling() -> None:
    pauses = [FAST_RESTARTS.pause(n) for n in range(8)]
    assert pauses == sorted(pauses)
    assert pauses[0] == FAST_RESTARTS.first_pause
    assert pauses[-1] == FAST_RESTARTS.longest_pause
    assert FAST_RESTARTS.pause(10_000) == FAST_RESTARTS.longest_pause

"""A process that was started before anybody knew what it would load."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import Script, Start, eventually, is_running, read_all, request, text_spec

from ovserve.engine.client.spare import Spare
from ovserve.engine.client.spawn import Child
from ovserve.engine.protocol.launch import PREPARE
from ovserve.errors import LoadError


def children() -> set[int]:
    return set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()))


async def test_the_first_engine_takes_it_and_keeps_it(start: Start, script: Script) -> None:
    before, path = children(), script({"text": "hello there"})
    async with Spare() as spare:
        (pid,) = children() - before
        first = await start(path, spare=spare)
        second = await start(path, spare=spare)
    assert first.pid == pid != second.pid
    for client in (first, second):
        text, _ = await read_all(await client.generate(request()))
        assert text == "hello there"


async def test_a_restart_takes_the_next_one(start: Start, script: Script) -> None:
    before = children()
    async with Spare() as spare:
        client = await start(script({"text": "hello there"}), spare=spare)
        spare.prepare()
        await eventually(lambda: len(children() - before) == 2)
        (pid,) = children() - before - {client.pid}
        os.kill(client.pid, signal.SIGKILL)
        await eventually(lambda: client.pid == pid)
    text, _ = await read_all(await client.generate(request()))
    assert text == "hello there"


async def test_nobody_takes_it(start: Start, script: Script) -> None:
    before = children()
    async with Spare() as spare:
        (pid,) = children() - before
        await spare.end()
        assert not is_running(pid)
        client = await start(script({"text": "hello"}), spare=spare)
    assert is_running(client.pid)


async def test_the_start_fails_for_another_reason() -> None:
    before, pids = children(), []

    async def fail() -> None:
        async with Spare():
            pids.extend(children() - before)
            raise LoadError("the graph is wrong")

    with pytest.raises(LoadError, match="the graph is wrong"):
        await fail()
    assert len(pids) == 1
    assert not is_running(pids[0])


async def test_its_model_does_not_load(start: Start, script: Script) -> None:
    before = children()
    async with Spare() as spare:
        (pid,) = children() - before
        with pytest.raises(LoadError, match="exit status 13"):
            await start(script(load="exit"), spare=spare)
        assert not is_running(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_one_that_ended_while_idle_fails_no_load(start: Start, script: Script, number: int) -> None:
    before = children()
    async with Spare() as spare:
        (pid,) = children() - before
        os.kill(pid, number)
        await eventually(lambda: pid not in children())
        client = await start(script({"text": "hello there"}), spare=spare)
        assert (await read_all(await client.generate(request())))[0] == "hello there"
        spare.prepare()
        await eventually(lambda: len(children() - before) == 2)


async def test_one_that_is_replaced_is_another_process(start: Start, script: Script) -> None:
    before = children()
    async with Spare() as spare:
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: pid not in children())
        spare.prepare()
        await eventually(lambda: bool(children() - before))
        (fresh,) = children() - before
        client = await start(script({"text": "hello"}), spare=spare)
        assert (client.pid, fresh != pid) == (fresh, True)


@pytest.mark.parametrize("loading", [False, True])
async def test_one_that_is_killed_as_it_is_taken_fails_no_load(
    start: Start, script: Script, loading: bool
) -> None:
    path, before = script({"text": "hello there"}), children()
    async with Spare() as spare:
        (pid,) = children() - before
        os.kill(pid, signal.SIGSTOP)  # it reads nothing more
        if loading:
            await spare.load(text_spec(path))
        starting = asyncio.create_task(start(path, spare=spare))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        client = await starting
    assert client.pid != pid
    assert (await read_all(await client.generate(request())))[0] == "hello there"


async def test_none_can_be_started(start: Start, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by the engine that is started in its place, or not needed."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with Spare() as spare:
        with pytest.raises(LoadError, match="/nowhere/python: its process cannot be started"):
            await start(script(), spare=spare)


async def test_it_loads_what_is_probably_needed_before_it_is_taken(start: Start, script: Script) -> None:
    probable, other = script({"text": "hello there"}), script({"text": "no"}, name="other")
    before = children()
    async with Spare() as spare:
        (pid,) = children() - before
        await spare.load(text_spec(probable))
        assert not spare.settled.is_set()
        second = await start(other, spare=spare)
        assert second.pid != pid, "another model gets a process of its own"
        first = await start(probable, spare=spare)
    assert first.pid == pid
    for client, said in ((first, "hello there"), (second, "no")):
        text, _ = await read_all(await client.generate(request()))
        assert text == said


async def test_what_is_probably_needed_does_not_load(start: Start, script: Script) -> None:
    path = script(load="exit")
    async with Spare() as spare:
        await spare.load(text_spec(path))
        with pytest.raises(LoadError, match="exit status 13"):
            await start(path, spare=spare)


async def test_a_process_started_without_an_event_loop(start: Start, script: Script) -> None:
    child = Child(PREPARE)
    path = script({"text": "hello"})
    async with Spare(child) as spare:
        client = await start(path, spare=spare)
    assert client.pid == child.process.pid
    text, _ = await read_all(await client.generate(request()))
    assert text == "hello"
    pid = client.pid
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: client.pid not in (0, pid))
    text, _ = await read_all(await client.generate(request()))
    assert text == "hello"


async def test_a_process_started_without_an_event_loop_is_not_needed() -> None:
    before = children()
    for adopted in (False, True):
        child = Child(PREPARE)
        (pid,) = children() - before
        if adopted:
            async with Spare(child):
                assert is_running(pid)
        else:
            child.end()
        assert children() == before


@pytest.mark.parametrize("turns", range(5))
async def test_a_start_that_is_cancelled_leaves_nothing(turns: int) -> None:
    """Ctrl-C at any moment of it: the process is there already, and its socket and output not connected yet."""
    before = children()
    starting = asyncio.create_task(Spare().__aenter__())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await (await starting).end()  # it was over before
    assert children() == before

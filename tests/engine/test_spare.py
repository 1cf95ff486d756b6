"""A process that was started before anybody knew what it would load."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from conftest import Script, Start, eventually, is_running, read_all, request

from ovserve.engine.client.early import EarlyProcess
from ovserve.engine.client.prewarm import PrewarmedProcess
from ovserve.engine.protocol.specs import text_spec
from ovserve.errors import LoadError


def children() -> set[int]:
    return set(map(int, Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()))


async def test_the_first_engine_takes_it_and_keeps_it(start: Start, script: Script) -> None:
    before, path = children(), script({"text": "hello there"})
    async with PrewarmedProcess() as prewarmed:
        (pid,) = children() - before
        first = await start(path, prewarmed=prewarmed)
        second = await start(path, prewarmed=prewarmed)
    assert first.pid == pid != second.pid
    for client in (first, second):
        text, _ = await read_all(await client.generate(request()))
        assert text == "hello there"


async def test_nobody_takes_it(start: Start, script: Script) -> None:
    before = children()
    async with PrewarmedProcess() as prewarmed:
        (pid,) = children() - before
        await prewarmed.end()
        assert not is_running(pid)
        client = await start(script({"text": "hello"}), prewarmed=prewarmed)
    assert is_running(client.pid)


async def test_the_start_fails_for_another_reason() -> None:
    before, pids = children(), []

    async def fail() -> None:
        async with PrewarmedProcess():
            pids.extend(children() - before)
            raise LoadError("the graph is wrong")

    with pytest.raises(LoadError, match="the graph is wrong"):
        await fail()
    assert len(pids) == 1
    assert not is_running(pids[0])


async def test_its_model_does_not_load(start: Start, script: Script) -> None:
    before = children()
    async with PrewarmedProcess() as prewarmed:
        (pid,) = children() - before
        with pytest.raises(LoadError, match="exit status 13"):
            await start(script(load="exit"), prewarmed=prewarmed)
        assert not is_running(pid)


async def test_it_ended_before_it_was_needed(start: Start, script: Script) -> None:
    before = children()
    async with PrewarmedProcess() as prewarmed:
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(LoadError, match="killed by SIGKILL"):
            await start(script(), prewarmed=prewarmed)


async def test_none_can_be_started(start: Start, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by the engine that is started in its place, or not needed."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with PrewarmedProcess() as prewarmed:
        with pytest.raises(FileNotFoundError):
            await start(script(), prewarmed=prewarmed)


async def test_it_loads_what_is_probably_needed_before_it_is_taken(start: Start, script: Script) -> None:
    probable, other = script({"text": "hello there"}), script({"text": "no"}, name="other")
    before = children()
    async with PrewarmedProcess() as prewarmed:
        (pid,) = children() - before
        await prewarmed.load(text_spec(probable))
        assert not prewarmed.settled.is_set()
        second = await start(other, prewarmed=prewarmed)
        assert second.pid != pid, "another model gets a process of its own"
        first = await start(probable, prewarmed=prewarmed)
    assert first.pid == pid
    for client, said in ((first, "hello there"), (second, "no")):
        text, _ = await read_all(await client.generate(request()))
        assert text == said


async def test_what_is_probably_needed_does_not_load(start: Start, script: Script) -> None:
    path = script(load="exit")
    async with PrewarmedProcess() as prewarmed:
        await prewarmed.load(text_spec(path))
        with pytest.raises(LoadError, match="exit status 13"):
            await start(path, prewarmed=prewarmed)


async def test_a_process_started_without_an_event_loop(start: Start, script: Script) -> None:
    early = EarlyProcess.spawn()
    assert early is not None
    path = script({"text": "hello"})
    async with PrewarmedProcess(early) as prewarmed:
        client = await start(path, prewarmed=prewarmed)
    early.end()  # it is not its own any more
    assert is_running(client.pid)
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
        early = EarlyProcess.spawn()
        (pid,) = children() - before
        if adopted:
            async with PrewarmedProcess(early):
                assert is_running(pid)
        else:
            assert early is not None
            early.end()
        assert children() == before


@pytest.mark.parametrize("turns", range(12))
async def test_a_start_that_is_cancelled_leaves_nothing(turns: int) -> None:
    """Ctrl-C at any moment of it: the process may be there already, and its pid not known yet."""
    before = children()
    starting = asyncio.create_task(PrewarmedProcess().__aenter__())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert children() == before

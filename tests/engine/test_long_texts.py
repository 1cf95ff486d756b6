"""Long texts: tokenised in a process of their own, which may be killed, hang or be asked by many at once."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from ovserve.engine.client import text
from ovserve.errors import InvalidArgument, Unavailable
from tests.conftest import eventually
from tests.engine.conftest import Script, Start, is_running

LONG = "a b " * text.LONG_TEXT
IDS = [[0, 1] * text.LONG_TEXT]


async def test_a_killed_process_is_replaced_under_the_call(start: Start, script: Script) -> None:
    client = await start(script(tokenize_seconds=2))
    process = client.texts.process
    asked = asyncio.create_task(client.tokenize([LONG], add_special_tokens=False))
    await eventually(lambda: process.calls == 1)
    os.kill(first := process.pid, signal.SIGKILL)
    assert await asked == IDS
    assert process.pid not in (0, first)
    assert process.calls == 2


async def test_killed_twice_it_is_given_up(start: Start, script: Script) -> None:
    client = await start(script(tokenize_seconds=30))
    process = client.texts.process
    asked = asyncio.create_task(client.tokenize([LONG], add_special_tokens=False))
    for calls in (1, 2):
        await eventually(lambda calls=calls: process.calls == calls)
        os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="the process that tokenises ended") as caught:
        await asked
    assert caught.value.retry_after
    assert process.pid == 0


async def test_a_text_that_takes_too_long_costs_the_process(
    start: Start, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "CALL_SECONDS", 0.2)
    client = await start(script(tokenize_seconds=30))
    process = client.texts.process
    asked = asyncio.create_task(client.tokenize([LONG], add_special_tokens=False))
    await eventually(lambda: process.calls == 1)
    pid = process.pid
    with pytest.raises(InvalidArgument, match=r"takes more than 0\.2 s to tokenise"):
        await asked
    assert not is_running(pid)
    assert client.state.name == "ready", "the engine had nothing to do with it"


async def test_a_crowd_is_told_to_come_later(
    start: Start, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MAX_CALLS", 2)
    client = await start(script(tokenize_seconds=1))
    asked = [asyncio.create_task(client.tokenize([LONG], add_special_tokens=False)) for _ in range(3)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert answers[:2] == [IDS, IDS]
    assert isinstance(answers[2], Unavailable)
    assert "2 long texts wait" in answers[2].message


async def test_one_that_leaves_holds_up_no_other(start: Start, script: Script) -> None:
    client = await start(script(tokenize_seconds=1))
    process = client.texts.process
    for calls in (1, 2):
        left = asyncio.create_task(client.tokenize(["x " + LONG], add_special_tokens=False))
        await eventually(lambda calls=calls: process.calls == calls)
        pid = process.pid
        left.cancel()
        await asyncio.wait([left])
        assert not is_running(pid), "a text behind it would wait, and be rejected for taking too long"
    assert await client.tokenize([LONG], add_special_tokens=False) == IDS
    assert process.calls == 3


async def test_stop_ends_the_call_and_the_process(start: Start, script: Script) -> None:
    client = await start(script(tokenize_seconds=30))
    process = client.texts.process
    asked = [asyncio.create_task(client.tokenize([LONG], add_special_tokens=False)) for _ in range(2)]
    await eventually(lambda: process.calls == 1)
    pid = process.pid
    await client.stop()
    for ended in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(ended, Unavailable)
        assert "stopping" in ended.message
    assert not is_running(pid)
    with pytest.raises(Unavailable):
        await client.tokenize([LONG], add_special_tokens=False)
    assert process.pid == 0

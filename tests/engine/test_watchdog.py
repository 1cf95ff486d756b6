"""An engine that makes no progress is found, told of and replaced; one that is merely slow is left alone."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from conftest import FAST_RESTARTS, Script, Start, eventually, is_running, read_all, request, text_spec

from ovserve.engine.client.health import Watchdog
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.client.text import TextClient
from ovserve.engine.protocol.messages import Usage
from ovserve.errors import EngineDead

IMPATIENT = RestartPolicy(
    first_pause=FAST_RESTARTS.first_pause, longest_pause=FAST_RESTARTS.longest_pause, stall_timeout=4.0
)
SLOW = {"match": "slow", "pieces": ["tick "], "repeat": 0, "step_seconds": 0.02}
FINE = {"match": "", "text": "all is well"}


async def stop_engine(pid: int) -> None:
    """SIGSTOP, and wait until the kernel has done it."""
    os.kill(pid, signal.SIGSTOP)
    await eventually(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text())


async def test_a_stopped_engine_is_told_of_and_replaced(
    start: Start, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = await start(script(SLOW, FINE), restarts=IMPATIENT)
    pid = client.pid
    begun = await client.generate(request("slow"))
    await begun.next()
    assert (await begun.next()).text
    await stop_engine(pid)
    untouched = await client.generate(request("other"))
    with pytest.raises(EngineDead, match=r"did not end a step within 4 s"):
        await read_all(begun)
    assert client.state.name == "restarting"
    assert "did not end a step" in client.state.reason
    assert (await read_all(untouched))[0] == "all is well"  # by the next engine
    assert not is_running(pid)
    stats = client.stats()
    assert (stats.stalls, stats.restarts, stats.repeated, stats.running) == (1, 1, 1, 0)
    text = caplog.text
    assert f"engine[{pid}]: holds request 1 test-1: arrived" in text
    assert "threads 'python" in text
    assert "in state T" in text
    assert 'ovserve/engine/worker/main.py", line' in text  # its Python stack
    assert "slow" not in text  # nobody's words


async def test_steps_without_a_token_are_no_progress(start: Start, script: Script) -> None:
    script_path = script({"match": "hung", "wait_steps": 10**9}, FINE, step_seconds=0.02)
    client = await start(script_path, restarts=IMPATIENT)
    stream = await client.generate(request("hung"))
    with pytest.raises(EngineDead, match="steps but no token"):
        await read_all(stream)  # by the second engine too
    assert client.stats().stalls == 2


async def test_a_long_prompt_is_progress(start: Start, script: Script) -> None:
    long = {"match": "long", "prefill_steps": 300, "text": "at last"}
    client = await start(script(long, step_seconds=0.02), restarts=IMPATIENT)
    assert (await read_all(await client.generate(request("long"))))[0] == "at last"
    assert client.stats().stalls == 0


async def test_an_idle_engine_that_is_stopped_is_found_before_a_request_comes(
    start: Start, script: Script
) -> None:
    client = await start(script(FINE), restarts=IMPATIENT)
    await stop_engine(pid := client.pid)
    await eventually(lambda: client.state.name == "restarting")
    assert "had no work and did not answer" in client.state.reason
    await eventually(lambda: client.state.name == "ready")
    assert not is_running(pid)
    assert (client.stats().stalls, client.stats().requests) == (1, 0)


HASTY = RestartPolicy(first_pause=0.05, longest_pause=0.1, stall_timeout=1.5)
LONG_STEP = {"match": "", "text": "last", "step_seconds": 4.5}


async def test_a_graph_may_have_more_patience_than_the_server(start: Start, script: Script) -> None:
    client, forever, hasty = [await start(script(LONG_STEP), restarts=HASTY) for _ in range(3)]

    async def answer(client: TextClient, enough: float | None) -> str:
        return (await read_all(await client.generate(request(max_tokens=1), stall_timeout=enough)))[0]

    *answers, error = await asyncio.gather(
        *(answer(client, 20.0), answer(forever, 0.0), answer(hasty, None)), return_exceptions=True
    )
    assert answers == ["last"] * 2
    assert client.stats().stalls == forever.stats().stalls == 0
    assert isinstance(error, EngineDead)
    assert "did not end a step within 1.5 s" in str(error)


async def test_a_prompt_that_is_read_in_one_step_has_time_by_its_length(script: Script) -> None:
    spec = text_spec(script(LONG_STEP), dynamic_split_fuse=False)
    async with AsyncExitStack() as stack:
        clients = [await TextClient.start(spec, EngineSettings(restarts=HASTY)) for _ in range(2)]
        for client in clients:
            stack.push_async_callback(client.stop)
        streams = [
            await client.generate(request(prompt, max_tokens=1))
            for client, prompt in zip(clients, ("word " * 100, "word"), strict=True)
        ]
        long, short = await asyncio.gather(*map(read_all, streams), return_exceptions=True)
        assert not isinstance(long, BaseException)
        assert long[0] == "last"
        assert clients[0].stats().stalls == 0
        assert isinstance(short, EngineDead)
        assert "did not end a step" in str(short)


async def test_an_idle_engine_may_be_silent(start: Start, script: Script) -> None:
    client = await start(script(FINE), restarts=IMPATIENT)
    await read_all(await client.generate(request()))
    await asyncio.sleep(4.5)
    await read_all(await client.generate(request()))
    assert client.stats().stalls == 0


def looks(dog: Watchdog, seconds: float, **held: int) -> str | None:
    """Look on for so long, as the client does, by a clock of our own."""
    now = getattr(looks, "now", 0.0)
    found = None
    for _ in range(round(seconds / dog.interval)):
        now += dog.interval
        found = found or dog.check(now, **{"requests": 0, "pending": 0, **held})
    looks.now = now  # type: ignore[attr-defined]
    return found


def test_silence_counts_only_with_work() -> None:
    dog = Watchdog(4.0)
    assert looks(dog, 60) is None
    assert looks(dog, 3, pending=1) is None
    dog.on_message(progress=False)
    assert looks(dog, 3, pending=1) is None
    assert looks(dog, 2, pending=1) == "the engine did not end a step within 4 s"
    assert looks(Watchdog(0.0), 600, requests=1) is None


class Idle:
    """A dog, an engine without work, and a clock."""

    def __init__(self, timeout: float) -> None:
        self.dog, self.now, self.sent, self.pings = Watchdog(timeout), 0.0, 0, 0
        self.answers = True

    def pass_(self, seconds: float, **held: int) -> str | None:
        for _ in range(round(seconds / self.dog.interval)):
            self.now += self.dog.interval
            found = self.dog.check(self.now, **{"requests": 0, "pending": 0, **held}, num_sent=self.sent)
            if found is not None:
                return found
            if self.dog.ping(self.sent):
                self.sent, self.pings = self.sent + 1, self.pings + 1
                if self.answers:
                    self.dog.answered()
        return None


def test_an_idle_engine_is_asked_every_few_seconds() -> None:
    idle = Idle(120.0)
    assert idle.pass_(600) is None
    assert 50 <= idle.pings <= 120
    idle.answers = False
    assert idle.pass_(18) is None
    assert idle.pass_(9) == "the engine had no work and did not answer within 20 s"


def test_an_engine_that_may_still_be_in_a_step_has_the_whole_time() -> None:
    idle = Idle(120.0)
    assert idle.pass_(60) is None
    idle.answers = False
    idle.sent += 2  # an Add and its Abort
    assert idle.pass_(100) is None
    assert idle.pass_(40) == "the engine had no work and did not answer within 120 s"


def test_a_machine_that_slept_is_no_engine_that_hangs() -> None:
    idle = Idle(120.0)
    assert idle.pass_(60) is None
    idle.answers = False
    assert idle.pass_(8) is None
    for _ in range(3):  # with a ping under way
        idle.now += 3600
        assert idle.pass_(1) is None
    idle.dog.answered()
    idle.answers = True
    assert idle.pass_(60) is None


def test_nobody_asks_an_engine_that_works_or_is_never_stalled() -> None:
    busy, forever = Idle(120.0), Idle(0.0)
    for _ in range(60):
        busy.dog.on_message(progress=True)
        assert busy.pass_(1, requests=1) is None
    assert forever.pass_(600) is None
    assert (busy.pings, forever.pings) == (0, 0)


def test_heartbeats_without_tokens_and_with_a_filling_cache() -> None:
    dog, filled = Watchdog(4.0), 0.0
    for _ in range(60):
        filled += 0.01
        dog.on_message(progress=False, usage=Usage(1, 1, filled))
        assert looks(dog, 0.5, requests=1) is None
    found = [
        dog.on_message(progress=False, usage=Usage(1, 1, filled)) or looks(dog, 0.5, requests=1)
        for _ in range(10)
    ]
    assert "the engine made steps but no token within 4 s" in found


def test_heartbeats_without_tokens_while_a_prompt_is_computed() -> None:
    """The paged engine takes all blocks of a prompt at its start, so its cache does not fill step by step."""
    dog = Watchdog(4.0)
    for left in range(600, 0, -10):
        dog.on_message(progress=False, usage=Usage(1, 1, 0.5, 1000, to_prefill=((7, left),)))
        assert looks(dog, 0.5, requests=1) is None
    found = []
    for left in (600, 300, 10) * 5:  # it is preempted and computed again, for ever
        dog.on_message(progress=False, usage=Usage(1, 1, 0.5, 1000, to_prefill=((7, left),)))
        found.append(looks(dog, 0.5, requests=1))
    assert "the engine made steps but no token within 4 s" in found


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """This process was stopped, the machine slept, the clock jumped."""
    dog = Watchdog(4.0)
    assert dog.check(0.0, requests=1, pending=0) is None
    assert dog.check(3600.0, requests=1, pending=0) is None
    assert dog.check(3600.5, requests=1, pending=0) is None


@pytest.mark.slow
async def test_a_long_prompt_fills_the_cache_of_the_real_engine_step_by_step(
    start: Start, model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the watchdog goes by while there is no token yet."""
    seen: list[float] = []
    heard = Watchdog.on_message

    def listen(dog: Watchdog, *, progress: bool, usage: Usage | None = None) -> None:
        if usage is not None and not client.stats().generated_tokens:
            seen.append(usage.cache * usage.cache_bytes)
        heard(dog, progress=progress, usage=usage)

    monkeypatch.setattr(Watchdog, "on_message", listen)
    client = await start(model_path, ready_timeout=60.0)
    await read_all(await client.generate(request("word " * 2500, max_tokens=1)))
    assert len(seen) > 3
    assert seen == sorted(set(seen)), "each heartbeat tells of a fuller cache"

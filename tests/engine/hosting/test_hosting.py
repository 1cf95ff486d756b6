"""Many models in one process: what one does, or what happens to the process, as the others see it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ovserve.engine.client.calls import CallClient, CallStream
from ovserve.engine.client.hosts import Hosts
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.host.memory import resident
from ovserve.engine.protocol.messages import Load
from ovserve.engine.worker.host import open_backend
from ovserve.errors import EngineDead, Internal, InvalidArgument, LoadError
from tests.conftest import eventually
from tests.engine.hosting.kinds import SmallSpec

QUICK = EngineSettings(restarts=RestartPolicy(first_pause=0.01), stop_grace=5)


class House:
    """Shared processes, and clients of models in them."""

    def __init__(self, directory: Path, settings: EngineSettings) -> None:
        self.hosts = Hosts(settings)
        self.settings = settings
        self.clients: list[CallClient] = []
        self._directory = directory

    async def open(self, name: str, how: str = "", **options: Any) -> CallClient:
        path = self._directory / name
        path.write_text(f"{name} {how}")
        client = CallClient(SmallSpec(str(path), **options), self.settings, self.hosts)
        await client.launch()
        self.clients.append(client)
        return client

    async def close(self) -> None:
        self.hosts.closing()
        await asyncio.gather(*(client.stop() for client in self.clients))
        await self.hosts.close()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path, QUICK)
    yield made
    await made.close()


async def who(client: CallClient) -> dict[str, Any]:
    stream = await client.call("who", None)
    item = await stream.next()
    assert item is not None
    assert await stream.next() is None
    found: dict[str, Any] = item.decode()
    return found


async def rest(stream: CallStream) -> list[Any]:
    found = []
    while (item := await stream.next()) is not None:
        found.append(item.decode())
    return found


async def test_models_share_a_process_and_answer_for_themselves(house: House) -> None:
    clients = [await house.open(f"m{i}") for i in range(5)]
    alone = await house.open("alone", isolation="process")
    answers = await asyncio.gather(*map(who, clients))
    assert [a["name"] for a in answers] == [f"m{i}" for i in range(5)]
    assert {a["pid"] for a in answers} == {clients[0].pid}
    assert (await who(alone))["pid"] == alone.pid != clients[0].pid
    assert max(a["threads"] for a in answers) <= 6, "threads are shared, not one for each model"


async def test_a_load_holds_up_no_calls_and_no_other_load(house: House, tmp_path: Path) -> None:
    busy = await house.open("busy")
    loading = asyncio.create_task(house.open("slow", "gated gate"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        for _ in range(20):
            await who(busy)
        other = await house.open("other")
        assert await who(other)
    assert not loading.done()
    (tmp_path / "gate").touch()
    assert (await who(await loading))["name"] == "slow"


async def test_unloading_frees_the_memory_and_ends_its_calls(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keep = await house.open("keep")
    before = resident(keep.pid)
    large = await house.open("large", "large 200")
    assert resident(keep.pid) - before > 180 << 20
    running = await large.call("count", (1000, 0.01))
    assert await running.next()
    await large.stop()
    with pytest.raises(Exception, match="stopping"):
        await rest(running)
    assert resident(keep.pid) - before < 30 << 20
    assert await who(keep)
    await eventually(lambda: "large is closed" in caplog.text)


async def test_the_process_ends_with_its_last_model(house: House) -> None:
    client = await house.open("one")
    pid = client.pid
    await client.stop()
    await eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert await who(await house.open("two"))


async def test_a_load_that_fails_says_why_and_harms_no_one(house: House) -> None:
    good = await house.open("good")
    pid = good.pid
    for how, said in (("refuse", "not a model"), ("raise", "RuntimeError: a bad model")):
        with pytest.raises(LoadError, match=said):
            await house.open("bad", how)
    assert (await who(good))["pid"] == pid


async def test_a_call_that_raises_fails_alone(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = await house.open("one")
    for method, said in (("raise", "RuntimeError: no"), ("panic", "BaseException: no")):
        with pytest.raises(Internal, match=said):
            await (await client.call(method, None)).next()
        await eventually(lambda said=said: "small " in caplog.text and said in caplog.text)
    assert await who(client)


async def test_killed_from_outside_it_comes_back_with_all_models(house: House) -> None:
    clients = [await house.open(f"m{i}") for i in range(8)]
    pid = clients[0].pid
    read = await clients[0].call("count", (1000, 0.01))
    assert await read.next() is not None
    unread = await clients[1].call("count", (3, 0.2))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineDead):
        await rest(read)
    assert await rest(unread) == [0, 1, 2], "nothing of it had been read: it is repeated"
    answers = await asyncio.gather(*map(who, clients))
    assert [a["name"] for a in answers] == [f"m{i}" for i in range(8)]
    assert len({a["pid"] for a in answers}) == 1
    assert answers[0]["pid"] != pid
    assert [c.stats().restarts for c in clients] == [1] * 8
    assert {c.state.name for c in clients} == {"ready"}


async def test_a_model_that_ends_the_process_twice_gets_one_of_its_own(house: House) -> None:
    good = [await house.open(f"good{i}") for i in range(3)]
    bad = await house.open("bad")
    with pytest.raises(EngineDead):
        await rest(await bad.call("abort", 0.0))
    await asyncio.gather(*map(who, good))
    shared = {c.pid for c in good}
    assert len(shared) == 1
    await who(bad)
    assert bad.pid not in shared, "it ended the process with its call, and again with the repeated one"
    with pytest.raises(EngineDead):
        await rest(await bad.call("abort", 0.0))
    await asyncio.gather(*map(who, good))
    assert {c.pid for c in good} == shared, "what it does there touches no one else"


async def test_a_model_that_ends_the_process_while_it_loads_is_tried_once_more_alone(house: House) -> None:
    good = await house.open("good")
    with pytest.raises(LoadError, match=r"ended while loading \(killed by SIGABRT\)"):
        await house.open("bad", "abort")
    assert await who(good)
    assert good.stats().restarts == 1
    with pytest.raises(LoadError, match="ended while loading"):
        await house.open("bad", "abort")
    assert await who(good)
    assert good.stats().restarts == 1, "it is not let in a second time"
    with pytest.raises(LoadError, match="ended while loading"):
        await house.open("worse", "exit 0")


async def test_a_load_that_hangs_is_given_up_and_the_others_move(house: House) -> None:
    good = await house.open("good")
    pid = good.pid
    for (
        host
    ) in house.hosts._hosts:  # this process alone is impatient: to start the next takes as long as it takes
        host._settings = replace(house.settings, ready_timeout=1)
    with pytest.raises(LoadError, match="not ready after 1 s"):
        await house.open("bad", "slow 1000")
    await eventually(lambda: good.pid not in (0, pid))
    assert await who(good)
    await eventually(lambda: not Path(f"/proc/{pid}").exists())


async def test_the_one_that_ends_the_process_is_found_among_others_at_work(house: House) -> None:
    good = [await house.open(f"good{i}") for i in range(4)]
    bad = await house.open("bad")
    unread = [await client.call("count", (3, 0.2)) for client in good]
    with pytest.raises(EngineDead):
        await rest(await bad.call("abort", 0.1))
    assert [await rest(stream) for stream in unread] == [[0, 1, 2]] * 4, "at work, and repeated: nothing lost"
    await asyncio.gather(*map(who, [*good, bad]))
    shared = {client.pid for client in good}
    assert len(shared) == 1
    assert bad.pid not in shared
    assert [client.stats().restarts for client in good] == [2] * 4


async def test_one_that_crashes_the_process_at_each_load_among_many_is_found(house: House) -> None:
    opened = await asyncio.gather(
        *(house.open(f"m{i}", "abort" if i == 3 else "slow 0.1") for i in range(8)), return_exceptions=True
    )
    failed = [one for one in opened if isinstance(one, BaseException)]
    assert len(failed) == 1
    assert "killed by SIGABRT" in str(failed[0])
    good = [one for one in opened if isinstance(one, CallClient)]
    assert len({(await who(client))["pid"] for client in good}) == 1


STALLS = EngineSettings(
    restarts=RestartPolicy(first_pause=0.01, stall_timeout=4.0), stop_grace=2, restart_wait=60
)


async def test_a_stalled_model_leaves_and_the_others_move_without_a_loss(tmp_path: Path) -> None:
    house = House(tmp_path, STALLS)
    try:
        good, bad = await house.open("good"), await house.open("bad")
        first = good.pid
        stalled = await bad.call("hang", 30.0)
        done = 0
        while good.pid in (0, first) or done < 10:
            answer = await rest(await good.call("count", (2, 0.05)))
            assert answer == [0, 1]
            done += 1
        assert (await who(good))["name"] == "good"
        assert bad.stats().stalls == 1
        await who(bad)
        assert bad.pid not in (first, good.pid)
        with pytest.raises(EngineDead):
            await stalled.next()
        await eventually(lambda: not Path(f"/proc/{first}").exists())
    finally:
        await house.close()


async def test_a_process_that_stands_still_is_replaced(tmp_path: Path) -> None:
    house = House(tmp_path, STALLS)
    try:
        models = [await house.open(f"m{i}") for i in range(4)]
        first = models[0].pid
        await models[1].call("stop", None)
        others = [models[0], *models[2:]]
        mine, *answers = await asyncio.gather(*map(who, [models[1], *others]), return_exceptions=True)
        assert [a["name"] for a in answers] == ["m0", "m2", "m3"]
        assert isinstance(mine, dict | EngineDead), "it waited beside the call that stopped the process twice"
        assert (await who(models[1]))["name"] == "m1"
        # The call is sent again and stops the next process too, which its models leave when they are idle.
        await eventually(lambda: models[0].pid and len({client.pid for client in others}) == 1)
        assert first not in {client.pid for client in models}
        await eventually(lambda: not Path(f"/proc/{first}").exists())
    finally:
        await house.close()


async def test_a_process_that_dies_again_and_again_is_a_failed_engine(tmp_path: Path) -> None:
    policy = RestartPolicy(first_pause=0.01, longest_pause=0.3, max_short_lives=3, max_load_failures=2)
    house = House(tmp_path, EngineSettings(restarts=policy))
    try:
        models = [await house.open(f"m{i}") for i in range(3)]
        for _ in range(12):
            await eventually(lambda: models[0].pid or models[0].state.name == "failed")
            if models[0].state.name == "failed":
                break
            os.kill(pid := models[0].pid, signal.SIGKILL)
            await eventually(lambda: models[0].pid != pid)
        assert models[0].state.name == "failed"
        assert (await asyncio.gather(*map(who, models), return_exceptions=True)) is not None
        await eventually(lambda: all(client.state.name == "ready" for client in models))
        assert await who(models[2]), "restarts have gone on"
    finally:
        await house.close()


async def test_a_process_over_its_limit_gets_no_more_models(tmp_path: Path) -> None:
    limit = 150 << 20
    house = House(tmp_path, EngineSettings(restarts=RestartPolicy(first_pause=0.01, memory_limit=limit)))
    try:
        one, two, three = [await house.open(f"m{i}", "large 50") for i in range(3)]
        assert one.pid == two.pid != three.pid
        assert [client.state.name for client in (one, two, three)] == ["ready"] * 3
        with pytest.raises(LoadError, match="over the limit of 150 MB"):
            await house.open("huge", "large 200")
        assert [(await who(client))["name"] for client in (one, two, three)] == ["m0", "m1", "m2"]
    finally:
        await house.close()


async def test_an_idle_process_that_has_grown_over_its_limit_is_replaced(tmp_path: Path) -> None:
    policy = RestartPolicy(first_pause=0.01, memory_limit=200 << 20, stall_timeout=4)
    house = House(tmp_path, EngineSettings(restarts=policy))
    try:
        clients = [await house.open(f"m{i}") for i in range(3)]
        first = clients[0].pid
        await rest(await clients[0].call("grow", 300))
        await eventually(lambda: all(c.pid not in (0, first) and c.state.name == "ready" for c in clients))
        assert len({(await who(client))["pid"] for client in clients}) == 1
        assert [client.short_of_memory for client in clients] == [""] * 3
    finally:
        await house.close()


async def test_an_unload_that_does_not_end_moves_the_others(tmp_path: Path) -> None:
    house = House(tmp_path, EngineSettings(restarts=RestartPolicy(first_pause=0.01), stop_grace=0.5))
    try:
        good, stuck = await house.open("good"), await house.open("stuck")
        first = good.pid
        await stuck.call("hang", 30.0)
        await eventually((tmp_path / "stuck.hangs").exists)  # a call that has not begun is cancelled
        await stuck.stop()
        await eventually(lambda: good.pid not in (0, first))
        assert await who(good)
        await eventually(lambda: not Path(f"/proc/{first}").exists())
    finally:
        await house.close()


async def test_calls_beyond_those_that_run_wait_and_can_be_cancelled(house: House) -> None:
    one, other = await house.open("one", max_calls=1), await house.open("other", max_calls=1)
    running = await one.call("count", (1000, 0.05))
    assert await running.next()
    waiting = [await one.call("count", (1, 0)) for _ in range(3)]
    waiting[1].cancel()
    assert await who(other), "each has its own places"
    running.cancel()
    assert await rest(waiting[0]) == [0]
    assert await rest(waiting[2]) == [0]
    assert one.stats().aborted == 2


def test_what_a_backend_tries_out_fails_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the process with a traceback in the place of a reason."""
    load = Load.of(SmallSpec("model"))
    for error, why in (
        (InvalidArgument("no tokenizer"), "no tokenizer"),
        (MemoryError(), "it needs more memory than there is"),
    ):
        monkeypatch.setattr("tests.engine.hosting.kinds.Small", Mock(side_effect=error))
        with pytest.raises(LoadError, match=why):
            open_backend(load)

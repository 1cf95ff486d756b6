"""Graphs that are unloaded while they are idle or others need their place, and loaded by the next request."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ovserve.access import RequestContext, calling
from ovserve.calculators.shipped import MODULES
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import RestartPolicy
from ovserve.errors import Overloaded, OvserveError, Unavailable
from ovserve.graph import Registry
from ovserve.kinds.payload import HttpPayload
from ovserve.serving.entries import Entry
from ovserve.serving.manager import Manager
from ovserve.serving.residency import groups_of
from ovserve.serving.settings import IdleSettings, ServableSpec, ServingSettings
from tests.conftest import eventually, script_graph

FAST: dict[str, Any] = {"replies": [{"match": "long", "text": "word ", "repeat": 0, "step_seconds": 0.01}]}
LONG = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "long"}], "max_tokens": 4000}
).encode()
SHORT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "short"}]}).encode()


@asynccontextmanager
async def serving(specs: Sequence[ServableSpec], **idle: Any) -> AsyncIterator[Manager]:
    restarts = RestartPolicy(first_pause=0.05, longest_pause=0.5, max_load_failures=2)
    engines = EngineSettings(restarts=restarts)
    manager = Manager(Registry(MODULES), ServingSettings(engines, idle=IdleSettings(**idle)))
    try:
        result = await manager.replace(specs)
        assert not result.failed, result.errors
        yield manager
    finally:
        await manager.stop()
        assert not engine_processes()


def engine_processes() -> list[str]:
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if b"worker.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def graphs(root: Path, names: str, **script: Any) -> list[ServableSpec]:
    return [
        ServableSpec.of_directory(name, script_graph(root / name, json.dumps(FAST | script)))
        for name in names.split()
    ]


@contextmanager
def request() -> Iterator[RequestContext]:
    """As a front has it: each request in a context of its own."""
    with calling(RequestContext()) as context:
        yield context


async def ask(manager: Manager, name: str, body: bytes = SHORT) -> str:
    with request():
        async with manager.get(name).start(HttpPayload("chat/completions", body)) as answer:
            first = await answer.first()
            text: str = json.loads(first.body)["choices"][0]["message"]["content"]
            return text


def loaded(manager: Manager) -> str:
    return " ".join(s.name for s in manager.statuses() if s.engines == "loaded")


def processes(manager: Manager) -> int:
    return sum(bool(e.pid) for s in manager.servables for e in s.engines.values())


async def test_an_idle_graph_is_unloaded_stays_available_and_answers_again(tmp_path: Path) -> None:
    async with serving(graphs(tmp_path, "a b"), seconds=0.3) as manager:
        await eventually(lambda: not processes(manager))
        assert [(s.state.name, s.engines) for s in manager.statuses()] == [("AVAILABLE", "unloaded")] * 2
        assert manager.ready
        servable = manager.get("a")
        assert servable.max_length == 4096
        assert servable.state.name == "AVAILABLE"
        await asyncio.sleep(0.1)
        assert not processes(manager), "a lookup wakes nothing"
        assert await ask(manager, "a") == "ok."
        assert loaded(manager) == "a"
        assert manager.get("a") is servable
        metrics = manager.metrics.of("a")
        assert (metrics.wakes.count, metrics.unloads["idle"]) == (1, 1)
        await eventually(lambda: not processes(manager))
        assert not manager.metrics.of("b").wakes.count


async def test_a_running_answer_keeps_its_graph_loaded(tmp_path: Path) -> None:
    async with serving(graphs(tmp_path, "a"), seconds=0.2) as manager:
        task = asyncio.create_task(ask(manager, "a", LONG))
        await asyncio.sleep(0.8)
        assert loaded(manager) == "a"
        task.cancel()
        await asyncio.wait([task])
        await eventually(lambda: not processes(manager))


async def test_requests_that_race_with_unloads_are_all_answered(tmp_path: Path) -> None:
    async with serving(graphs(tmp_path, "a b"), seconds=0.02) as manager:
        chance = random.Random(7)

        async def client(name: str) -> list[str]:
            answers = []
            for _ in range(5):
                answers.append(await ask(manager, name))
                await asyncio.sleep(chance.choice((0.0, 0.02, 0.021, 0.03, 0.07)))
            return answers

        answers = await asyncio.gather(*(client(name) for name in "abab"))
        assert answers == [["ok."] * 5] * 4
        assert manager.metrics.of("a").wakes.count


async def test_more_graphs_than_places_under_load_lose_and_starve_nothing(tmp_path: Path) -> None:
    """Two hot graphs and three cold ones, two places: everyone is answered, and no third is ever loaded."""
    names = "a b c d e"
    async with serving(graphs(tmp_path, names), max_groups=2, residence=0.2) as manager:
        most = 0
        answered: Counter[str] = Counter()
        slowest = 0.0

        async def client(name: str, until: float) -> None:
            nonlocal most, slowest
            while time.monotonic() < until:
                began = time.monotonic()
                assert await ask(manager, name) == "ok."
                slowest = max(slowest, time.monotonic() - began)
                most = max(most, processes(manager))
                answered[name] += 1

        until = time.monotonic() + 2
        await asyncio.gather(*(client(name, until) for name in [*"aaabbc", *names.split()]))
        assert set(answered) == set(names.split())
        assert most <= 2
        assert slowest < 100, "each waits for one turn of the others at most, some seconds"


async def test_steady_traffic_does_not_starve_another_graph(tmp_path: Path) -> None:
    """What runs is finished, what waits comes back, and the new one has its turn in between."""
    async with serving(graphs(tmp_path, "a b"), max_groups=1, residence=0.5) as manager:
        stop = False
        assert await ask(manager, "a") == "ok."

        async def steady() -> int:
            answers = 0
            while not stop:
                assert await ask(manager, "a") == "ok."
                answers += 1
            return answers

        clients = [asyncio.create_task(steady()) for _ in range(4)]
        for _ in range(3):
            async with asyncio.timeout(60):
                assert await ask(manager, "b") == "ok."
        stop = True
        assert all(await asyncio.gather(*clients))
        assert manager.metrics.of("b").wakes.count >= 1


async def test_a_long_answer_is_finished_before_its_graph_makes_room(tmp_path: Path) -> None:
    async with serving(graphs(tmp_path, "a b"), max_groups=1, residence=0.1) as manager:
        body = json.dumps(json.loads(LONG) | {"max_tokens": 100}).encode()
        long = asyncio.create_task(ask(manager, "a", body))
        (engine,) = manager.get("a").engines.values()
        await eventually(lambda: engine.busy, pause=0)
        other = asyncio.create_task(ask(manager, "b"))
        late = asyncio.create_task(ask(manager, "a"))
        assert len((await long).split()) == 50, "a word is two tokens"
        assert await other == "ok."
        assert await late == "ok."


async def test_groups_are_loaded_together_and_the_permanent_one_stays(tmp_path: Path) -> None:
    specs = graphs(tmp_path, "a b c d")
    specs = [replace(s, group=g) for s, g in zip(specs, ("rag", "rag", "", "permanent"), strict=True)]
    async with serving(specs, seconds=0.5, max_groups=1, residence=0.1) as manager:
        await eventually(lambda: loaded(manager) == "d")
        assert await ask(manager, "b") == "ok."
        await eventually(lambda: loaded(manager) == "a b d", pause=0)
        assert await ask(manager, "c") == "ok."
        assert loaded(manager) == "c d"


async def test_graphs_over_one_model_are_one_group(tmp_path: Path) -> None:
    (a,) = graphs(tmp_path, "a")
    specs = [a, replace(a, name="b"), *graphs(tmp_path, "c")]
    async with serving(specs, seconds=60, max_groups=1, residence=0.1) as manager:
        assert await ask(manager, "c") == "ok."
        assert loaded(manager) == "c"
        assert await ask(manager, "b") == "ok."
        assert loaded(manager) == "a b"


async def test_memory_bounds_what_is_loaded(tmp_path: Path) -> None:
    """An engine without a model takes 25 MB; until it was loaded, 128 MB are expected."""
    async with serving(graphs(tmp_path, "a b c"), max_bytes=400 << 20) as manager:
        assert processes(manager) == 3
    async with serving(graphs(tmp_path, "a b c"), max_bytes=40 << 20, residence=0.1) as manager:
        for name in "abc":
            assert await ask(manager, name) == "ok."
            assert loaded(manager) == name


async def test_a_client_that_does_not_wait_for_the_load_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with serving(graphs(tmp_path, "a"), seconds=1) as manager:
        await eventually(lambda: not processes(manager))
        graphs(tmp_path, "a", load="hang")
        with request() as context:
            context.patience = 0.2
            with pytest.raises(Overloaded, match="not loaded") as refused:
                async with manager.get("a").start(HttpPayload("chat/completions", SHORT)) as answer:
                    await answer.first()
        assert refused.value.retry_after >= 1
        assert manager.metrics.of("a").refused["unloaded"] == 1
        (tmp_path / "a/go").touch()
        await eventually(lambda: loaded(manager) == "a", pause=0)  # for a second


async def test_a_model_that_cannot_be_loaded_again_fails_its_requests_until_it_can(tmp_path: Path) -> None:
    async with serving(graphs(tmp_path, "a"), seconds=0.2) as manager:
        await eventually(lambda: not processes(manager))
        script = tmp_path / "a/model.script.json"
        text = script.read_text()
        script.unlink()
        with pytest.raises(Unavailable, match="failed"):
            await ask(manager, "a")
        assert manager.statuses("a")[0].failed
        script.write_text(text)
        await eventually(lambda: not manager.statuses("a")[0].failed, 20)
        assert await ask(manager, "a") == "ok."


async def test_a_client_that_leaves_does_not_keep_a_place_in_the_queue(tmp_path: Path) -> None:
    async with serving(graphs(tmp_path, "a b"), max_groups=1, residence=0.2, seconds=60) as manager:
        long = asyncio.create_task(ask(manager, "a", LONG))
        (engine,) = manager.get("a").engines.values()
        await eventually(lambda: engine.busy)
        gone = asyncio.create_task(ask(manager, "b"))
        await eventually(lambda: engine.dormancy.held)
        held = asyncio.create_task(ask(manager, "a"))
        await asyncio.sleep(0.2)
        assert not held.done(), "the group is to make room"
        gone.cancel()
        assert await held == "ok."
        assert manager.metrics.of("b").wakes.count == 0
        long.cancel()
        await asyncio.wait([long])


async def test_a_reload_of_an_unloaded_graph_is_served(tmp_path: Path) -> None:
    specs = graphs(tmp_path, "a b")
    async with serving(specs, seconds=0.2) as manager:
        await eventually(lambda: not processes(manager))
        graphs(tmp_path, "a", max_length=77)
        result = await manager.replace(specs)
        assert result.loaded == ("a",)
        assert manager.get("a").max_length == 77
        await manager.unload("b")
        with pytest.raises(OvserveError):
            await ask(manager, "b")
        assert await ask(manager, "a") == "ok."


async def test_the_engines_of_graphs_that_were_replaced_are_let_go(tmp_path: Path) -> None:
    specs = graphs(tmp_path, "a")
    async with serving(specs, seconds=0.05) as manager:
        clients = weakref.WeakSet(manager.get("a").engines.values())
        for length in range(3):
            await eventually(lambda: not processes(manager))
            graphs(tmp_path, "a", max_length=100 + length)
            assert (await manager.replace(specs)).loaded == ("a",)
            clients.update(manager.get("a").engines.values())

        def left() -> int:
            gc.collect()
            return len(clients)

        await eventually(lambda: not processes(manager) and left() == 1)


@pytest.mark.parametrize("times", [(5.0, 0.0), (0.0, 5.0), (5.0, 0.0, 7.0)])
def test_graphs_that_share_an_engine_stay_if_one_of_them_may_not_be_unloaded(
    times: tuple[float, ...],
) -> None:
    engine: Any = object()
    entries = []
    for name, seconds in zip("abc", times, strict=False):
        servable: Any = SimpleNamespace(engines={"llm": engine})
        spec = ServableSpec(name, Path(), Path(), idle_seconds=seconds)
        entries.append(Entry(name, spec, servable))
    (group,) = groups_of(entries, IdleSettings())
    assert (group.idle_seconds, group.names, group.engines) == (0.0, [*"abc"[: len(times)]], [engine])

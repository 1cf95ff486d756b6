"""The manager's verbs without a front: what is served after which of them, and what state is told."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from ovserve.access import RequestContext, calling
from ovserve.calculators.shipped import MODULES
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.spare import Spare
from ovserve.engine.client.spawn import Child
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.host.memory import Memory, memory
from ovserve.engine.protocol.launch import PREPARE
from ovserve.errors import LoadError, ModelNotFound, Unavailable
from ovserve.graph import Registry
from ovserve.kinds.payload import HttpPayload
from ovserve.serving import rollout
from ovserve.serving.config.file import ConfigFile, GraphsDirectory
from ovserve.serving.entries import Changes
from ovserve.serving.manager import Manager, Reloads
from ovserve.serving.model_size import PROCESS_BYTES, RESERVE_BYTES
from ovserve.serving.settings import AdapterOf, ServableSpec, ServingSettings
from tests.conftest import eventually, refuse, script_graph

AVAILABLE, LOADING, END = "AVAILABLE", "LOADING", "END"


@asynccontextmanager
async def managing(root: Path, **more: Any) -> AsyncIterator[Manager]:
    """Over a directory of graphs."""
    manager = Manager(Registry(MODULES), ServingSettings(**more), repository=GraphsDirectory(root))
    try:
        yield manager
    finally:
        await manager.stop()


def states(manager: Manager) -> dict[str, str]:
    return {s.name: s.state.name for s in manager.statuses()}


def graph(root: Path, name: str, **script: Any) -> Path:
    return script_graph(root / name, json.dumps(script))


async def test_before_the_first_reload_nothing_is_unknown(tmp_path: Path) -> None:
    async with managing(tmp_path) as manager:
        with pytest.raises(Unavailable, match="starting"):
            manager.get("m")
        assert not manager.ready
        await manager.reload()
        with pytest.raises(ModelNotFound):
            manager.get("m")
        assert manager.ready, "nothing is to be served, and nothing is"


async def test_the_first_engine_takes_the_process_that_waits(tmp_path: Path) -> None:
    """Also when it comes after the plain models, of which there are none."""
    graph(tmp_path, "a")
    child = Child(PREPARE)
    async with Spare(child) as spare:
        manager = Manager(
            Registry(MODULES), ServingSettings(), repository=GraphsDirectory(tmp_path), spare=spare
        )
        try:
            await manager.reload()
            assert [engine.pid for engine in manager._rollout.engines._users] == [child.process.pid]
        finally:
            await manager.stop()


async def test_an_engine_that_ends_while_its_graph_asks_it_is_a_failed_load(tmp_path: Path) -> None:
    graph(tmp_path, "a", tokenize_seconds=30)
    async with managing(tmp_path) as manager:
        loading = asyncio.create_task(manager.load("a", tmp_path / "a"))
        engines = manager._rollout.engines._users
        await eventually(lambda: any(len(engine._pending) for engine in engines))
        for engine in engines:
            os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(LoadError, match="graph.pbtxt: the engine process ended during the load"):
            await loading


async def test_unload_holds_until_a_load_or_a_reload_that_was_asked_for(tmp_path: Path) -> None:
    graph(tmp_path, "a")
    graph(tmp_path, "b")
    async with managing(tmp_path) as manager:
        await manager.reload()
        for come_back in (manager.load("a"), manager.reload()):
            await manager.unload("a")
            with pytest.raises(ModelNotFound):
                manager.get("a")
            await eventually(lambda: states(manager) == {"a": END, "b": AVAILABLE})
            assert manager.statuses("a")[0].reason == "unloaded on request"
            graph(tmp_path, "a", max_length=100)
            assert [await manager.poll() for _ in range(3)] == [None, None, None]
            await come_back
            assert states(manager) == {"a": AVAILABLE, "b": AVAILABLE}
        with pytest.raises(ModelNotFound):
            await manager.unload("c")


async def test_load_by_name_reads_the_configuration(tmp_path: Path) -> None:
    graph(tmp_path, "a")
    async with managing(tmp_path) as manager:
        await manager.reload()
        first = manager.get("a")
        assert await manager.load("a") is first, "what has not changed is left alone"
        graph(tmp_path, "b")
        assert (await manager.load("b")).name == "b"
        with pytest.raises(ModelNotFound, match="not in the configuration"):
            await manager.load("c")
        graph(tmp_path, "a", load="fail")
        with pytest.raises(LoadError, match="loading fails"):
            await manager.load("a")
        assert manager.get("a") is first
        (status,) = manager.statuses("a")
        assert (status.state.name, status.error_code, status.failed) == (
            AVAILABLE,
            "FAILED_PRECONDITION",
            False,
        )
        with pytest.raises(ModelNotFound):
            manager.statuses("none")


async def test_compiled_models_are_kept_where_the_graph_or_the_server_says(tmp_path: Path) -> None:
    text = (graph(tmp_path, "a") / "graph.pbtxt").read_text()
    own = graph(tmp_path, "b") / "graph.pbtxt"
    own.write_text(text.replace("models_path:", 'plugin_config: \'{"CACHE_DIR": "mine"}\' models_path:'))
    async with managing(tmp_path, cache_dir="/servers") as manager:
        await manager.reload()
        kept = {n: json.loads(manager.get(n).engines["llm"].spec.properties) for n in ("a", "b")}
    assert kept == {"a": {"CACHE_DIR": "/servers"}, "b": {"CACHE_DIR": "mine"}}


async def test_a_load_that_takes_long_tells_that_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "PROGRESS_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "ovserve.serving.rollout")
    slow = graph(tmp_path, "a", load="hang")
    async with managing(tmp_path) as manager:
        loading = asyncio.create_task(manager.reload())
        await eventually(lambda: len(caplog.records) > 1)
        (slow / "go").touch()
        await loading
    first, *going_on, last = [r.message for r in caplog.records]
    assert first == "loading a"
    assert going_on
    assert all(re.fullmatch(r"still loading a: \d s so far, 600 at most", line) for line in going_on)
    assert last.startswith("a is served, loaded in ")


async def test_replace_is_in_force_until_a_reload(tmp_path: Path) -> None:
    graph(tmp_path / "graphs", "a")
    other = ServableSpec.of_directory("other", graph(tmp_path, "elsewhere"))
    async with managing(tmp_path / "graphs") as manager:
        await manager.reload()
        result = await manager.replace([other])
        assert (result.loaded, result.removed, result.failed) == (("other",), ("a",), {})
        await eventually(lambda: states(manager) == {"a": END, "other": AVAILABLE})
        assert [await manager.poll() for _ in range(3)] == [None, None, None]
        result = await manager.reload()
        assert (result.loaded, result.removed) == (("a",), ("other",))
        assert (await manager.reload()).outcome == "unchanged"
        assert manager.reloads == {"changed": 3, "unchanged": 1}


async def test_a_poll_acts_on_what_has_settled(tmp_path: Path) -> None:
    graph(tmp_path, "a")
    async with managing(tmp_path) as manager:
        await manager.reload()
        for length in (100, 200, 300):
            graph(tmp_path, "a", max_length=length)
            assert await manager.poll() is None, "it may still be written"
        result = await manager.poll()
        assert result is not None
        assert result.loaded == ("a",)
        assert manager.get("a").max_length == 300


async def test_a_poll_does_not_try_again_what_failed_and_a_reload_does(tmp_path: Path) -> None:
    graph(tmp_path, "a", load="fail")
    async with managing(tmp_path) as manager:
        result = await manager.reload()
        assert (list(result.failed), result.outcome) == (["a"], "failed")
        assert [await manager.poll() for _ in range(3)] == [None, None, None]
        assert (await manager.reload()).outcome == "failed"
        with pytest.raises(Unavailable, match="could not be loaded") as caught:
            manager.get("a")
        assert "script" not in str(caught.value), "the reason is the operator's"
        assert not manager.ready
        graph(tmp_path, "a")
        assert await manager.poll() is None
        assert (await manager.poll() or pytest.fail("not taken up")).loaded == ("a",)


async def test_one_model_and_one_set_of_options_is_one_engine(tmp_path: Path) -> None:
    graph(tmp_path, "a")
    script_graph(tmp_path / "b", "{}")
    text = (tmp_path / "b/graph.pbtxt").read_text()
    (tmp_path / "b/graph.pbtxt").write_text(text.replace('"model.script.json"', '"../a/model.script.json"'))
    async with managing(tmp_path) as manager:
        await manager.reload()
        assert manager.engines == 1
        assert manager.get("a").engines == manager.get("b").engines
        await manager.unload("a")
        await eventually(lambda: states(manager)["a"] == END)
        assert (manager.engines, states(manager)["b"]) == (1, AVAILABLE)
        await manager.unload("b")
        await eventually(lambda: manager.engines == 0)


async def test_a_client_that_goes_away_does_not_stop_the_load_it_asked_for(tmp_path: Path) -> None:
    slow = graph(tmp_path, "a", load="hang")
    async with managing(tmp_path) as manager:
        asking = asyncio.create_task(manager.load("a"))
        await eventually(lambda: states(manager) == {"a": LOADING})
        asking.cancel()
        await asyncio.wait([asking])
        (slow / "go").touch()
        await eventually(lambda: states(manager) == {"a": AVAILABLE})


async def test_stopping_ends_a_load_and_tells_who_waits(tmp_path: Path) -> None:
    graph(tmp_path, "a", load="hang")
    async with managing(tmp_path) as manager:
        asking = asyncio.create_task(manager.reload())
        await eventually(lambda: states(manager) == {"a": LOADING})
        manager.stopping = True
        await manager.stop()
        with pytest.raises(Unavailable, match="stopping"):
            await asking


async def test_a_calculator_that_raises_anything_at_load_fails_its_graph_alone(tmp_path: Path) -> None:
    graph(tmp_path, "good")
    bad = graph(tmp_path, "bad")
    (bad / "calculators.py").write_text(
        "from ovserve.graph import Calculator, calculator\n"
        "@calculator('Broken')\n"
        "class Broken(Calculator):\n"
        "    async def process(self, cc): ...\n"
        "    @classmethod\n"
        "    def get_contract(cls, node): raise ZeroDivisionError('by design')\n"
    )
    (bad / "graph.pbtxt").write_text(
        (bad / "graph.pbtxt").read_text() + 'node { calculator: "Broken" input_stream: "IN:http" }\n'
    )
    async with managing(tmp_path) as manager:
        result = await manager.reload()
        assert result.loaded == ("good",)
        assert "by design" in result.failed["bad"]
        assert result.errors.startswith("bad: ")


async def test_other_files_of_a_draft_model_are_another_engine(tmp_path: Path) -> None:
    directory = graph(tmp_path, "a")
    (directory / "draft").mkdir()
    weights = directory / "draft/openvino_model.bin"
    weights.write_text("old")
    (directory / "draft/openvino_model.xml").write_text("")
    text = (directory / "graph.pbtxt").read_text()
    (directory / "graph.pbtxt").write_text(
        text.replace("models_path:", 'draft_models_path: "draft" models_path:')
    )
    async with managing(tmp_path) as manager:
        await manager.reload()
        before = manager.get("a").engines
        assert (await manager.reload()).outcome == "unchanged"
        weights.write_text("new")
        assert (await manager.reload()).loaded == ("a",)
        assert manager.get("a").engines != before


# ---- memory


class Container:
    """Files of a control group, as the kernel writes them."""

    def __init__(self, root: Path, version: int) -> None:
        self._root, self._group = root, root / ("groups/memory/a" if version == 1 else "groups/a")
        self._names = {
            1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
            2: ("memory.max", "memory.current"),
        }[version]
        self._group.mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text("4:memory:/a\n" if version == 1 else "0::/a\n")

    def leave(self, size: int) -> None:
        for name, value in zip(self._names, (8 << 30, (8 << 30) - size), strict=True):
            (self._group / name).write_text(f"{value}\n")

    def memory(self) -> Memory:
        return memory(self._root / "proc", self._root / "groups")


@pytest.mark.parametrize("version", [1, 2])
async def test_what_memory_does_not_hold_is_refused_with_the_numbers(tmp_path: Path, version: int) -> None:
    graph(tmp_path / "site", "a")
    container = Container(tmp_path, version)
    container.leave(PROCESS_BYTES + RESERVE_BYTES - 1)
    async with managing(tmp_path / "site", memory=container.memory) as manager:
        result = await manager.reload()
        assert "would take about 128 MB of memory" in result.failed["a"]
        assert "the container has 383 MB left, of which 256 MB stay free" in result.failed["a"]
        assert not manager.engines
        container.leave(PROCESS_BYTES + RESERVE_BYTES + (1 << 20))
        await manager.reload()
        assert states(manager) == {"a": AVAILABLE}


async def test_what_an_engine_may_not_take_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    graph(tmp_path, "a")
    limits = EngineSettings(restarts=RestartPolicy(memory_limit=100 << 20))
    async with managing(tmp_path, engines=limits) as manager:
        result = await manager.reload()
        assert "over the limit of 100 MB (--engine_memory_limit)" in result.failed["a"]
        assert not manager.engines


@pytest.mark.parametrize("renamed", [False, True])
async def test_two_versions_that_memory_does_not_hold_are_never_loaded_at_once(
    tmp_path: Path, renamed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site, name = tmp_path / "site", "b" if renamed else "a"
    graph(site, "a", step_seconds=0.02, replies=[{"text": "word ", "repeat": 60}])
    container = Container(tmp_path, 2)
    container.leave(1 << 30)
    async with managing(site, memory=container.memory) as manager:
        await manager.reload()
        body = b'{"model": "a", "messages": [{"role": "user", "content": "x"}], "stream": true}'
        with calling(RequestContext()):
            async with manager.get("a").start(HttpPayload("chat/completions", body)) as answer:
                await answer.first()
                if renamed:
                    (site / "a").rename(site / "b")
                graph(site, name, replies=[{"text": "new"}])
                container.leave(PROCESS_BYTES + RESERVE_BYTES - (1 << 20))
                reload = asyncio.create_task(manager.reload())
                pieces, engines = 0, set()
                while await answer.next() is not None:
                    pieces += 1
                    engines.add(manager.engines)
        await eventually(lambda: not manager.engines or reload.done(), pause=0)
        container.leave(1 << 30)
        result = await reload
    assert (pieces > 20, engines, result.failed) == (True, {1}, {})
    assert renamed or "a: memory does not hold both versions" in caplog.text


async def test_a_version_that_would_not_fit_alone_leaves_the_old_one_serving(tmp_path: Path) -> None:
    graph(tmp_path / "site", "a")
    container = Container(tmp_path, 2)
    container.leave(1 << 30)
    async with managing(tmp_path / "site", memory=container.memory) as manager:
        await manager.reload()
        graph(tmp_path / "site", "a", max_length=100)
        container.leave(1 << 20)
        result = await manager.reload()
        assert "would take about 128 MB" in result.failed["a"]
        assert states(manager) == {"a": AVAILABLE}


async def test_polls_survive_storage_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watcher has one task, which an error would end for good."""
    file = ConfigFile(tmp_path / "config.json")
    graph(tmp_path, "a")
    file.path.write_text('{"mediapipe_config_list": [{"name": "a"}]}')
    manager = Manager(Registry(MODULES), ServingSettings(), repository=file)
    try:
        await manager.reload()
        for number in (errno.ESTALE, errno.EACCES):
            with monkeypatch.context() as patch:
                refuse(patch, tmp_path / "a", number)
                for _ in range(3):
                    with suppress(LoadError):
                        await manager.poll()
                assert manager.get("a"), "it answers from memory"
        await manager.reload()
        assert states(manager) == {"a": AVAILABLE}
    finally:
        await manager.stop()


async def test_polls_survive_paths_that_are_none(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Of a graph file, of a list of models by gRPC, and of `load_lora_adapter`."""
    base = ServableSpec.of_directory("a", graph(tmp_path, "a"))
    script = graph(tmp_path, "b") / "graph.pbtxt"
    script.write_text(re.sub('models_path: "[^"]*"', r'models_path: "x\\000y"', script.read_text()))
    adapter = replace(base, name="c", adapter=AdapterOf("a", tmp_path / "x\0y"))
    async with managing(tmp_path) as manager:
        result = await manager.reload()
        assert (result.loaded, [*result.failed]) == (("a",), ["b"])
        for where in (adapter, tmp_path / "x\0y", tmp_path / ("x" * 300)):
            with subtests.test(repr(where)):
                with pytest.raises(LoadError, match="does not exist|File name too long"):
                    await manager.load("c", where)
                assert [await manager.poll() for _ in range(3)] == [None, None, None]


async def test_the_watcher_goes_on_after_a_poll_that_fails_unexpectedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graph(tmp_path, "a")
    async with managing(tmp_path) as manager:
        reloads, poll = Reloads(manager), manager.poll
        fail = AsyncMock(side_effect=RuntimeError("odd"))
        monkeypatch.setattr(manager, "poll", fail)
        reloads.start(0.01)
        try:
            await eventually(lambda: fail.await_count >= 2)
            monkeypatch.setattr(manager, "poll", poll)
            await eventually(lambda: states(manager) == {"a": AVAILABLE})
        finally:
            await reloads.stop()
    assert "a reload by watcher or SIGHUP failed unexpectedly" in caplog.text


async def test_a_change_stopped_before_its_first_step_never_begins() -> None:
    """A task cancelled then does not await a coroutine it was given as an argument, which is a warning."""
    changes, begun = Changes(lambda: True), AsyncMock()
    task = changes.start(begun)
    await changes.stop()
    assert task.cancelled()
    begun.assert_not_called()

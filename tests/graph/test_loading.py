"""`load` and `unload`: once per node of a loaded graph, around all of its requests."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ovserve.errors import LoadError
from ovserve.graph import Calculator, Context, Input, LoadContext, Output, Registry, SidePacket, calculator
from ovserve.graph.config import parse_graph
from ovserve.graph.graph import Graph
from ovserve.graph.testing import CalculatorRunner

CALLS: list[object] = []
ENDS = 'input_stream: "A:a" output_stream: "B:b"'


@pytest.fixture(autouse=True)
def calls() -> list[object]:
    CALLS.clear()
    return CALLS


class Base(Calculator):
    a = Input("A", object)
    b = Output("B", object)

    def process(self, cc: Context) -> None:
        cc.count("packets")
        cc.send(self.b, cc.state)

    @classmethod
    def unload(cls, state: Any) -> None:
        CALLS.append(("unload", state))


@calculator("Plain")
class Plain(Base):
    @classmethod
    def load(cls, lc: LoadContext) -> Any:
        CALLS.append(("load", lc.name, threading.current_thread() is threading.main_thread()))
        return lc.name


@calculator("Waiting")
class Waiting(Base):
    side = SidePacket("S", int)

    @classmethod
    async def load(cls, lc: LoadContext) -> Any:
        await asyncio.sleep(0)
        return lc[cls.side]

    @classmethod
    async def unload(cls, state: Any) -> None:
        await asyncio.sleep(0)
        CALLS.append(("unload", state))


@calculator("Failing")
class Failing(Base):
    error: BaseException = OSError("no such index")

    @classmethod
    def load(cls, lc: LoadContext) -> Any:
        raise cls.error


def graph(*nodes: str) -> Graph:
    names = ["a", *(f"s{i}" for i in range(len(nodes) - 1)), "b"]
    text = 'input_stream: "a" output_stream: "b" input_side_packet: "side" ' + " ".join(
        f'node {{ calculator: "{n}" input_stream: "A:{names[i]}" output_stream: "B:{names[i + 1]}" '
        + ('input_side_packet: "S:side" ' if n == "Waiting" else "")
        + "}"
        for i, n in enumerate(nodes)
    )
    registry = Registry()
    for cls in (Plain, Waiting, Failing):
        registry.add(cls)
    return Graph.parse(text, registry, {"side": int})


async def test_load_is_called_once_for_all_runs_and_off_the_loop(calls: list[object]) -> None:
    loaded = graph("Plain", "Waiting")
    await loaded.load_nodes({"side": 7})
    for _ in range(3):
        async with loaded.start({"side": 7}) as run:
            await run.send("a", 1)
            packet = await run.read("b")
            assert packet is not None
            assert packet.value == 7
    assert [(p.node.name, s.value) for p, s in loaded.loaded] == [("Plain", "Plain"), ("Waiting", 7)]
    await loaded.unload_nodes()
    await loaded.unload_nodes()
    assert calls == [("load", "Plain", False), ("unload", 7), ("unload", "Plain")]
    assert loaded.loaded == []


@pytest.mark.parametrize("error", [OSError("no such index"), SystemExit(3), asyncio.CancelledError()])
async def test_a_failure_is_a_load_error_and_unloads_what_was_loaded(
    calls: list[object], error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "error", error)
    with pytest.raises(
        LoadError, match=r"graph.pbtxt:1: node 'Failing': calculator: Failing: load\(\) raised"
    ) as said:
        await graph("Plain", "Failing", "Waiting").load_nodes({"side": 7})
    assert "test_loading.py:" in str(said.value), "the line of the author's code"
    assert calls == [("load", "Plain", False), ("unload", "Plain")]


async def test_a_failing_unload_is_logged_and_the_others_go_on(
    calls: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Waiting, "unload", classmethod(lambda cls, state: sys.exit(1)))
    loaded = graph("Plain", "Waiting")
    await loaded.load_nodes({"side": 7})
    await loaded.unload_nodes()
    assert "node 'Waiting' failed in unload()" in caplog.text
    assert calls[-1] == ("unload", "Plain")


async def test_the_runner_loads_and_counts() -> None:
    runner = CalculatorRunner(Plain, ENDS)
    out = await runner.run({"a": [1, 2]})
    assert [p.value for p in out["b"]] == ["Plain", "Plain"]
    assert runner.events.values == {("Plain", "packets"): 2}
    for i in range(99):
        runner.events.add("Plain", str(i))
    with pytest.raises(ValueError, match="more than 100 kinds"):
        runner.events.add("Plain", "a client's text")
    runner.events.add("Plain", "packets")


def test_load_without_classmethod_is_said_where_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.load must be a class method"):

        class Wrong(Base):
            def load(self, lc: LoadContext) -> Any:  # type: ignore[override]
                return 1


async def test_a_load_error_names_the_authors_line_and_not_that_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "calculators.py").write_text(
        "from ovserve.graph import Calculator, calculator\n\n"
        '@calculator("Reading")\nclass Reading(Calculator):\n    @classmethod\n    def load(cls, lc):\n'
        '        return lc.path("gone.txt").read_text()\n'
    )
    config = parse_graph('node { calculator: "Reading" }', base=tmp_path)
    with pytest.raises(LoadError, match=r"No such file .* \(.*/calculators.py:7\)"):
        await Graph(config, Registry().for_directory(tmp_path)).load_nodes({})

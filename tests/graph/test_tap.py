"""A tap in a graph: it sees every packet and call, also of a run that began before it, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from ovserve.errors import NodeError
from ovserve.graph import Calculator, Context, Input, Output, Registry, calculator
from ovserve.graph.graph import Graph
from ovserve.graph.streams import Stream


@calculator("Double")
class Double(Calculator):
    source = Input("", int)
    result = Output("", int)

    def process(self, cc: Context) -> None:
        value = cc[self.source]
        if value == 13:
            raise ValueError("thirteen")
        cc.send(self.result, value * 2)


@calculator("SlowDouble")
class SlowDouble(Double):
    async def process(self, cc: Context) -> None:
        super().process(cc)


TEXT = """
input_stream: "a"
output_stream: "c"
node { calculator: "Double" input_stream: "a" output_stream: "b" }
node { calculator: "SlowDouble" input_stream: "b" output_stream: "c" }
"""


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def started(self, run: object) -> None:
        self.events.append(("started",))

    def ended(self, run: object) -> None:
        self.events.append(("ended",))

    def packet(self, stream: Stream, timestamp: int, value: Any) -> None:
        self.events.append((stream.name, timestamp, value))

    def called(self, node: str, seconds: float) -> None:
        assert seconds > 0
        self.events.append(("called", node))

    def failed(self, run: object, node: str) -> None:
        self.events.append(("failed", node))


@pytest.fixture
def graph() -> Graph:
    registry = Registry()
    registry.add(Double)
    registry.add(SlowDouble)
    return Graph.parse(TEXT, registry)


async def test_it_sees_packets_and_calls_of_both_kinds_of_nodes(graph: Graph) -> None:
    tap = graph.watched.tap = Recorder()
    async with graph.start() as run:
        await run.send("a", 1)
        packet = await run.read("c")
        assert packet is not None
        assert packet.value == 4
    assert tap.events[0] == ("started",)
    assert tap.events[-1] == ("ended",)
    assert {("a", 0, 1), ("b", 0, 2), ("c", 0, 4), ("called", "Double"), ("called", "SlowDouble")} <= set(
        tap.events
    )


async def test_it_sees_a_run_that_began_before(graph: Graph) -> None:
    async with graph.start() as run:
        await run.send("a", 1)
        await run.read("c")
        tap = graph.watched.tap = Recorder()
        await run.send("a", 2)
        await run.read("c")
        graph.watched.tap = None
        await run.send("a", 3)
        await run.read("c")
    assert [e for e in tap.events if e[0] == "a"] == [("a", 1, 2)]


async def test_it_is_told_which_node_failed(graph: Graph) -> None:
    tap = graph.watched.tap = Recorder()
    async with graph.start() as run:
        await run.send("a", 13)
        with pytest.raises(NodeError):
            await run.read("c")
    assert ("failed", "Double") in tap.events
    assert list(graph.watched.errors) == ["Double"]
    assert "thirteen" in graph.watched.errors["Double"][1]

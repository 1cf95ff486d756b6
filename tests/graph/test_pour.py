"""`GraphRun.pour`: packets of an output go to a function, in order, until it has enough or the output ends."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from ovserve.errors import NodeError
from ovserve.graph.graph import Graph
from ovserve.graph.scheduler import GraphRun
from tests.conftest import eventually
from tests.graph.calculators import REGISTRIES

CHAIN = """
input_stream: "a" output_stream: "c" max_queue_size: 2
node { calculator: "Double" input_stream: "IN:a" output_stream: "OUT:b" }
node { calculator: "Double" input_stream: "IN:b" output_stream: "OUT:c" }
"""
REGISTRY = REGISTRIES["tasks"]


@pytest.fixture(autouse=True, params=REGISTRIES)
def kind_of_nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "REGISTRY", REGISTRIES[request.param])


class Cup:
    """Takes `size` values at a time."""

    def __init__(self, size: int) -> None:
        self.size, self.values = size, list[Any]()

    def put(self, value: Any) -> bool:
        self.values.append(value)
        return len(self.values) % self.size != 0


async def feed(run: GraphRun, count: int) -> None:
    for value in range(count):
        await run.send("a", value)
        await asyncio.sleep(0)
    run.close_inputs()


@pytest.mark.parametrize("size", [1, 3, 4, 100])
async def test_every_value_arrives_once_and_in_order(size: int) -> None:
    cup, calls = Cup(size), 1
    graph = Graph.parse(CHAIN, REGISTRY)
    async with asyncio.timeout(60), graph.start() as run:
        feeding = asyncio.create_task(feed(run, 12))
        while await run.pour("c", cup.put):
            calls += 1
            await asyncio.sleep(0)
        await feeding
    assert cup.values == [4 * n for n in range(12)]
    assert calls == 12 // size + 1


async def test_a_full_cup_holds_the_graph() -> None:
    cup = Cup(1)
    graph = Graph.parse(CHAIN, REGISTRY)
    async with asyncio.timeout(60), graph.start() as run:
        feeding = asyncio.create_task(feed(run, 50))
        assert await run.pour("c", cup.put)
        for _ in range(100):
            await asyncio.sleep(0)
        assert cup.values == [0]
        assert sum(len(queue.packets) for queue in run.outputs.values()) <= 2
        assert not feeding.done()
        while await run.pour("c", cup.put):
            pass
        await feeding
    assert cup.values == [4 * n for n in range(50)]


async def test_what_came_before_a_failure_is_poured_first() -> None:
    cup, late = Cup(100), ValueError("late")
    graph = Graph.parse(CHAIN, REGISTRY)
    async with asyncio.timeout(60), graph.start() as run:
        await run.send("a", 1)
        await eventually(lambda: any(queue.packets for queue in run.outputs.values()))
        run.fail(NodeError("x", "process", late), late)
        with pytest.raises(NodeError, match="late"):
            await run.pour("c", cup.put)
    assert cup.values == [4]


async def test_a_failure_wakes_the_reader() -> None:
    cup, late = Cup(100), ValueError("late")
    graph = Graph.parse(CHAIN, REGISTRY)
    async with asyncio.timeout(60), graph.start() as run:
        reading = asyncio.create_task(run.pour("c", cup.put))
        await asyncio.sleep(0)
        run.fail(NodeError("x", "process", late), late)
        with pytest.raises(NodeError, match="late"):
            await reading


async def test_a_reader_that_is_cancelled_leaves_later_packets_in_the_queue() -> None:
    cup = Cup(100)
    graph = Graph.parse(CHAIN, REGISTRY)
    async with asyncio.timeout(60), graph.start() as run:
        reading = asyncio.create_task(run.pour("c", cup.put))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        await run.send("a", 3)
        packet = await run.read("c")
    assert packet is not None
    assert (packet.value, cup.values) == (12, [])

"""What authors' calculators may raise: everything fails the run it was raised in, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest

from ovserve.errors import LoadError, NodeError
from ovserve.graph import Calculator, Context, Contract, Input, Node, Output, Registry, calculator
from ovserve.graph.graph import Graph


async def a_cancelled_future() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


def exits() -> None:
    sys.exit("enough")


def interrupts() -> None:
    raise KeyboardInterrupt


def cancels() -> None:
    raise asyncio.CancelledError


def stops() -> None:
    raise StopIteration


FAULTS = {"exit": exits, "interrupt": interrupts, "cancel": cancels, "stop": stops}


def graph(kind: str, phase: str, fault: Callable[[], None]) -> Graph:
    def hit(at: str) -> None:
        if at == phase:
            fault()

    class Plain(Calculator):
        a = Input("IN", int)
        b = Output("OUT", int)

        def open(self, cc: Context) -> None:
            hit("open")

        def process(self, cc: Context) -> None:
            hit("process")
            cc.send(self.b, 1)

        def close(self, cc: Context) -> None:
            hit("close")

    class Waiting(Calculator):
        a = Input("IN", int)
        b = Output("OUT", int)

        async def open(self, cc: Context) -> None:
            await asyncio.sleep(0)
            hit("open")

        async def process(self, cc: Context) -> None:
            await asyncio.sleep(0)
            hit("process")
            cc.send(self.b, 1)

        async def close(self, cc: Context) -> None:
            await asyncio.sleep(0)
            hit("close")

    class Threaded(Plain):
        runs_on = "thread"

    registry = Registry()
    registry.add(calculator("C")({"inline": Plain, "task": Waiting, "thread": Threaded}[kind]))
    node = 'node { calculator: "C" input_stream: "IN:a" output_stream: "OUT:b" }'
    return Graph.parse(f'input_stream: "a" output_stream: "b" {node}', registry)


async def read_all(made: Graph) -> list[int]:
    async with asyncio.timeout(60), made.start() as run:
        await run.send("a", 1)
        run.close_inputs()
        out = [packet.value async for packet in run.output("b")]
        await run.wait()
    return out


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", ["open", "process", "close"])
@pytest.mark.parametrize("kind", ["inline", "task", "thread"])
async def test_whatever_is_raised_is_the_failure_of_its_run(kind: str, phase: str, fault: str) -> None:
    made = graph(kind, phase, FAULTS[fault])
    with pytest.raises(NodeError, match=rf"node 'C' failed in {phase}\(\)"):
        await read_all(made)
    made.close()


@pytest.mark.parametrize("kind", ["inline", "task", "thread"])
async def test_an_exit_is_described(kind: str) -> None:
    made = graph(kind, "process", exits)
    with pytest.raises(NodeError, match=r"SystemExit: enough"):
        await read_all(made)
    made.close()


async def test_awaiting_a_cancelled_future_is_a_failure_and_cancelling_the_run_is_none() -> None:
    closed, begun = [], asyncio.Event()

    @calculator("C")
    class C(Calculator):
        a = Input("IN", int)
        b = Output("OUT", int)

        async def process(self, cc: Context) -> None:
            if cc[self.a] == 1:
                await a_cancelled_future()
            begun.set()
            await asyncio.sleep(60)

        def close(self, cc: Context) -> None:
            closed.append(cc.timestamp)

    registry = Registry()
    registry.add(C)
    node = 'node { calculator: "C" input_stream: "IN:a" output_stream: "OUT:b" }'
    made = Graph.parse(f'input_stream: "a" output_stream: "b" {node}', registry)
    with pytest.raises(NodeError, match="CancelledError"):
        await read_all(made)
    assert len(closed) == 1

    async def follow() -> None:
        async with made.start() as run:
            await run.send("a", 2)
            await run.read("b")

    task = asyncio.create_task(follow())
    async with asyncio.timeout(60):
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(closed) == 2, "a cancelled node closes its calculator"


@pytest.mark.parametrize("fault", ["exit", "interrupt"])
def test_a_contract_that_ends_the_process_is_a_fault_of_its_node(fault: str) -> None:
    @calculator("C")
    class C(Calculator):
        @classmethod
        def get_contract(cls, node: Node) -> Contract:
            FAULTS[fault]()
            return Contract()

    registry = Registry()
    registry.add(C)
    with pytest.raises(LoadError, match=r"C: get_contract\(\) raised \w+.*test_authors_faults\.py:\d+"):
        Graph.parse('node { name: "n" calculator: "C" }', registry)

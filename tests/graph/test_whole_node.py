"""A graph of one node that answers as a whole is run by the task that reads the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ovserve.errors import NodeError, Unavailable
from ovserve.graph import Calculator, Context, Input, Output, Registry, calculator
from ovserve.graph.graph import Graph
from ovserve.graph.scheduler import GraphRun
from tests.graph.test_tap import Recorder

TEXT = """
input_stream: "IN:a"
output_stream: "OUT:b"
node { calculator: "Whole" input_stream: "IN:a" output_stream: "OUT:b" }
"""
DONE, FAIL, HANG, STUBBORN = range(4)


@calculator("Whole")
class Whole(Calculator):
    """Answers with the task that calls it, or does what the packet says."""

    answers_whole = True
    closed = 0
    waiting = asyncio.Event()

    into, out = Input("IN", int), Output("OUT", asyncio.Task)

    async def process(self, cc: Context) -> None:
        await asyncio.sleep(0)
        if cc[self.into] == FAIL:
            raise ValueError("wrong")
        if cc[self.into] in (HANG, STUBBORN):
            self.waiting.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if cc[self.into] == HANG:
                    raise
        task = asyncio.current_task()
        assert task is not None
        cc.send(self.out, task)

    def close(self, cc: Context) -> None:
        type(self).closed += 1


@pytest.fixture
def graph() -> Iterator[Graph]:
    Whole.closed, Whole.waiting = 0, asyncio.Event()
    registry = Registry()
    registry.add(Whole)
    made = Graph.parse(TEXT, registry)
    yield made
    made.close()


async def answer(graph: Graph, what: int, runs: list[GraphRun] | None = None) -> object:
    async with graph.start(read=["b"], whole=True) as run:
        if runs is not None:
            runs.append(run)
        await run.send("a", what)
        run.close_inputs()
        packet = await run.read("b")
        assert packet is not None
        assert await run.read("b") is None
        return packet.value


async def test_it_runs_in_the_task_of_its_reader(graph: Graph) -> None:
    tap = graph.watched.tap = Recorder()
    task = asyncio.current_task()
    assert await answer(graph, DONE) is task
    assert Whole.closed == 1
    assert [event[0] for event in tap.events] == ["started", "a", "called", "b", "ended"]


async def test_it_has_a_task_of_its_own_unless_the_host_reads_a_whole_answer(graph: Graph) -> None:
    async with graph.start() as run:
        await run.send("a", DONE)
        packet = await run.read("b")
    assert packet is not None
    assert packet.value is not asyncio.current_task()


async def test_its_error_is_that_of_the_node(graph: Graph) -> None:
    with pytest.raises(NodeError, match="wrong") as caught:
        await answer(graph, FAIL)
    assert caught.value.node == "Whole"
    assert Whole.closed == 1


@pytest.mark.parametrize("what", [HANG, STUBBORN])
async def test_a_run_that_is_ended_from_outside_ends_with_the_error_and_the_reader_goes_on(
    graph: Graph, what: int
) -> None:
    runs: list[GraphRun] = []

    async def read() -> tuple[BaseException | None, int]:
        caught: BaseException | None = None
        try:
            await answer(graph, what, runs)
        except NodeError as error:
            caught = error.public_error
        await asyncio.sleep(0)  # a cancellation that was left behind would arrive here
        task = asyncio.current_task()
        assert task is not None
        return caught, task.cancelling()

    reader = asyncio.create_task(read())
    await Whole.waiting.wait()
    error = Unavailable("enough")
    runs[0].cancel(error)
    caught, cancelling = await reader
    assert caught is error
    assert cancelling == 0
    assert Whole.closed == 1


@pytest.mark.parametrize("also_ended", [False, True])
async def test_a_reader_that_is_cancelled_stays_cancelled(graph: Graph, also_ended: bool) -> None:
    runs: list[GraphRun] = []
    reader = asyncio.create_task(answer(graph, HANG, runs))
    await Whole.waiting.wait()
    reader.cancel()
    if also_ended:
        runs[0].cancel(Unavailable("enough"))
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert Whole.closed == 1

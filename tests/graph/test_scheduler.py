"""The six rules of ovserve.graph.scheduler, one by one, with nodes that are tasks and nodes that are not."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from ovserve.errors import NodeError
from ovserve.graph import Calculator, Context, Input, Output, Packet, Registry, calculator
from ovserve.graph.graph import Graph
from tests.graph.calculators import REGISTRIES

REGISTRY = REGISTRIES["tasks"]


@pytest.fixture(autouse=True, params=REGISTRIES)
def kind_of_nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys.modules[__name__], "REGISTRY", REGISTRIES[request.param])
    return str(request.param)


async def run_graph(
    text: str,
    inputs: dict[str, list[Any]],
    side: dict[str, Any] | None = None,
    registry: Registry | None = None,
) -> dict[str, list[Packet]]:
    side = side or {}
    graph = Graph.parse(text, registry or REGISTRY, dict.fromkeys(side, object))
    out: dict[str, list[Packet]] = {e.name: [] for e in graph.plan.outputs}

    async def collect(run: Any, name: str) -> None:
        async for packet in run.output(name):
            out[name].append(packet)

    async def feed(run: Any, name: str, values: list[Any]) -> None:
        for value in values:
            if isinstance(value, Packet):
                await run.send(name, value.value, value.timestamp)
            else:
                await run.send(name, value)
        run.close_input(name)

    try:
        async with asyncio.timeout(60), graph.start(side) as run:
            await asyncio.gather(
                *(feed(run, n, v) for n, v in inputs.items()), *(collect(run, n) for n in out)
            )
            await run.wait()
    finally:
        graph.close()
    return out


def values(packets: list[Packet]) -> list[Any]:
    return [p.value for p in packets]


CHAIN = """
input_stream: "a" output_stream: "c"
node { calculator: "Double" input_stream: "IN:a" output_stream: "OUT:b" }
node { calculator: "Double" input_stream: "IN:b" output_stream: "OUT:c" }
"""


async def test_a_chain_keeps_order_and_timestamps() -> None:
    out = await run_graph(CHAIN, {"a": [Packet(5, 1), Packet(9, 2)]})
    assert out["c"] == [Packet(5, 4), Packet(9, 8)]


async def test_rule_1_a_join_waits_until_the_other_stream_is_settled() -> None:
    text = """
    input_stream: "a" input_stream: "b" output_stream: "c"
    node { calculator: "Join" input_stream: "a" input_stream: "b" output_stream: "OUT:c" }
    """
    out = await run_graph(
        text, {"a": [Packet(0, "a0"), Packet(2, "a2")], "b": [Packet(1, "b1"), Packet(2, "b2")]}
    )
    assert out["c"] == [Packet(0, ("a0", None)), Packet(1, (None, "b1")), Packet(2, ("a2", "b2"))]


async def test_rule_1_silence_is_an_answer() -> None:
    """Even drops 1; the join must not wait for it, though two more nodes lie between."""
    text = """
    input_stream: "a" output_stream: "d"
    node { calculator: "Even" input_stream: "IN:a" output_stream: "OUT:b" }
    node { calculator: "Double" input_stream: "IN:b" output_stream: "OUT:c" }
    node { calculator: "Join" input_stream: "a" input_stream: "c" output_stream: "OUT:d" }
    """
    graph = Graph.parse(text, REGISTRY)
    async with graph.start() as run:
        await run.send("a", 1)
        async with asyncio.timeout(60):
            assert await run.read("d") == Packet(0, (1, None))
        await run.send("a", 2)
        async with asyncio.timeout(60):
            assert await run.read("d") == Packet(1, (2, 4))
        run.close_inputs()
        assert await run.read("d") is None


IMMEDIATE = """
input_stream: "a" input_stream: "b" output_stream: "c" max_queue_size: 1
node { calculator: "Join" input_stream: "a" input_stream: "b" output_stream: "OUT:c"
       input_stream_handler { input_stream_handler: "ImmediateInputStreamHandler" } }
"""


async def test_rule_1_the_earliest_sync_set_goes_first(kind_of_nodes: str) -> None:
    graph = Graph.parse(IMMEDIATE, REGISTRY)
    async with graph.start() as run:
        if kind_of_nodes == "inline":  # which takes each packet as it comes, unless it is held
            await run.send("a", "first", 1)
        await run.send("b", "late", 7)
        await run.send("a", "early", 3)
        async with asyncio.timeout(60):
            if kind_of_nodes == "inline":
                assert await run.read("c") == Packet(1, ("first", None))
            assert await run.read("c") == Packet(3, ("early", None))
            assert await run.read("c") == Packet(7, (None, "late"))


async def test_rule_2_a_call_that_raises_emits_nothing() -> None:
    text = """
    input_stream: "a" output_stream: "b"
    node { name: "n" calculator: "Fails" input_stream: "IN:a" output_stream: "OUT:b"
           input_side_packet: "PHASE:phase" input_side_packet: "SEEN:seen" }
    """
    graph = Graph.parse(text, REGISTRY, {"phase": str, "seen": list})
    async with graph.start({"phase": "n.process", "seen": []}) as run:
        await run.send("a", 1)
        with pytest.raises(NodeError, match=r"node 'n' failed in process\(\): \w+: no luck"):
            await run.read("b")


async def test_rule_3_a_back_edge_delivers_one_later() -> None:
    text = """
    input_stream: "a" output_stream: "b"
    node { calculator: "Countdown" input_stream: "IN:a" input_stream: "LOOPBACK:l"
           output_stream: "OUT:b" output_stream: "LOOPBACK:l"
           input_stream_info { tag_index: "LOOPBACK" back_edge: true }
           input_stream_handler { input_stream_handler: "SyncSetInputStreamHandler" options {
             [mediapipe.SyncSetInputStreamHandlerOptions.ext] { sync_set { tag_index: "LOOPBACK:0" } } } } }
    """
    out = await run_graph(text, {"a": [3]})
    assert out["b"] == [Packet(0, 3), Packet(1, 2), Packet(2, 1)]


async def test_rule_4_a_slow_reader_holds_the_graph_inputs() -> None:
    graph = Graph.parse(CHAIN + "max_queue_size: 2", REGISTRY)
    async with graph.start() as run:
        sent = 0

        async def feed() -> None:
            nonlocal sent
            for i in range(50):
                await run.send("a", i)
                sent += 1
            run.close_inputs()

        task = asyncio.create_task(feed())
        for _ in range(200):
            await asyncio.sleep(0)
        assert sent <= 8, "three queues of two, and what is in hand"
        async with asyncio.timeout(60):
            assert values([p async for p in run.output("c")]) == [i * 4 for i in range(50)]
        await task


async def test_rule_4_a_held_node_that_was_just_woken_is_no_deadlock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A slow reader behind two nodes, both held, while more packets come than all queues take."""
    graph = Graph.parse(CHAIN + "max_queue_size: 2", REGISTRY)
    async with asyncio.timeout(60), graph.start() as run:

        async def feed() -> None:
            for i in range(200):
                await run.send("a", i)
            run.close_inputs()

        task = asyncio.create_task(feed())
        read = 0
        async for _ in run.output("c"):
            read += 1
            if read % 3:
                await asyncio.sleep(0)
        await task
    assert read == 200
    assert not caplog.records


JOIN_FAR_APART = """
input_stream: "a" input_stream: "b" output_stream: "c"
node { calculator: "Join" input_stream: "a" input_stream: "b" output_stream: "OUT:c" }
max_queue_size: 4
"""


async def test_rule_4_a_queue_that_would_deadlock_grows() -> None:
    graph = Graph.parse(JOIN_FAR_APART, REGISTRY)
    async with asyncio.timeout(60), graph.start() as run:
        for i in range(40):
            await run.send("a", i)  # the join cannot take one before b is settled
        run.close_input("b")
        assert await run.read("c") == Packet(0, (0, None))


async def test_rule_4_report_deadlock_fails_the_run() -> None:
    graph = Graph.parse(JOIN_FAR_APART + "report_deadlock: true", REGISTRY)
    async with asyncio.timeout(60), graph.start() as run:
        for i in range(4):
            await run.send("a", i)
        with pytest.raises(NodeError, match="deadlock"):
            await run.send("a", 4)


async def test_rule_5_close_sends_the_last_packet() -> None:
    text = """
    input_stream: "a" output_stream: "b"
    node { calculator: "Sum" input_stream: "IN:a" output_stream: "OUT:b" }
    """
    out = await run_graph(text, {"a": [1, 2, 3]})
    assert out["b"] == [Packet(3, 6)]


async def test_rule_5_a_source_ends_when_it_says_so() -> None:
    text = """
    output_stream: "a"
    node { calculator: "Source" input_side_packet: "LIMIT:n" output_stream: "OUT:a" }
    """
    assert values((await run_graph(text, {}, {"n": 3}))["a"]) == [0, 1, 2]


async def test_side_packets_made_by_a_node_arrive_before_open() -> None:
    text = """
    output_stream: "a"
    node { calculator: "Source" input_side_packet: "LIMIT:n" output_stream: "OUT:a" }
    node { calculator: "MakeLimit" input_side_packet: "BASE:m" output_side_packet: "LIMIT:n" }
    """
    assert values((await run_graph(text, {}, {"m": 3}))["a"]) == [0, 1, 2, 3]


FAILS = """
input_stream: "a" output_stream: "c"
node { name: "first" calculator: "Fails" input_stream: "IN:a" output_stream: "OUT:b"
       input_side_packet: "PHASE:phase" input_side_packet: "SEEN:seen" }
node { name: "second" calculator: "Fails" input_stream: "IN:b" output_stream: "OUT:c"
       input_side_packet: "PHASE:phase" input_side_packet: "SEEN:seen" }
"""


@pytest.mark.parametrize("node", ["first", "second"])
@pytest.mark.parametrize("phase", ["open", "process", "close"])
async def test_rule_6_the_first_exception_ends_the_run_and_closes_what_was_opened(
    node: str, phase: str
) -> None:
    seen: list[str] = []
    with pytest.raises(NodeError) as caught:
        await run_graph(FAILS, {"a": [1]}, {"phase": f"{node}.{phase}", "seen": seen})
    assert (caught.value.node, caught.value.phase) == (node, phase)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "no luck" in str(caught.value)
    for name in ("first", "second"):
        opened = f"{name}.open" in seen and f"{node}.{phase}" != f"{name}.open"
        assert seen.count(f"{name}.close") == (1 if opened else 0)


async def test_rule_6_ends_that_run_only() -> None:
    graph = Graph.parse(FAILS, REGISTRY, {"phase": str, "seen": list})
    good, bad = {"phase": "", "seen": []}, {"phase": "first.process", "seen": []}
    async with graph.start(good) as one, graph.start(bad) as two:
        await two.send("a", 1)
        with pytest.raises(NodeError):
            await two.read("c")
        await one.send("a", 1)
        assert await one.read("c") == Packet(0, 1)


async def test_leaving_early_closes_every_node() -> None:
    seen: list[str] = []
    graph = Graph.parse(FAILS, REGISTRY, {"phase": str, "seen": list})
    async with graph.start({"phase": "", "seen": seen}) as run:
        await run.send("a", 1)
        await run.read("c")
    assert sorted(s for s in seen if s.endswith("close")) == ["first.close", "second.close"]


async def test_cancelling_the_user_of_a_run_cancels_the_run_and_is_not_swallowed() -> None:
    seen: list[str] = []
    graph = Graph.parse(FAILS, REGISTRY, {"phase": str, "seen": list})

    async def use() -> None:
        async with graph.start({"phase": "", "seen": seen}) as run:
            await run.read("c")

    task = asyncio.create_task(use())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(s for s in seen if s.endswith("close")) == ["first.close", "second.close"]


async def test_named_executor_runs_process_on_its_pool() -> None:
    text = """
    input_stream: "a" output_stream: "b" output_stream: "c" output_stream: "d"
    executor { name: "mine" type: "ThreadPoolExecutor" options {
      [mediapipe.ThreadPoolExecutorOptions.ext] { num_threads: 1 thread_name_prefix: "pool-mine" } } }
    num_threads: 2
    node { calculator: "Blocking" input_stream: "IN:a" output_stream: "OUT:b" executor: "mine" }
    node { calculator: "Blocking" input_stream: "IN:a" output_stream: "OUT:c" }
    node { calculator: "AlwaysThread" input_stream: "IN:a" output_stream: "OUT:d" }
    """
    out = await run_graph(text, {"a": [1, 2]})
    assert all(v.startswith("pool-mine") for v in values(out["b"]))
    assert values(out["c"]) == ["MainThread"] * 2
    assert all(v.startswith("graph-default") for v in values(out["d"]))


async def test_blocking_on_an_executor_does_not_stop_the_loop() -> None:
    text = """
    input_stream: "a" output_stream: "b"
    node { calculator: "AlwaysThread" input_stream: "IN:a" output_stream: "OUT:b" }
    """
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    await run_graph(text, {"a": list(range(5))})
    counter.cancel()
    assert turns > 50


async def test_awaiting_on_an_executor_thread_is_a_clear_error() -> None:
    text = """
    input_stream: "a" output_stream: "b" num_threads: 1
    executor { name: "x" }
    node { calculator: "Slow" input_stream: "IN:a" output_stream: "OUT:b" executor: "x"
           input_side_packet: "TURNS:t" }
    """
    with pytest.raises(NodeError, match="cannot await the event loop"):
        await run_graph(text, {"a": [1]}, {"t": lambda name, at: 1})


@calculator("OpenSender")
class OpenSender(Calculator):
    """Sends from open(), at a timestamp it must name."""

    a = Input("IN", object)
    b = Output("OUT", object)

    async def open(self, cc: Context) -> None:
        cc.send(self.b, "opened", 0)

    async def process(self, cc: Context) -> None:
        cc.send(self.b, cc[self.a])


async def test_a_packet_sent_from_open_does_not_push_the_bound_past_the_first_input() -> None:
    registry = Registry()
    registry.add(OpenSender)
    text = """
    input_stream: "a" output_stream: "b"
    node { calculator: "OpenSender" input_stream: "IN:a" output_stream: "OUT:b" }
    """
    out = await run_graph(text, {"a": [Packet(1, "x")]}, registry=registry)
    assert out["b"] == [Packet(0, "opened"), Packet(1, "x")]


async def test_timestamps_must_increase() -> None:
    registry = Registry()
    registry.add(OpenSender)
    text = """
    input_stream: "a" output_stream: "b"
    node { name: "n" calculator: "OpenSender" input_stream: "IN:a" output_stream: "OUT:b" }
    """
    with pytest.raises(NodeError, match="timestamp 0 comes after 0"):
        await run_graph(text, {"a": [Packet(0, "x")]}, registry=registry)
    graph = Graph.parse(CHAIN, REGISTRY)
    async with graph.start() as run:
        await run.send("a", 1, 5)
        with pytest.raises(ValueError, match="timestamp 5 comes after 5"):
            await run.send("a", 1, 5)
        run.close_inputs()
        with pytest.raises(ValueError, match="'a' is closed"):
            await run.send("a", 1)


async def test_a_packet_of_the_wrong_type_names_port_and_types() -> None:
    with pytest.raises(NodeError, match=r"Output\(OUT:0\) takes <class 'int'>, got str"):
        await run_graph(CHAIN, {"a": ["x"]})


async def test_no_task_is_left_behind() -> None:
    before = asyncio.all_tasks()
    await run_graph(CHAIN, {"a": [1]})
    with pytest.raises(NodeError):
        await run_graph(FAILS, {"a": [1]}, {"phase": "second.process", "seen": []})
    gc.collect()
    assert asyncio.all_tasks() == before


async def test_a_missing_side_packet_is_named_at_start() -> None:
    graph = Graph.parse(FAILS, REGISTRY, {"phase": str, "seen": list})
    with pytest.raises(ValueError, match="seen"):
        graph.start({"phase": ""})


async def test_an_output_nobody_asked_to_read_does_not_hold_the_graph() -> None:
    text = CHAIN + 'output_stream: "b" max_queue_size: 2'
    graph = Graph.parse(text, REGISTRY)
    async with asyncio.timeout(60), graph.start(read=["c"]) as run:

        async def feed() -> None:
            for i in range(20):
                await run.send("a", i)
            run.close_inputs()

        task = asyncio.create_task(feed())
        assert len([p async for p in run.output("c")]) == 20
        await task


async def test_close_after_a_failed_emission_can_flush(caplog: pytest.LogCaptureFixture) -> None:
    """Packets that the failed call has sent are not sent a second time."""
    closed = []

    @calculator("Backwards")
    class Backwards(Calculator):
        into, out = Input("IN", int), Output("OUT", int)

        async def process(self, cc: Context) -> None:
            cc.send(self.out, 1, 5)
            cc.send(self.out, 2, 3)

        async def close(self, cc: Context) -> None:
            await cc.flush()
            closed.append(True)

    registry = Registry()
    registry.add(Backwards)
    text = """
    input_stream: "a" output_stream: "c"
    node { calculator: "Backwards" input_stream: "IN:a" output_stream: "OUT:c" }
    """
    with pytest.raises(NodeError, match="comes after 5"):
        await run_graph(text, {"a": [1]}, registry=registry)
    assert closed == [True]
    assert "also failed in close()" not in caplog.text

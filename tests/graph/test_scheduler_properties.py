"""Random graphs under random completion orders give the same packets (rule 1 is what makes that true), and so
they do whether a node is a task or is called inline."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.graph import Registry
from ovserve.graph.graph import Graph
from tests.breadth import examples
from tests.graph.calculators import REGISTRIES

KINDS = ("Double", "Even", "Slow", "Join")


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """A DAG: every node reads streams that exist before it; every stream is a graph output."""
    streams = ["a", "b"]
    numbers = {"a", "b"}  # streams of ints, which Double and Even take
    lines = [
        'input_stream: "a" input_stream: "b"',
        f"max_queue_size: {draw(st.sampled_from([1, 2, 100, -1]))}",
    ]
    for i in range(draw(st.integers(1, 7))):
        out = f"s{i}"
        kind = draw(st.sampled_from(KINDS))
        if kind == "Join":
            sources = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=3))
            ends = " ".join(f'input_stream: "{s}"' for s in sources)
        else:
            source = draw(st.sampled_from(sorted(numbers) if kind in ("Double", "Even") else streams))
            ends = f'input_stream: "IN:{source}"'
            if kind in ("Double", "Even") or source in numbers:
                numbers.add(out)
        side = 'input_side_packet: "TURNS:turns"' if kind == "Slow" else ""
        lines.append(f'node {{ name: "n{i}" calculator: "{kind}" {ends} output_stream: "OUT:{out}" {side} }}')
        streams.append(out)
    lines += [f'output_stream: "{s}"' for s in streams[2:]]
    return "\n".join(lines)


async def play(text: str, feeds: dict[str, list[int]], seed: int, registry: Registry) -> dict[str, list[Any]]:
    """Run to the end with pauses that only `seed` decides."""
    pauses = random.Random(seed)
    graph = Graph.parse(text, registry, {"turns": object})
    side = {"turns": lambda name, at: pauses.randrange(4)} if "turns" in graph.plan.side_packets else {}
    out: dict[str, list[Any]] = {e.name: [] for e in graph.plan.outputs}
    async with asyncio.timeout(60), graph.start(side) as run:

        async def collect(name: str) -> None:
            async for packet in run.output(name):
                out[name].append(packet)
                for _ in range(pauses.randrange(3)):
                    await asyncio.sleep(0)

        async def feed(name: str) -> None:
            for value in feeds[name]:
                for _ in range(pauses.randrange(3)):
                    await asyncio.sleep(0)
                await run.send(name, value)
            run.close_input(name)

        await asyncio.gather(*map(collect, out), *map(feed, feeds))
        await run.wait()
    return out


@settings(max_examples=examples(50), deadline=None)
@given(
    text=graphs(),
    a=st.lists(st.integers(0, 9), max_size=6),
    b=st.lists(st.integers(0, 9), max_size=6),
    seeds=st.lists(st.integers(0, 2**16), min_size=3, max_size=3),
)
def test_any_completion_order_gives_the_same_packets(
    text: str, a: list[int], b: list[int], seeds: list[int]
) -> None:
    first, *others = [
        asyncio.run(play(text, {"a": a, "b": b}, seed, registry))
        for seed in seeds
        for registry in REGISTRIES.values()
    ]
    assert all(other == first for other in others)

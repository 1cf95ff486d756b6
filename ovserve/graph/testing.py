"""CalculatorRunner: run one calculator from a node's text, packets in, packets out. For tests of calculators.

runner = CalculatorRunner(Echo, 'input_stream: "IN:a" output_stream: "OUT:b"')
out = await runner.run({"a": [1, 2]})          # {"b": [Packet(0, 1), Packet(1, 2)]}
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from ovserve.graph.calculator import Calculator, Packet
from ovserve.graph.config import parse_graph
from ovserve.graph.graph import Graph
from ovserve.graph.registry import Registry
from ovserve.telemetry.metrics import NodeEvents


class CalculatorRunner:
    """Runs a node in a graph of its own: the node's inputs and outputs are the graph's."""

    def __init__(
        self, cls: type[Calculator], node: str = "", side_packets: Mapping[str, Any] | None = None
    ) -> None:
        registry = Registry()
        registry.add(cls)
        name = cls.__dict__["__calculator_name__"]
        text = f"calculator: {name!r} {node}"
        probe = parse_graph(f"node {{ {text} }}").message.node[0]
        back = {i.tag_index.partition(":")[0] for i in probe.input_stream_info if i.back_edge}
        loops = {s.rpartition(":")[2] for s in probe.input_stream if s.partition(":")[0] in back}
        ends = [f"input_stream: {s!r}" for s in probe.input_stream if s.rpartition(":")[2] not in loops]
        ends += [f"output_stream: {s!r}" for s in probe.output_stream if s.rpartition(":")[2] not in loops]
        self.events = NodeEvents()  # what the calculator counted with `cc.count`, over all runs
        self._side = dict(side_packets or {})
        # None stands for a side packet that the test does not need.
        types = {k: object if v is None else type(v) for k, v in self._side.items()}
        self.graph = Graph.parse(" ".join([*ends, f"node {{ {text} }}"]), registry, types)

    async def run(self, inputs: Mapping[str, Iterable[Any]] | None = None) -> dict[str, list[Packet]]:
        """Feed each input stream its values to the end. Packets keep their timestamps; other values count
        from 0.

        The node is loaded before and unloaded after it. Raises NodeError, as a graph does, and LoadError.
        """
        packets = dict(inputs or {})
        unknown = packets.keys() - {e.name for e in self.graph.plan.inputs}
        if unknown:
            raise ValueError(f"no such input: {', '.join(sorted(unknown))}")
        out: dict[str, list[Packet]] = {e.name: [] for e in self.graph.plan.outputs}
        await self.graph.load_nodes(self._side, self.events)
        try:
            await self._run(packets, out)
        finally:
            await self.graph.unload_nodes()
        return out

    async def _run(self, packets: Mapping[str, Iterable[Any]], out: dict[str, list[Packet]]) -> None:
        async with self.graph.start(self._side) as run:

            async def collect(name: str) -> None:
                async for packet in run.output(name):
                    out[name].append(packet)

            async def feed(name: str) -> None:
                for value in packets.get(name, ()):
                    if isinstance(value, Packet):
                        await run.send(name, value.value, value.timestamp)
                    else:
                        await run.send(name, value)
                run.close_input(name)

            await asyncio.gather(*(feed(e.name) for e in self.graph.plan.inputs), *map(collect, out))
            await run.wait()

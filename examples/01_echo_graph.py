"""A graph of two nodes with one calculator of its own: no model, no server, no HTTP.

Run it:

    .venv/bin/python examples/01_echo_graph.py

It prints `0: hello, hello` and `1: graph, graph`: the timestamp of each packet, and what came out.
"""

from __future__ import annotations

import asyncio

from ovserve.calculators.library import streams
from ovserve.graph import Calculator, Context, Input, Output, Registry, calculator
from ovserve.graph.graph import Graph

GRAPH = """
input_stream: "words"
output_stream: "echoes"
node { calculator: "PassThroughCalculator"  input_stream: "words"      output_stream: "passed" }
node { calculator: "EchoCalculator"         input_stream: "IN:passed"  output_stream: "OUT:echoes" }
"""


@calculator("EchoCalculator")
class Echo(Calculator):
    """Says everything twice. The types of the ports are checked, at load and for every packet."""

    word = Input("IN", str)
    echo = Output("OUT", str)

    async def process(self, cc: Context) -> None:
        word = cc[self.word]  # None when this call has no packet on the port
        if word is not None:
            cc.send(self.echo, f"{word}, {word}")


async def main() -> None:
    registry = Registry([streams])
    registry.add(Echo)
    graph = Graph.parse(GRAPH, registry)  # raises LoadError for any fault in the wiring
    async with graph.start() as run:
        for word in ("hello", "graph"):
            await run.send("words", word)
        run.close_inputs()  # closed inputs are what ends a run
        async for packet in run.output("echoes"):
            print(f"{packet.timestamp}: {packet.value}")


if __name__ == "__main__":
    asyncio.run(main())

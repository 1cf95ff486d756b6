"""CalculatorRunner runs one calculator, loops included."""

from __future__ import annotations

import pytest

from ovserve.errors import NodeError
from ovserve.graph import Packet
from ovserve.graph.testing import CalculatorRunner
from tests.graph.calculators import Countdown, Double, Source


async def test_packets_in_packets_out() -> None:
    runner = CalculatorRunner(Double, 'input_stream: "IN:a" output_stream: "OUT:b"')
    assert await runner.run({"a": [1, Packet(7, 2)]}) == {"b": [Packet(0, 2), Packet(7, 4)]}


async def test_a_loop_is_closed_inside() -> None:
    node = """input_stream: "IN:a" input_stream: "LOOPBACK:l" output_stream: "OUT:b" output_stream: "LOOPBACK:l"
        input_stream_info { tag_index: "LOOPBACK:0" back_edge: true }
        input_stream_handler { input_stream_handler: "ImmediateInputStreamHandler" }"""
    out = await CalculatorRunner(Countdown, node).run({"a": [2]})
    assert [p.value for p in out["b"]] == [2, 1]


async def test_side_packets_are_given() -> None:
    runner = CalculatorRunner(Source, 'input_side_packet: "LIMIT:n" output_stream: "OUT:b"', {"n": 2})
    assert [p.value for p in (await runner.run())["b"]] == [0, 1]


async def test_errors_come_out_as_the_graph_s() -> None:
    runner = CalculatorRunner(Double, 'input_stream: "IN:a" output_stream: "OUT:b"')
    with pytest.raises(NodeError, match="Double"):
        await runner.run({"a": ["x"]})
    with pytest.raises(ValueError, match="no such input: zzz"):
        await runner.run({"zzz": [1]})

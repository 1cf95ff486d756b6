"""What a graph takes by the tags of its streams: whole requests, side packets from parameters, wrong mixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ovserve.api.kserve import InferRequest, Tensor
from ovserve.calculators.shipped import MODULES
from ovserve.errors import InvalidArgument, LoadError
from ovserve.graph import Registry
from ovserve.services.inference.infer import Inference
from ovserve.serving.manager import Manager
from ovserve.telemetry.metrics import GRPC

CALCULATORS = """
from ovserve.graph import Calculator, Context, Input, Output, SidePacket, calculator
from ovserve.api.kserve import InferRequest, InferResponse, Tensor

@calculator("WholeCalculator")
class Whole(Calculator):
    request = Input("REQUEST", InferRequest)
    response = Output("RESPONSE", InferResponse)
    async def process(self, cc: Context) -> None:
        given = cc[self.request]
        cc.send(self.response, InferResponse({n + "_back": t for n, t in given.inputs.items()}))

@calculator("ScaleCalculator")
class Scale(Calculator):
    x = Input("X", Tensor)
    y = Output("Y", Tensor)
    factor = SidePacket("FACTOR", int)
    async def process(self, cc: Context) -> None:
        cc.send(self.y, Tensor.of_array(cc[self.x].array() * cc[self.factor]))
        if cc[self.factor] == 0:
            cc.send(self.y, cc[self.x], cc.timestamp + 1)
"""
WHOLE = """
input_stream: "REQUEST:a" output_stream: "RESPONSE:b"
node { calculator: "WholeCalculator" input_stream: "REQUEST:a" output_stream: "RESPONSE:b" }
"""
SCALE = """
input_stream: "OVTENSOR:x" output_stream: "OVTENSOR:y" input_side_packet: "factor"
node { calculator: "ScaleCalculator" input_stream: "X:x" output_stream: "Y:y" input_side_packet: "FACTOR:factor" }
"""
X = Tensor.of("INT64", (2,), [1, 2])


@asynccontextmanager
async def serving(directory: Path, graph: str) -> AsyncIterator[Inference]:
    (directory / "graph.pbtxt").write_text(graph)
    (directory / "calculators.py").write_text(CALCULATORS)
    manager = Manager(Registry(MODULES))
    try:
        await manager.load("m", directory)
        yield Inference(manager)
    finally:
        await manager.stop()


async def test_a_graph_of_whole_requests(tmp_path: Path) -> None:
    async with serving(tmp_path, WHOLE) as inference:
        response = await inference.infer(InferRequest("m", {"any": X}, id="7"), GRPC)
        assert response.outputs == {"any_back": X}
        assert (response.id, response.version) == ("7", "1")


@pytest.mark.parametrize("factor", [3, 3.0])
async def test_an_integer_may_be_written_as_a_float(tmp_path: Path, factor: float) -> None:
    async with serving(tmp_path, SCALE) as inference:
        response = await inference.infer(InferRequest("m", {"x": X}, parameters={"factor": factor}), GRPC)
        assert (response.outputs["y"].datatype, response.outputs["y"].values) == ("INT64", [3, 6])


@pytest.mark.parametrize("factor", [3.5, "3", True])
async def test_what_is_no_integer_is_refused_by_name(tmp_path: Path, factor: float) -> None:
    async with serving(tmp_path, SCALE) as inference:
        with pytest.raises(
            InvalidArgument, match="parameters.factor: expected a whole number, got"
        ) as caught:
            await inference.infer(InferRequest("m", {"x": X}, parameters={"factor": factor}), GRPC)
        assert caught.value.param == "parameters.factor"


async def test_parameters_fill_side_packets(tmp_path: Path) -> None:
    async with serving(tmp_path, SCALE) as inference:
        parameters = {"factor": 3, "odd": "x"}
        response = await inference.infer(InferRequest("m", {"x": X}, parameters=parameters), GRPC)
        assert response.outputs["y"].values == [3, 6]
        assert response.parameters["x-ovserve-ignored-params"] == "odd"
        with pytest.raises(InvalidArgument, match=r"parameters\.factor: required"):
            await inference.infer(InferRequest("m", {"x": X}), GRPC)
        with pytest.raises(InvalidArgument, match="more than one packet to 'y': call ModelStreamInfer"):
            await inference.infer(InferRequest("m", {"x": X}, parameters={"factor": 0}), GRPC)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('input_stream: "REQUEST:a" output', 'input_stream: "REQUEST:a" input_stream: "c" output', "exactly one REQUEST stream, alone"),
        ('output_stream: "RESPONSE:b"\nnode', 'output_stream: "B:b"\nnode', "exactly one RESPONSE stream, alone"),
        ('"REQUEST:a" output_stream: "RESPONSE:b"\nnode', '"A:a" output_stream: "B:b"\nnode', "has tensors, and the node's is"),
        ('input_stream: "REQUEST:a" output', 'input_stream: "HTTP_REQUEST_PAYLOAD:a" output', "exactly one HTTP_RESPONSE_PAYLOAD"),
    ],
)  # fmt: skip
async def test_streams_that_do_not_go_together(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in WHOLE
    with pytest.raises(LoadError, match=text):
        async with serving(tmp_path, WHOLE.replace(old, new, 1)):
            pass

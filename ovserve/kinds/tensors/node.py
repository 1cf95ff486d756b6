"""PlainModel: what nodes and requests share of a loaded plain model, and how tensors are given to it.

Everything that can be wrong with a request is checked here against what the engine has said of the model,
before a byte is copied.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
from google.protobuf.struct_pb2 import Struct

from ovserve.api.kserve import InferRequest, InferResponse, Tensor
from ovserve.api.kserve.tensor import BYTES
from ovserve.engine.client.calls import CallClient
from ovserve.errors import InvalidArgument
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.resource import Caller, EngineCalculator, Host, ResourceKind
from ovserve.kinds.tensors.metrics import TensorMetrics
from ovserve.kinds.tensors.spec import (
    INFER,
    GivenTensor,
    InferArguments,
    InferResult,
    TensorFacts,
    TensorInfo,
    TensorSpec,
)
from ovserve.llm.images import PixelForm
from ovserve.sandbox.images.loader import Media

MAX_SHOWN_NAMES = 8  # names in a message
IMAGE_AXES = {"N", "C", "H", "W"}


class Inferred(NamedTuple):
    outputs: dict[str, Tensor]
    inference_us: float
    wait_us: float


@dataclass(frozen=True)
class PlainModel:
    """`name` is the servable's, for messages."""

    name: str
    engine: Caller
    model: TensorFacts
    images: Media
    metrics: TensorMetrics
    bgr: bool = True  # the order of colours that it takes images in

    def facts(self) -> Mapping[str, object]:
        def ends(infos: Iterable[TensorInfo]) -> list[dict[str, object]]:
            return [
                {"name": i.name, "datatype": i.datatype, "shape": i.shape, "layout": i.layout or None}
                for i in infos
            ]

        return {
            "inputs": ends(self.model.inputs),
            "outputs": ends(self.model.outputs),
            "infer_requests": self.model.max_calls,
            "streams": self.model.streams,
            "stateful": self.model.stateful,
        }

    async def infer(self, inputs: Mapping[str, Tensor], outputs: Sequence[str] = ()) -> Inferred:
        """Run the model once. `outputs`: those wanted, by name; all if empty.

        Raises InvalidArgument naming the tensor, what was expected and what was given; and what the engine
        and its admission raise.
        """
        names, indices = self._output_indices(outputs) if outputs else self._all
        tensors, blobs = await self._given_tensors(inputs)
        self.metrics.active += 1
        try:
            item = await self.engine.one(INFER, InferArguments(tensors, indices), blobs)
        finally:
            self.metrics.active -= 1
        result: InferResult = item.decode(InferResult)
        self.metrics.inference_us.observe(result.inference_us)
        self.metrics.wait_us.observe(result.wait_us)
        tensors_by_name = {
            name: Tensor.unchecked(self.model.outputs[index].datatype, shape, blob)
            for name, index, shape, blob in zip(names, indices, result.shapes, item.blobs, strict=True)
        }
        return Inferred(tensors_by_name, result.inference_us, result.wait_us)

    @cached_property
    def _all(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        return tuple(info.name for info in self.model.outputs), tuple(range(len(self.model.outputs)))

    @cached_property
    def _inputs(self) -> dict[str, int]:
        """The index of an input by each of its names; the first that has it."""
        return {name: i for i, info in reversed([*enumerate(self.model.inputs)]) for name in info.names}

    def _output_indices(self, outputs: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        outputs = tuple(dict.fromkeys(outputs))  # a name that is repeated is not computed and copied again
        indices = []
        for name in outputs:
            info = self.model.output(name)
            if info is None:
                model = f"model {self.name!r}; it has {listed(self.model.outputs)}"
                raise InvalidArgument.at("outputs", f"{name[:64]!r} is not an output of {model}")
            indices.append(self.model.outputs.index(info))
        return outputs, tuple(indices)

    async def _given_tensors(
        self, inputs: Mapping[str, Tensor]
    ) -> tuple[tuple[GivenTensor, ...], list[bytes | memoryview]]:
        tensors: dict[int, tuple[GivenTensor, bytes | memoryview]] = {}
        for name, tensor in inputs.items():
            index = self._inputs.get(name)
            if index is None:
                model = f"model {self.name!r}; it has {listed(self.model.inputs)}"
                raise InvalidArgument.at("inputs", f"{name[:64]!r} is not an input of {model}")
            if index in tensors:
                raise InvalidArgument.at("inputs", f"{name!r} is given twice, by two of its names")
            tensors[index] = await self._one(index, name, self.model.inputs[index], tensor)
        if len(tensors) < len(self.model.inputs):
            missing = [info for i, info in enumerate(self.model.inputs) if i not in tensors]
            counts = f"model {self.name!r} expects {len(self.model.inputs)} inputs, got {len(tensors)}"
            raise InvalidArgument.at("inputs", f"{counts}; missing: {listed(missing)}")
        return tuple(one for one, _ in tensors.values()), [blob for _, blob in tensors.values()]

    async def _one(
        self, index: int, name: str, info: TensorInfo, tensor: Tensor
    ) -> tuple[GivenTensor, bytes | memoryview]:
        if tensor.datatype == BYTES and info.datatype != BYTES and info.dims and len(info.dims) == 4:
            return await self._decoded(index, name, info, tensor)
        if tensor.datatype != info.datatype:
            raise _mismatch(name, info, tensor)
        if not info.accepts(tensor.shape):
            raise _mismatch(name, info, tensor)
        return GivenTensor(index, tensor.shape), tensor.data

    async def _decoded(
        self, index: int, name: str, info: TensorInfo, tensor: Tensor
    ) -> tuple[GivenTensor, bytes | memoryview]:
        """Return the pixels of an input whose elements are image files, scaled to the model's size."""
        form = _pixel_form(name, info, bgr=self.bgr)
        count = math.prod(tensor.shape)
        low, high = (info.dims or ())[info.layout.index("N")]
        if len(tensor.shape) != 1 or count < max(1, low) or (high >= 0 and count > high):
            raise InvalidArgument.at(
                "inputs",
                f"{name!r}: expected a list of images, as BYTES of shape [n] for {info.datatype} "
                f"{info.bounds} ({info.layout}); got BYTES {list(tensor.shape)}",
            )
        pixels = await self.images.pixels(list(tensor.elements), form, f"inputs: {name!r}")
        height, width = pixels.height, pixels.width
        shape = count, height, width, form.channels
        axes = dict(zip("NHWC", shape, strict=True))
        if not info.accepts(tuple(axes[letter] for letter in info.layout)):
            limits = f"{info.datatype} {info.bounds} ({info.layout})"
            what = f"{name!r}: the images have {width} x {height} pixels, expected {limits}"
            raise InvalidArgument.at("inputs", what)
        return GivenTensor(index, shape, "image"), pixels.data


def _pixel_form(name: str, info: TensorInfo, *, bgr: bool) -> PixelForm:
    """Return what the input's images must be. Raises InvalidArgument if its layout is not known."""
    if {*info.layout} != IMAGE_AXES or info.dims is None:
        images = (
            'images are decoded for inputs with a layout such as "NHWC", which the configuration can give'
        )
        what = f"expected {info.datatype} {info.bounds}, got BYTES; {images}"
        raise InvalidArgument.at("inputs", f"{name!r}: {what}")
    axes = dict(zip(info.layout, info.dims, strict=True))
    return PixelForm(axes["W"], axes["H"], 1 if axes["C"][0] == 1 else 3, bgr)


def _mismatch(name: str, info: TensorInfo, tensor: Tensor) -> InvalidArgument:
    actual = f"{tensor.datatype} [{','.join(map(str, tensor.shape[:16]))}]"
    return InvalidArgument.at("inputs", f"{name!r}: expected {info.datatype} {info.bounds}, got {actual}")


def listed(infos: Iterable[TensorInfo]) -> str:
    """Return names, types and shapes of tensors for a message."""
    descriptions = [f"{info.name!r} {info.datatype} {info.bounds}" for info in infos]
    more = f" and {len(descriptions) - MAX_SHOWN_NAMES} more" if len(descriptions) > MAX_SHOWN_NAMES else ""
    return (", ".join(descriptions[:MAX_SHOWN_NAMES]) or "none") + more


# The node of a plain model: KServe requests in, responses out.
#
# A model without a graph gets a graph of this one node, so that it is loaded, replaced and measured like any
# other servable. Its options are the JSON of a TensorSpec, which the configuration has made.


NAME = "PlainModelCalculator"
TAG, PACKET = "PLAIN_MODEL", "model"
OPTION = "spec"
GRAPH = """\
input_stream: "REQUEST:request"
output_stream: "RESPONSE:response"
node {{
  name: "Model"
  calculator: "{name}"
  input_side_packet: "{tag}:{packet}"
  input_stream: "REQUEST:request"
  output_stream: "RESPONSE:response"
  node_options {{
    [type.googleapis.com/google.protobuf.Struct] {{
      fields {{ key: "{option}" value {{ string_value: {spec} }} }}
    }}
  }}
}}
"""


def graph_text(spec: TensorSpec) -> str:
    # JSON's escapes of ASCII are also those of protobuf's text format.
    text = json.dumps(msgspec.json.encode(spec).decode())
    return GRAPH.format(name=NAME, tag=TAG, packet=PACKET, option=OPTION, spec=text)


def parse(node: Node) -> TensorSpec:
    options = node.options(Struct)
    if options is None or OPTION not in options:
        raise node.error("required, but missing", OPTION)
    try:
        return msgspec.json.decode(str(options[OPTION]), type=TensorSpec)
    except msgspec.MsgspecError as error:
        raise node.error(f"not the JSON of a TensorSpec: {error}", OPTION) from None


async def make(node: Node, spec: TensorSpec, engine: CallClient, host: Host) -> PlainModel:
    facts = engine.facts
    assert isinstance(facts, TensorFacts), "they are of the spec's type"
    caller = host.admit_calls(engine, {})
    return PlainModel(
        host.name,
        caller,
        facts,
        host.images,
        host.version_metrics.of(TensorMetrics),
        spec.color_format != "RGB",
    )


@calculator(NAME)
class PlainModelCalculator(EngineCalculator):
    runs_on = "loop"
    resource = ResourceKind(
        tag=TAG,
        packet_type=PlainModel,
        options_type=Struct,
        parse=parse,
        spec=lambda spec: spec,
        make=make,
    )

    request = Input("REQUEST", InferRequest)
    response = Output("RESPONSE", InferResponse)
    model = SidePacket(TAG, PlainModel)

    async def process(self, cc: Context) -> None:
        request = cc[self.request]
        assert request is not None, "its only input"
        inferred = await cc[self.model].infer(request.inputs, request.outputs)
        cc.send(self.response, InferResponse(inferred.outputs))

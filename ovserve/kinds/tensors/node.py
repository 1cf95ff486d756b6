"""The node of a plain model: KServe requests in, responses out.

A model without a graph gets a graph of this one node, so that it is loaded, replaced and measured like any
other servable. Its options are the JSON of a TensorSpec, which the configuration has made.
"""

from __future__ import annotations

import json

import msgspec
from google.protobuf.struct_pb2 import Struct

from ovserve.api.kserve import InferRequest, InferResponse
from ovserve.engine.client.call_client import CallClient
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.resource import EngineCalculator, Host, ResourceKind
from ovserve.kinds.tensors.metrics import TensorMetrics
from ovserve.kinds.tensors.resource import PlainModel
from ovserve.kinds.tensors.spec import TensorFacts, TensorSpec

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

"""The node of a small model and its one endpoint, `POST /v3/add`."""

from __future__ import annotations

import array
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from google.protobuf.struct_pb2 import Struct

from benchmarks.small_kind.spec import AddOneSpec
from ovserve.access import current_request
from ovserve.api.openai.body import decode_body
from ovserve.engine.client.calls import CallClient
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.payload import HttpCalculator, HttpPayload
from ovserve.kinds.resource import Caller, EngineCalculator, Host, ResourceKind, parse_isolation

GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:request"
output_stream: "HTTP_RESPONSE_PAYLOAD:response"
node {
  name: "Add"
  calculator: "AddOneCalculator"
  input_side_packet: "ADD_ONE:model"
  input_stream: "HTTP_REQUEST_PAYLOAD:request"
  output_stream: "HTTP_RESPONSE_PAYLOAD:response"
  node_options {
    [type.googleapis.com/google.protobuf.Struct] {
      fields { key: "models_path" value { string_value: "model.xml" } }
      fields { key: "isolation" value { string_value: "ISOLATION" } }
    }
  }
}
"""


class AddRequest(msgspec.Struct, frozen=True):
    model: str
    values: list[float]


class Add:
    name = "add"

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(AddRequest)

    def decode(self, body: bytes) -> AddRequest:
        return decode_body(body, self._decoder)[0]


ADD = Add()


@dataclass(frozen=True)
class AddOneResource:
    engine: Caller

    def facts(self) -> Mapping[str, object]:
        return {}


def parse(node: Node) -> AddOneSpec:
    options = node.options(Struct)
    assert options is not None
    path = (node.config.base / str(options["models_path"])).resolve()
    if not path.is_file():
        raise node.error(f"{path} does not exist", "models_path")
    return AddOneSpec(str(path), isolation=parse_isolation(node, str(options["isolation"])))


async def make(node: Node, spec: AddOneSpec, engine: CallClient, host: Host) -> AddOneResource:
    return AddOneResource(host.admit_calls(engine, {}))


@calculator("AddOneCalculator")
class AddOneCalculator(EngineCalculator, HttpCalculator):
    runs_on = "loop"
    endpoints = {ADD.name: ADD}
    resource = ResourceKind(
        tag="ADD_ONE",
        packet_type=AddOneResource,
        options_type=Struct,
        parse=parse,
        spec=lambda spec: spec,
        make=make,
    )

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    out = Output("HTTP_RESPONSE_PAYLOAD", bytes)
    model = SidePacket("ADD_ONE", AddOneResource)

    async def process(self, cc: Context) -> None:
        payload = cc[self.http]
        assert payload is not None
        request = ADD.decode(payload.body)
        stream = await cc[self.model].engine.call("add", None, (array.array("f", request.values).tobytes(),))
        item = await stream.next()
        assert item is not None
        await stream.next()
        current_request().count(0, 1)
        values = memoryview(item.blobs[0]).cast("f").tolist()
        cc.send(self.out, msgspec.json.encode({"values": values}))

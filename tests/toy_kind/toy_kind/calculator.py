"""The toy's node: its options, its resource, and the calculator that answers requests with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from google.protobuf.struct_pb2 import Struct

from ovserve.access import current_request
from ovserve.engine.client.calls import CallClient
from ovserve.graph import Context, Input, Node, Output, SidePacket, calculator
from ovserve.kinds.payload import HttpCalculator, HttpPayload, HttpResponse
from ovserve.kinds.resource import (
    Caller,
    EngineCalculator,
    Host,
    ItemStream,
    ResourceKind,
    parse_isolation,
)
from toy_kind.endpoint import COUNT, CountRequest
from toy_kind.spec import CountdownSpec, SharedCountdownSpec


@dataclass(frozen=True)
class CountdownResource:
    engine: Caller
    zero: str

    def facts(self) -> Mapping[str, object]:
        return {"zero": self.zero}


def parse(node: Node) -> CountdownSpec:
    options = node.options(Struct)
    if options is None or "models_path" not in options:
        raise node.error("required, but missing", "models_path")
    path = (node.config.base / str(options["models_path"])).resolve()
    if not path.is_file():
        raise node.error(f"{path} does not exist", "models_path")
    values = dict(options)
    seconds = float(values.get("step_seconds", 0.0))  # type: ignore[arg-type]
    if "isolation" not in values:
        return CountdownSpec(str(path), step_seconds=seconds)
    isolation = parse_isolation(node, str(values["isolation"]))
    return SharedCountdownSpec(str(path), step_seconds=seconds, isolation=isolation)


async def make(node: Node, spec: CountdownSpec, engine: CallClient, host: Host) -> CountdownResource:
    stream = await engine.call("count", 0)
    zero = await stream.next()
    assert zero is not None
    assert await stream.next() is None
    return CountdownResource(host.admit_calls(engine, {}), zero.decode()["text"])


@calculator("CountdownCalculator")
class CountdownCalculator(EngineCalculator, HttpCalculator):
    runs_on = "loop"
    endpoints = {COUNT.name: COUNT}
    resource = ResourceKind(
        tag="COUNTDOWN",
        packet_type=CountdownResource,
        options_type=Struct,
        parse=parse,
        spec=lambda spec: spec,
        make=make,
    )

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    out: Output[HttpResponse | bytes] = Output("HTTP_RESPONSE_PAYLOAD", HttpResponse | bytes)
    tick_in = Input("LOOPBACK", bool)
    tick_out = Output("LOOPBACK", bool)
    countdown = SidePacket("COUNTDOWN", CountdownResource)

    def open(self, cc: Context) -> None:
        self.stream: ItemStream | None = None
        self.texts: list[str] = []

    async def process(self, cc: Context) -> None:
        payload = cc[self.http]
        if payload is not None:
            self.request: CountRequest = COUNT.decode(payload.body)
            self.stream = await cc[self.countdown].engine.call("count", self.request.start)
        assert self.stream is not None
        item = await self.stream.next()
        if item is None:
            body = b"data: [DONE]\n\n" if self.request.stream else msgspec.json.encode({"texts": self.texts})
            cc.send(self.out, body)
            return
        current_request().count(0, 1)
        self.texts.append(item.decode()["text"])
        if self.request.stream:
            event = b"data: " + msgspec.json.encode(item.decode()) + b"\n\n"
            begun = len(self.texts) > 1
            cc.send(self.out, event if begun else HttpResponse(event, "text/event-stream", more=True))
        cc.send(self.tick_out, True)

    def close(self, cc: Context) -> None:
        if self.stream is not None:
            self.stream.cancel()

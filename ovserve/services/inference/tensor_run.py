"""One run of a graph that takes tensors, or whole KServe requests, for one request or a stream of them.

A request's tensors go to the streams of their names, all at one timestamp: its parameter
OVMS_MP_TIMESTAMP, or the next one. The answer's packets carry their timestamp back under the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from ovserve.access import Answering, current_request
from ovserve.api.kserve import InferFailure, InferRequest, InferResponse, Parameter, Tensor, as_whole
from ovserve.api.kserve.tensor import display
from ovserve.errors import Internal, InvalidArgument, NodeError, OvserveError
from ovserve.graph import Packet
from ovserve.graph.scheduler import GraphRun
from ovserve.serving.interface import Interface
from ovserve.serving.servable import Servable
from ovserve.telemetry.metrics import Front, Outcome

PYTHON = "OVMS_PY_TENSOR"  # begins the tag of a stream whose tensors may be of any datatype and size
TIMESTAMP = "OVMS_MP_TIMESTAMP"
LAST_TIMESTAMP = 2**62
PACKETS_AHEAD = 16  # packets read from the graph before the client has read them

_Item = tuple[str, Packet] | InferFailure | OvserveError | None  # None: an output has ended


class TensorRun:
    """A run, used as `async with TensorRun(servable, request) as run`; leaving the block ends every node.

    The first request's parameters fill the graph's side packets; `unused` are parameters without effect.
    """

    def __init__(self, servable: Servable, first: InferRequest, front: Front) -> None:
        plan = servable.graph.plan
        self.inputs = [e.name for e in plan.inputs]
        self.outputs = [e.name for e in plan.outputs]
        self._loose = {e.name for e in plan.inputs if e.tag.startswith(PYTHON)}
        self._whole = servable.interface is Interface.WHOLE
        side, unused = _side_packets(servable, first.parameters)
        self.unused = *unused, *first.ignored
        self._run: GraphRun = servable.graph.start(side)
        self._servable, self._front = servable, front
        self._held = ExitStack()
        self._open = len(self.outputs)
        self._packets: asyncio.Queue[_Item] = asyncio.Queue(PACKETS_AHEAD)
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> TensorRun:
        call = current_request()
        self._held.enter_context(Answering(call))  # may reject it; nothing has begun
        self._held.enter_context(self._servable.lease())
        call.ends.append(self._run.cancel)
        self._held.callback(call.ends.remove, self._run.cancel)
        self._outcome = Outcome(self._servable.metrics, self._front, stream=False)
        try:
            await self._run.__aenter__()
        except BaseException as exc:
            self._outcome.close(exc)
            self._held.close()
            raise
        self._readers = [asyncio.create_task(self._read(name)) for name in self.outputs]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._readers:
            task.cancel()
        try:
            await self._run.__aexit__(kind, error, trace)
        finally:
            self._outcome.close(error)
            self._held.close()

    async def send(self, request: InferRequest, *, partial: bool) -> int:
        """Send a request; return the timestamp. With `partial`, some inputs may be left to later requests.

        Raises InvalidArgument, and what a node raised if the run has failed.
        """
        packets: Mapping[str, Any] = request.inputs
        request.check_inputs(self._loose)
        if self._whole:
            packets = {self.inputs[0]: request}
        else:
            self._check_names(request, partial=partial)
        at = self._timestamp(request.parameters.get(TIMESTAMP), packets)
        try:
            for name, packet in packets.items():
                await self._run.send(name, packet, at)
        except NodeError as exc:
            raise exc.public_error from None
        return at

    def close(self) -> None:
        """Mark the end of requests."""
        self._run.close_inputs()

    async def report(self, failure: InferFailure) -> None:
        """Make `next` return it in its turn."""
        await self._packets.put(failure)

    async def next(self) -> InferResponse | InferFailure | None:
        """Return the next packet of any output in a response of its own; None when the run has ended."""
        while self._open:
            packet = await self._packets.get()
            if isinstance(packet, OvserveError):
                self._outcome.failed(packet)
                raise packet
            if isinstance(packet, InferFailure):
                return packet
            if packet is not None:
                self._outcome.record_response()
                return self._response(*packet)
            self._open -= 1
        self._outcome.finished()
        return None

    async def _read(self, name: str) -> None:
        try:
            while (packet := await self._run.read(name)) is not None:
                await self._packets.put((name, packet))
            await self._packets.put(None)
        except NodeError as exc:
            await self._packets.put(exc.public_error)

    def _response(self, name: str, packet: Packet) -> InferResponse:
        value, stamp = packet.value, {TIMESTAMP: packet.timestamp}
        if self._whole and isinstance(value, InferResponse):
            return InferResponse(value.outputs, parameters={**value.parameters, **stamp})
        if not self._whole and isinstance(value, Tensor):
            return InferResponse({name: value}, parameters=stamp)
        expected = "InferResponse" if self._whole else "Tensor"
        raise Internal(f"the graph sent {type(value).__name__} to output {name!r}; expected {expected}")

    def _check_names(self, request: InferRequest, *, partial: bool) -> None:
        for field, names, expected in (
            ("inputs", tuple(request.inputs), self.inputs),
            ("outputs", request.outputs, self.outputs),
        ):
            for name in names:
                if name not in expected:
                    raise InvalidArgument.at(
                        field, f"{display(name)} is not one of the graph's: {', '.join(expected)}"
                    )
        missing = [name for name in self.inputs if name not in request.inputs]
        if missing and not (partial and request.inputs):
            raise InvalidArgument.at("inputs", f"{', '.join(missing)} not given")

    def _timestamp(self, parameter: Parameter | None, packets: Mapping[str, Any]) -> int:
        bound = max(self._run.inputs[name].bound for name in packets)
        if parameter is None:
            return bound
        field, at = f"parameters.{TIMESTAMP}", as_whole(parameter)
        if at is None or not bound <= at <= LAST_TIMESTAMP:
            raise InvalidArgument.expected(
                field, f"{bound} to {LAST_TIMESTAMP}, rising within each input", parameter
            )
        return at


def _side_packets(
    servable: Servable, parameters: Mapping[str, Parameter]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the side packets of the servable and of the request's parameters, and the parameters without
    one."""
    packet_names = servable.graph.plan.side_packets - servable.side_packets.keys()
    for name in sorted(servable.side_packets.keys() & parameters.keys()):
        raise InvalidArgument.at(f"parameters.{name}", "the server sets this one")
    for name in sorted(packet_names - parameters.keys()):
        raise InvalidArgument.at(f"parameters.{name}", "required, it fills the graph's input_side_packet")
    typed = {name: _typed(servable, name, parameters[name]) for name in packet_names}
    side = {**servable.side_packets, **typed}
    return side, tuple(name for name in parameters if name not in packet_names and name != TIMESTAMP)


def _typed(servable: Servable, name: str, value: Parameter) -> Parameter:
    """Convert the value to the node's type: 5.0 is a valid integer, 5.5 is not."""
    ports = [p for node in servable.graph.plan.nodes for p, packet in node.side_packets if packet == name]
    if not any(port.type is int for port in ports):
        return value
    whole = as_whole(value)
    if whole is None:
        raise InvalidArgument.expected(f"parameters.{name}", "a whole number", value)
    return whole

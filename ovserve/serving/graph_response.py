"""A running request to a graph, as its front sees it: how the answer begins, its chunks, its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ovserve.access import current_request
from ovserve.api.openai.responses.events import ResponseEvents
from ovserve.errors import EngineDead, Internal, NodeError, OvserveError
from ovserve.graph.runtime.scheduler import GraphRun
from ovserve.kinds.payload import HttpPayload, HttpResponse
from ovserve.telemetry.counters import Front, Outcome

if TYPE_CHECKING:
    from ovserve.serving.servable import Servable

log = logging.getLogger(__name__)


class GraphResponse:
    """One running request: `async with servable.start(payload) as answer`. Leaving the block ends it.

    `streams`: the client wants a stream. Every OvserveError it raises is one a front may show; what a
    calculator raised otherwise arrives as NodeError with the cause kept.
    """

    def __init__(
        self, servable: Servable, payload: HttpPayload, front: Front, *, open_ended: bool = False
    ) -> None:
        self._servable = servable
        self._payload = payload
        self._input, self._output = servable.http_streams
        self._front = front
        self._open_ended = open_ended
        self._run = self._new_run()
        self._lease = servable.lease()
        self._call = current_request()
        self._metrics = servable.metrics.of_batches if self._call.batch else servable.metrics
        self._cancellable = self._call.cancellable(lambda error: self._run.cancel(error))
        self._answering = self._call.answering()

    async def __aenter__(self) -> GraphResponse:
        self._answering.__enter__()  # may raise; nothing has begun
        self._lease.__enter__()
        self._cancellable.__enter__()
        self.streams = self._payload.head.stream or self._open_ended
        self._outcome = Outcome(self._metrics, self._front, stream=self.streams)
        try:
            await self._begin()
        except BaseException as exc:
            await self.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._run.__aexit__(kind, error, trace)
        finally:
            self._answering.__exit__(None, None, None)
            if self._open_ended and (error is None or isinstance(error, asyncio.CancelledError)):
                self._outcome.finished()  # a session ends when its client leaves, or the server
            self._outcome.left(error)
            self._cancellable.__exit__(None, None, None)
            self._lease.__exit__(None, None, None)

    async def send(self, payload: HttpPayload) -> None:
        """Send one more payload to an open-ended run; wait while the graph has enough."""
        try:
            await self._run.send(self._input, payload)
        except NodeError as exc:
            self._fail(exc)

    async def first(self) -> HttpResponse:
        """Return how the answer begins. Raises what went wrong before that."""
        packet = await self._next(again=not self.streams)
        if packet is None:
            raise Internal("the graph ended without an answer")
        if not isinstance(packet, HttpResponse):
            return HttpResponse(_bytes(packet), more=True)
        if not packet.more:
            self._outcome.finished()
        return packet

    async def next(self) -> bytes | None:
        """Return the next chunk of the body; None at its end."""
        packet = await self._next()
        return None if packet is None else _bytes(packet)

    async def next_events(self) -> ResponseEvents | None:
        """Return the next packet of an answer that began with `events`; None at its end."""
        packet = await self._next()
        if packet is None or isinstance(packet, ResponseEvents):
            return packet
        raise Internal(f"the graph went on with {type(packet).__name__}; expected ResponseEvents")

    async def pour(self, sink: Callable[[bytes], bool]) -> bool:
        """Call `sink` with each further chunk of the body as it arrives, until it returns False or the body
        ends; return whether there may be more. `sink` must be short and must not raise."""
        outcome, wrong = self._outcome, list[OvserveError]()

        def take(value: Any) -> bool:
            outcome.sent()
            try:
                return sink(value if type(value) is bytes else _bytes(value))
            except OvserveError as exc:
                wrong.append(exc)
                return False

        try:
            more = await self._run.pour(self._output, take)
        except NodeError as exc:
            self._fail(exc)
        if wrong:
            raise wrong.pop()  # else it, its traceback and `wrong` would refer to each other
        if not more:
            outcome.finished()
        return more

    def _new_run(self) -> GraphRun:
        whole = not self._open_ended
        return self._servable.graph.start(self._servable.side_packets, [self._output], whole=whole)

    async def _begin(self) -> None:
        await self._run.__aenter__()
        await self._run.send(self._input, self._payload)
        if not self._open_ended:
            self._run.close_inputs()

    async def _next(self, *, again: bool = False) -> Any:
        """`again`: nothing was sent, so if the engine ends, the request is repeated once."""
        try:
            packet = await self._run.read(self._output)
        except NodeError as exc:
            if again and isinstance(exc.public_error, EngineDead) and not exc.public_error.repeated:
                log.info("the engine ended before the answer began; the request is repeated")
                current_request().repeated = True
                await self._run.__aexit__(None, None, None)
                self._run = self._new_run()
                await self._begin()
                return await self._next()
            self._fail(exc)
        if packet is None:
            self._outcome.finished()
            return None
        self._outcome.sent()
        return packet.value

    def _fail(self, error: NodeError) -> NoReturn:
        self._outcome.failed(error.public_error)
        if error.public_error is error:
            raise error
        raise error.public_error from error


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, HttpResponse):
        return value.body
    raise Internal(f"the graph answered with {type(value).__name__}; expected HttpResponse, bytes or str")

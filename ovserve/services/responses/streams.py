"""The events of a response as its client reads them, and the reply that carries them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from ovserve.access import current_request
from ovserve.api.openai.responses.fold import ResponseFold
from ovserve.api.openai.responses.objects import Failure, ResponseEvents
from ovserve.errors import InvalidArgument, NodeError, OvserveError, for_log
from ovserve.kinds.payload import HttpResponse
from ovserve.services.responses.mcp_answer import McpAnswer
from ovserve.services.responses.run import Run
from ovserve.serving.servable import GraphResponse


@dataclass(frozen=True)
class ResponseReply:
    """`body`, or `events` to stream. `content_type` differs only for graphs that write their own answers."""

    body: bytes = b""
    events: AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


HIDDEN = "internal error; see the server's log"

log = logging.getLogger(__name__)


async def fold_all(answer: GraphResponse | McpAnswer, first: ResponseEvents) -> ResponseFold:
    """The whole response: what its events add up to."""
    fold = ResponseFold(first)
    fold.add(first)
    while (packet := await answer.next_events()) is not None:
        fold.add(packet)
    return fold


async def stream_of(
    run: Run, answer: GraphResponse | McpAnswer, first: ResponseEvents
) -> AsyncIterator[bytes]:
    """A foreground stream. It ends with response.failed if the graph fails."""
    yield run.received(first)
    try:
        while (packet := await answer.next_events()) is not None:
            yield run.received(packet)
    except OvserveError as exc:
        current_request().failure = exc
        yield run.fail(failure_of(exc))


def failure_of(error: OvserveError) -> Failure:
    """Log an error that ends a response; return what its client sees of it, without internal details."""
    ours = error.kind == "internal"
    log.log(
        logging.ERROR if ours else logging.WARNING,
        "a response failed: %s",
        error,
        exc_info=for_log(error) if ours else None,
    )
    code = "invalid_prompt" if isinstance(error, InvalidArgument) else "server_error"
    return Failure(code, HIDDEN if isinstance(error, NodeError) and ours else str(error))


async def through(answer: GraphResponse | McpAnswer, first: HttpResponse) -> AsyncIterator[bytes]:
    """The stream of a graph that writes its own responses."""
    yield first.body
    while (chunk := await answer.next()) is not None:
        yield chunk


async def one(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk

"""The events of a response as its client reads them, and the reply that carries them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from ovserve.access import current_request
from ovserve.api.openai.responses.writer import ResponseWriter
from ovserve.calculators.payload import HttpResponse
from ovserve.errors import NodeError, OvserveError
from ovserve.responses.run import Run
from ovserve.serving.servable import GraphResponse


@dataclass(frozen=True)
class ResponseReply:
    """`body`, or `events` to stream. `content_type` differs only for graphs that write their own answers."""

    body: bytes = b""
    events: AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


HIDDEN = "internal error; the server's log tells more"

log = logging.getLogger(__name__)


async def stream_of(run: Run, answer: GraphResponse, first: bytes) -> AsyncIterator[bytes]:
    """A foreground stream, ended as failed if something below gives up."""
    yield run.received(first)
    try:
        while (piece := await answer.next()) is not None:
            yield run.received(piece)
    except OvserveError as exc:
        current_request().failure = exc
        yield run.add(last_words(run.writer, exc))


def last_words(writer: ResponseWriter, error: OvserveError) -> bytes:
    """Ends the response as failed; a fault of ours keeps its details in the log."""
    ours = error.kind == "internal"
    log.log(
        logging.ERROR if ours else logging.WARNING,
        "a response failed: %s",
        error,
        exc_info=error if ours else None,
    )
    return writer.fail(error, HIDDEN if isinstance(error, NodeError) and ours else str(error))


async def through(answer: GraphResponse, first: HttpResponse) -> AsyncIterator[bytes]:
    yield first.body
    while (piece := await answer.next()) is not None:
        yield piece


async def one(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk

"""Send a response: one JSON body, or a stream. Only this module knows whether the response has begun.

Headers wait for the first packet, so that a rejected request gets its proper status. The exception is a
stream that was silent for so long that a ping had to begin it (`events.py`). Once a response has begun, an
error is an event: `data: {"error": ...}` or the API style's own, and the stream ends without [DONE]. In an
answer of bytes, such as audio, an error can only end the connection before the body is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aiohttp import web

from ovserve.access import current_request
from ovserve.errors import OvserveError, for_log, public
from ovserve.http.errors import API_STYLE
from ovserve.http.sse.events import EVENT_STREAM, EventStream, as_event
from ovserve.kinds.payload import HttpResponse
from ovserve.log import request_id
from ovserve.serving.graph_response import GraphResponse

log = logging.getLogger(__name__)


async def send_answer(request: web.Request, answer: GraphResponse) -> web.StreamResponse:
    style = request[API_STYLE]
    ids = dict.fromkeys(style.id_headers, request_id.get())
    first = None
    if not answer.streams and not (first := await answer.first()).more:
        return _whole(first, ids)  # nothing could begin it earlier
    async with EventStream(request, ids, pings=style.pings, early=answer.streams) as stream:
        try:
            first = first or await answer.first()
            if not first.more and not stream.begun:
                return _whole(first, ids)
            size = {} if first.size is None else {"Content-Length": str(first.size)}
            await stream.begin({**first.headers, **ids, **size}, first.content_type, first.status)
            stream.put(first.body if first.more else as_event(first.body))
            while first.more and await answer.pour(stream.put):
                await stream.drain()
        except OvserveError as exc:
            if not stream.begun:
                raise
            current_request().failure = exc
            ours = exc.kind == "internal"
            log.log(
                logging.ERROR if ours else logging.WARNING,
                "the stream ended: %s",
                exc,
                exc_info=for_log(exc) if ours else None,
            )
            if stream.begun and not stream.takes_events:
                return stream.abort()
            await stream.begin(ids, EVENT_STREAM)
            await stream.write(style.in_stream(public(exc)))
        return await stream.end()


def _whole(answer: HttpResponse, ids: Mapping[str, str]) -> web.Response:
    headers = {**answer.headers, **ids, "Content-Type": answer.content_type}
    return web.Response(body=answer.body, status=answer.status, headers=headers)

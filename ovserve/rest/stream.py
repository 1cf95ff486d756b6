"""Send an answer: one JSON body, or a stream. The one place that knows whether the response has begun.

The first packet is awaited before any header goes out, so everything that can be refused is refused with its
proper status. After that an error can only be an event: one `data: {"error": ...}` (or what the dialect has),
and the stream ends without [DONE].
"""

from __future__ import annotations

import logging

from aiohttp import web

from ovserve.errors import OvserveError, public
from ovserve.log import request_id
from ovserve.rest.errors import dialect_of
from ovserve.serving.servable import Answer

log = logging.getLogger(__name__)


async def send_answer(request: web.Request, answer: Answer) -> web.StreamResponse:
    first = await answer.first()
    dialect = dialect_of(request.path, request.query, request.headers)
    headers = {**first.headers, **dict.fromkeys(dialect.id_headers, request_id.get())}
    if not first.more:
        return web.Response(body=first.body, content_type=first.content_type, headers=headers)
    response = web.StreamResponse(headers=headers)
    response.content_type = first.content_type
    if first.content_type == "text/event-stream":
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Accel-Buffering"] = "no"  # else nginx keeps events back
    await response.prepare(request)
    try:
        await response.write(first.body)
        while (piece := await answer.next()) is not None:
            await response.write(piece)
    except OvserveError as exc:
        ours = exc.kind == "internal"
        log.log(
            logging.ERROR if ours else logging.WARNING,
            "the stream ended: %s",
            exc,
            exc_info=exc if ours else None,
        )
        await response.write(dialect.in_stream(public(exc)))
    await response.write_eof()
    return response

"""A stored response as a stream again; called by `serving/responses.py` for GET ?stream=true.

The log of a streamed response is its bytes, resumed at any event. Where there is none (a unary answer, a
server that died), the events are made anew from the object: the same order, each item's text in one delta.
"""

from __future__ import annotations

import msgspec

from ovserve.openai.common import DONE, encode
from ovserve.openai.responses.events import Events
from ovserve.openai.responses.objects import Failure, FunctionCall, Message, Reasoning, Response

_response = msgspec.json.Decoder(Response)
_END = b"\n\n"


def resume(log: bytes, after: int | None) -> bytes:
    """The part of a log that follows event number `after`; all of it for None."""
    if after is None or after < 0:
        return log
    at = 0
    for _ in range(after + 1):
        end = log.find(_END, at)
        if end < 0:
            return b""
        at = end + len(_END)
    return log[at:]


def events_of(body: bytes, after: int | None = None) -> bytes:
    """Events that give this response, numbered from 0.

    A client that already saw more events than that (its stream was cut by a crash) gets the last one only.
    """
    response = _response.decode(body)
    ended = response
    response = msgspec.structs.replace(
        ended, status="in_progress", output=[], usage=None, error=None, incomplete_details=None,
        completed_at=None,
    )  # fmt: skip
    events = Events()
    out = events.lifecycle("created", response) + events.lifecycle("in_progress", response)
    for index, item in enumerate(ended.output):
        out += events.opened(index, item)
        if isinstance(item, Message):
            text, logprobs = item.content[0].text, item.content[0].logprobs
        elif isinstance(item, Reasoning):
            text, logprobs = item.summary[0].text, []
        else:
            assert isinstance(item, FunctionCall)
            text, logprobs = item.arguments, []
        if text:
            out += events.delta(index, item, text, logprobs)
        out += events.closed(index, item)
    state = ended.status if ended.status in ("completed", "failed") else "incomplete"
    if after is not None and after >= events.next_number:
        events.next_number = after + 1
        return events.lifecycle(state, ended) + DONE
    return resume(out + events.lifecycle(state, ended) + DONE, after)


def failed(body: bytes, message: str) -> bytes:
    """The response of a server that ended while it ran, as it is told after a restart."""
    response = _response.decode(body)
    for item in response.output:
        item.status = "incomplete" if item.status == "in_progress" else item.status
    response.status, response.error = "failed", Failure("server_error", message)
    return encode(response)

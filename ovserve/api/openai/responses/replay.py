"""A stored response as a stream again; called by `services/responses/service.py` for GET ?stream=true.

The log of a streamed response is its bytes, resumed at any event. Where there is none (a unary answer), the
events are made anew from the object: the same order, each item's text in one delta. The log of a response
whose server died is as long as it was written down, and its object is made of that.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.openai.common import DONE, encode
from ovserve.api.openai.responses import objects
from ovserve.api.openai.responses.encoder import EventEncoder

_response = msgspec.json.Decoder(objects.Response)
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
    events = EventEncoder()
    out = events.lifecycle("created", response) + events.lifecycle("in_progress", response)
    for index, item in enumerate(ended.output):
        out += events.opened(index, item)
        place = objects.text_place(item)
        text = "" if place is None else getattr(*place)
        logprobs = item.content[0].logprobs if isinstance(item, objects.Message) else []
        if text:
            out += events.delta(index, item, text, logprobs)
        if isinstance(item, objects.McpCall) and item.status != "incomplete":
            out += events.called(index, item)
        if isinstance(item, objects.McpListTools) or (
            isinstance(item, objects.McpCall) and item.status != "incomplete"
        ):
            out += events.answered(index, item)
        out += events.closed(index, item)
    state = ended.status if ended.status in ("completed", "failed") else "incomplete"
    if after is not None and after >= events.next_number:
        events.next_number = after + 1
        return events.lifecycle(state, ended) + DONE
    return resume(out + events.lifecycle(state, ended) + DONE, after)


def replay(body: bytes, log: bytes | None, after: int | None, lost_message: str) -> bytes:
    """The events after number `after`, of a response that has ended.

    Where its server died, a client may have seen more events than were written down: it gets the last one
    again, with the next number.
    """
    if log is None:
        return events_of(body, after)
    if after is not None and after >= log.count(_END) - 2:  # the last event's number; [DONE] has none
        response = _response.decode(body)
        if response.error is not None and response.error.message == lost_message:
            events = EventEncoder()
            events.next_number = after + 1
            return events.lifecycle("failed", response) + DONE
    return resume(log, after) or DONE


def failed(body: bytes, message: str) -> bytes:
    """Return a response whose server ended while it ran: it has failed."""
    response = _response.decode(body)
    _fail(response, message)
    return encode(response)


def lost(body: bytes, log: bytes | None, message: str) -> tuple[bytes, bytes | None]:
    """Like `failed`, with the text as far as it was stored; also return the log with its end."""
    if log is None:
        return failed(body, message), None
    frames = log.split(_END)[:-1]
    if frames[-1] + _END == DONE:  # all was written down but that it had ended
        return encode(_ITEM_EVENT.decode(_data(frames[-2])).response), log
    response = _response.decode(body)
    output, open_ = _fold(frames)
    response.output = [output[index] for index in sorted(output)]
    _fail(response, message)
    events = EventEncoder()
    events.next_number = len(frames)
    out = b"".join(events.closed(index, output[index]) for index in sorted(open_))
    return encode(response), log + out + events.lifecycle("failed", response) + DONE


def _fail(response: objects.Response, message: str) -> None:
    for item in response.output:
        if not isinstance(item, objects.STATELESS) and item.status == "in_progress":
            item.status = "incomplete"
    response.status, response.error = "failed", objects.Failure("server_error", message)


class _ItemEvent(msgspec.Struct):
    """The fields that are read of an event."""

    type: str
    output_index: int = 0
    item: dict[str, Any] | None = None
    delta: str = ""
    logprobs: list[objects.Logprob] = []
    response: dict[str, Any] | None = None


_ITEM_EVENT = msgspec.json.Decoder(_ItemEvent)


def _data(frame: bytes) -> bytes:
    return frame[frame.index(b"data: ") + len(b"data: ") :]


def _fold(frames: list[bytes]) -> tuple[dict[int, objects.OutputItem], set[int]]:
    """The items by their output_index, and which of them are not done."""
    items: dict[int, objects.OutputItem] = {}
    open_: set[int] = set()
    for frame in frames:
        event = _ITEM_EVENT.decode(_data(frame))
        if event.item is not None:
            items[event.output_index] = _item(event.item)
            is_last = event.type == "response.output_item.done"
            open_ = open_ - {event.output_index} if is_last else open_ | {event.output_index}
        elif event.delta:
            _grow(items[event.output_index], event)
    return items, open_


def _item(fields: dict[str, Any]) -> objects.OutputItem:
    """An item as its event shows it; one that begins has no part yet."""
    if fields["type"] == "message" and not fields["content"]:
        fields["content"] = [objects.OutputText()]
    if fields["type"] == "reasoning" and not fields["summary"]:
        fields["summary"] = [objects.SummaryText()]
    item: objects.OutputItem = msgspec.convert(msgspec.to_builtins(fields), objects.OutputItem)
    return item


def _grow(item: objects.OutputItem, event: _ItemEvent) -> None:
    if (place := objects.text_place(item)) is not None:
        setattr(*place, getattr(*place) + event.delta)
    if isinstance(item, objects.Message):
        item.content[0].logprobs += event.logprobs

"""ResponseWriterCalculator: the last node. Parsed deltas become server-sent events, response events, or one
JSON body."""

from __future__ import annotations

from typing import cast

import msgspec

from ovserve.access import current_request
from ovserve.api.openai.endpoint import EventWriter, Writer, writes_events
from ovserve.api.openai.responses.objects import ResponseEvents
from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.kinds.payload import (
    CLAMPED_HEADER,
    EVENT_STREAM,
    REPETITION_HEADER,
    AnswerPacket,
    HttpResponse,
    report_headers,
)
from ovserve.kinds.text.endpoints import ENDPOINTS
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.request import GenerateRequest


class ResponseBuilder:
    """The answer to one request, packet by packet: a body, server-sent events, or response events."""

    def __init__(self, request: GenerateRequest) -> None:
        presentation = request.presentation
        self._requested = presentation.requested_max_tokens
        self._headers = report_headers(presentation.ignored_params, presentation.adapted)
        self._content_type = presentation.content_type  # of a stream
        self._started = False
        writer = ENDPOINTS[presentation.endpoint].writer(request)
        self._events: EventWriter | None = writer if writes_events(writer) else None
        self._writer = cast(Writer, writer)
        self._completion = None if presentation.stream else Completion()

    def feed(self, parsed: Parsed) -> AnswerPacket | None:
        """Return the packet to send for this delta, if any."""
        if parsed.last:
            parsed = with_other_usage(parsed)
        requested = self._requested
        if parsed.prompt_tokens and requested is not None and parsed.max_tokens < requested:
            self._headers[CLAMPED_HEADER] = f"max_tokens={parsed.max_tokens}"
        if self._events is not None:
            return self._event_packet(self._events, parsed)
        if self._completion is None:
            return self._chunk(parsed)
        self._completion.add(parsed)
        if not parsed.last:
            return None
        indices = [str(choice.index) for choice in self._completion.choices if choice.repetitive]
        if indices:
            self._headers[REPETITION_HEADER] = ",".join(indices)
        return HttpResponse(self._writer.whole(self._completion), headers=self._headers)

    def _chunk(self, parsed: Parsed) -> HttpResponse | bytes | None:
        chunk = self._writer.chunk(parsed)
        if self._started:
            return chunk or None
        self._started = True
        return HttpResponse(chunk, self._content_type, self._headers, more=True)

    def _event_packet(self, writer: EventWriter, parsed: Parsed) -> HttpResponse | ResponseEvents | None:
        events = writer.events(parsed)
        if self._started or events is None:
            return events
        self._started = True
        return HttpResponse(b"", EVENT_STREAM, self._headers, more=True, events=events)


def with_other_usage(parsed: Parsed) -> Parsed:
    """The last packet, with the tokens that calculators generated besides the answer."""
    prompt, generated = current_request().take_other()
    if not prompt and not generated:
        return parsed
    others = parsed.other_prompt_tokens + prompt
    return msgspec.structs.replace(parsed, other_prompt_tokens=others, tokens=parsed.tokens + generated)


@calculator("ResponseWriterCalculator")
class ResponseWriter(Calculator):
    request = Input("GENERATE", GenerateRequest)
    parsed = Input("PARSED", Parsed)
    http: Output[AnswerPacket] = Output("HTTP_RESPONSE_PAYLOAD", AnswerPacket)

    def open(self, cc: Context) -> None:
        self.reply: ResponseBuilder | None = None

    def process(self, cc: Context) -> None:
        request, parsed = cc[self.request], cc[self.parsed]
        if request is not None:
            self.reply = ResponseBuilder(request)
        if parsed is not None:
            assert self.reply is not None, "GENERATE comes at the first timestamp"
            packet = self.reply.feed(parsed)
            if packet is not None:
                cc.send(self.http, packet)
            if parsed.last:
                cc.finish()  # a node may have ended the answer before its model did

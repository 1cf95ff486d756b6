"""The nodes of an LLM graph, in the order of packets.

- HttpFrontendCalculator decodes the body for its endpoint and rejects a malformed one.
- RequestParserCalculator: template, limits and sampling turn a decoded body into one GenerateRequest.
- LLMExecutorCalculator: a GenerateRequest in, one delta per call out until the engine says finished.
- OutputParserCalculator: model text becomes content, reasoning and tool calls, by the request's dialects.
- ResponseWriterCalculator: parsed deltas become server-sent events, response events, or one JSON body.
- HttpLLMCalculator: OVMS's one-node form, made of the same parts. Kept so that an operator's existing
  graph.pbtxt loads unchanged; new graphs use the explicit nodes.

When the engine says ContextLengthExceeded, the error explains why the prompt does not fit: the tokens of each
of its parts, and what would fit. Counting costs nothing until then, and a prompt that is too long by its
bytes alone is never counted. Parts are counted by themselves, so the template's own tokens and the seams
between parts are what is left over.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import msgspec

from ovserve.access import current_request
from ovserve.api.openai.operation import EventWriter, TextEndpoint, Writer, writes_events
from ovserve.api.openai.responses.objects import ResponseEvents
from ovserve.api.openai.responses.request import ResponseContext
from ovserve.engine.admission.text import AdmittedText
from ovserve.engine.protocol.admission import context_limit
from ovserve.errors import ContextLengthExceeded, NotFound, OvserveError
from ovserve.graph import Calculator, Context, Input, Output, SidePacket, calculator
from ovserve.kinds.payload import (
    CLAMPED_HEADER,
    EVENT_STREAM,
    REPETITION_HEADER,
    AnswerPacket,
    HttpCalculator,
    HttpPayload,
    HttpResponse,
    report_headers,
)
from ovserve.kinds.resource import Transcriber
from ovserve.kinds.text.resource import ENDPOINTS, LlmCalculator, LlmResources, decode_within, parse
from ovserve.llm.grammar.rules import Costly, in_loop
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.output_parser import OutputParser as Parser
from ovserve.llm.request import Delta, GenerateRequest


@dataclass(frozen=True)
class DecodedRequest:
    """A body and the endpoint that understands it. A `large` one, or one with a schema that takes long, is
    decoded in a process of its own, when the request is made of it; to read `decoded` holds the event loop
    until then."""

    endpoint: TextEndpoint
    body: bytes
    large: bool = False
    context: ResponseContext | None = None

    @cached_property
    def decoded(self) -> Any:
        """The body as the endpoint's `decode` returns it. Raises InvalidArgument."""
        return decode_within(self.endpoint, self.body, self.context)

    async def to_request(self, llm: LlmResources) -> GenerateRequest:
        """Raises InvalidArgument."""
        if not self.large:
            with suppress(Costly), in_loop():
                return self.endpoint.to_request(self.decoded, llm.model)
        return await llm.bodies.run(True, parse, self.endpoint.name, self.body, llm.model, self.context)


def decode(payload: HttpPayload) -> DecodedRequest:
    """Raises NotFound for an endpoint that text generation does not have, InvalidArgument for a bad body."""
    endpoint = ENDPOINTS.get(payload.endpoint)
    if endpoint is None:
        raise NotFound(f"{payload.endpoint!r} is not served by this graph; it has {', '.join(ENDPOINTS)}")
    request = DecodedRequest(endpoint, payload.body, payload.head.large, payload.context)
    if request.large:
        return request
    try:
        with in_loop():
            _ = request.decoded  # what is wrong with it is raised by this node
    except Costly:
        return replace(request, large=True)
    return request


@calculator("HttpFrontendCalculator")
class HttpFrontend(HttpCalculator):
    endpoints = ENDPOINTS

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    decoded = Output("DECODED", DecodedRequest)

    def process(self, cc: Context) -> None:
        payload = cc[self.http]
        if payload is not None:
            cc.send(self.decoded, decode(payload))


TEMPLATE = "template"
PARAMS = {"completions": "prompt", "responses": "input"}  # the field of an endpoint's prompt


async def explain(
    error: ContextLengthExceeded, llm: LlmResources, request: GenerateRequest
) -> ContextLengthExceeded:
    """Return the error with numbers by part; unchanged without parts, or if the engine has died."""
    limit = context_limit(llm.model.max_length, None, request.sampling.max_context)
    error.param = PARAMS.get(request.presentation.endpoint, "messages")
    # Tokens of images are in no part.
    if request.parts is None or limit is None or request.images or not error.counted:
        return error
    parts = request.parts()
    try:
        whole, *each = await llm.engine.tokenize(
            [str(request.prompts[0]), *(text for _, text in parts)],
            add_special_tokens=request.add_special_tokens,
        )
    except OvserveError:
        return error
    total, room = len(whole), limit - 1  # one token is left for the answer
    counts = {name: len(ids) for (name, _), ids in zip(parts, each, strict=True)}
    counts[TEMPLATE] = max(0, total - sum(counts.values()))
    over = total - room
    fits = {name: n - over for name, n in counts.items() if name != TEMPLATE and n >= over}
    listed = ", ".join(f"{name} {n}" for name, n in counts.items())
    explained = ContextLengthExceeded(
        f"{error.message} By part: {listed}. {_advice(fits, over)}",
        param=error.param,
    )
    explained.details = {"max_length": limit, "prompt_tokens": total, "parts": counts, "would_fit": fits}
    return explained


def _advice(fits: dict[str, int], over: int) -> str:
    if not fits:
        return f"No part alone can be cut enough: together they must lose {over}."
    return "It would fit with " + ", or ".join(f"at most {n} of {name}" for name, n in fits.items()) + "."


@calculator("RequestParserCalculator")
class RequestParser(Calculator):
    runs_on = "loop"
    decoded = Input("DECODED", DecodedRequest)
    generate = Output("GENERATE", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)
    speech = SidePacket("STT_NODE_RESOURCES", object, optional=True)  # a Transcriber

    async def process(self, cc: Context) -> None:
        request = cc[self.decoded]
        if request is not None:
            llm = cc[self.llm]
            cc.send(
                self.generate,
                await llm.rendered(await request.to_request(llm), cast(Transcriber | None, cc[self.speech])),
            )


@calculator("LLMExecutorCalculator")
class LLMExecutor(LlmCalculator):
    """LOOPBACK asks for the next call; leaving it unsent ends the answer. Closing early aborts the engine."""

    runs_on = "loop"

    request = Input("GENERATE", GenerateRequest)
    tick_in = Input("LOOPBACK", bool)
    delta = Output("DELTA", Delta)
    tick_out = Output("LOOPBACK", bool)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    async def open(self, cc: Context) -> None:
        self.stream: AdmittedText | None = None

    async def process(self, cc: Context) -> None:
        request = cc[self.request]
        if request is not None:
            self.generate = request
        try:
            if request is not None:
                self.stream = await cc[self.llm].engine.generate(request)
            assert self.stream is not None, "LOOPBACK only ticks after a request"
            delta = await self.stream.next()
        except ContextLengthExceeded as exc:
            raise await explain(exc, cc[self.llm], self.generate) from exc
        current_request().count(0, delta.tokens)
        cc.send(self.delta, delta)
        if not delta.last:
            cc.send(self.tick_out, True)

    async def close(self, cc: Context) -> None:
        if self.stream is not None:
            self.stream.abort_if_running()


@calculator("OutputParserCalculator")
class OutputParser(Calculator):
    request = Input("GENERATE", GenerateRequest)
    delta = Input("DELTA", Delta)
    parsed = Output("PARSED", Parsed)

    def open(self, cc: Context) -> None:
        self.parser: Parser | None = None

    def process(self, cc: Context) -> None:
        request, delta = cc[self.request], cc[self.delta]
        if request is not None:
            self.parser = Parser(request.parsing, request.tools)
        if delta is not None:
            assert self.parser is not None, "GENERATE comes at the first timestamp"
            cc.send(self.parsed, self.parser.feed(delta))


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


@calculator("HttpLLMCalculator")
class HttpLLM(LlmCalculator, HttpCalculator):
    runs_on = "loop"
    endpoints = ENDPOINTS

    http = Input("HTTP_REQUEST_PAYLOAD", HttpPayload)
    tick_in = Input("LOOPBACK", bool)
    reply_out: Output[AnswerPacket] = Output("HTTP_RESPONSE_PAYLOAD", AnswerPacket)
    tick_out = Output("LOOPBACK", bool)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)
    speech = SidePacket("STT_NODE_RESOURCES", object, optional=True)  # a Transcriber
    # OVMS's pool of graphs needs it; runs are not pooled here, so it carries nothing.
    contexts = SidePacket("LLM_NODE_EXECUTION_CONTEXTS", object, optional=True)

    async def open(self, cc: Context) -> None:
        self.stream: AdmittedText | None = None

    async def process(self, cc: Context) -> None:
        payload = cc[self.http]
        if payload is not None:
            llm = cc[self.llm]
            request = await decode(payload).to_request(llm)
            self.generate = await llm.rendered(request, cast(Transcriber | None, cc[self.speech]))
            self.parser = Parser(self.generate.parsing, self.generate.tools)
            self.reply = ResponseBuilder(self.generate)
        try:
            if payload is not None:
                self.stream = await cc[self.llm].engine.generate(self.generate)
            assert self.stream is not None, "LOOPBACK only ticks after a request"
            delta = await self.stream.next()
        except ContextLengthExceeded as exc:
            raise await explain(exc, cc[self.llm], self.generate) from exc
        current_request().count(0, delta.tokens)
        packet = self.reply.feed(self.parser.feed(delta))
        if packet is not None:
            cc.send(self.reply_out, packet)
        if not delta.last:
            cc.send(self.tick_out, True)

    async def close(self, cc: Context) -> None:
        if self.stream is not None:
            self.stream.abort_if_running()

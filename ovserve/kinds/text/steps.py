"""The nodes between the frontend and the writer.

- RequestParserCalculator: template, limits and sampling turn a decoded body into one GenerateRequest.
- LLMExecutorCalculator: a GenerateRequest in, one delta per call out until the engine says finished.
- OutputParserCalculator: model text becomes content, reasoning and tool calls, by the request's dialects.
"""

from __future__ import annotations

from typing import cast

from ovserve.access import current_request
from ovserve.engine.admission.text import AdmittedText
from ovserve.errors import ContextLengthExceeded
from ovserve.graph import Calculator, Context, Input, Output, SidePacket, calculator
from ovserve.kinds.resource import Transcriber
from ovserve.kinds.text.http_frontend import DecodedRequest
from ovserve.kinds.text.lengths import explain
from ovserve.kinds.text.resource import LlmCalculator, LlmResources
from ovserve.llm.output import Parsed
from ovserve.llm.output_parser import OutputParser as Parser
from ovserve.llm.request import Delta, GenerateRequest


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

"""HttpLLMCalculator: OVMS's one-node form of an LLM graph, made of the same parts as the five-node form.

Kept so that an operator's existing graph.pbtxt loads unchanged; new graphs use the explicit nodes.
"""

from __future__ import annotations

from typing import cast

from ovserve.access import current_request
from ovserve.engine.admission.text import AdmittedText
from ovserve.errors import ContextLengthExceeded
from ovserve.graph import Context, Input, Output, SidePacket, calculator
from ovserve.kinds.payload import AnswerPacket, HttpCalculator, HttpPayload
from ovserve.kinds.resource import Transcriber
from ovserve.kinds.text.endpoints import ENDPOINTS
from ovserve.kinds.text.http_frontend import decode
from ovserve.kinds.text.resource import LlmCalculator, LlmResources
from ovserve.kinds.text.response_writer import ResponseBuilder
from ovserve.kinds.text.steps import explain
from ovserve.llm.output_parser import OutputParser


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
            self.parser = OutputParser(self.generate.parsing, self.generate.tools)
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

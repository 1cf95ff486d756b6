"""RequestParserCalculator: template, limits and sampling turn a decoded body into one GenerateRequest."""

from __future__ import annotations

from ovserve.graph import Calculator, Context, Input, Output, SidePacket, calculator
from ovserve.kinds.text.http_frontend import DecodedRequest
from ovserve.kinds.text.resource import LlmResources
from ovserve.llm.request import GenerateRequest


@calculator("RequestParserCalculator")
class RequestParser(Calculator):
    runs_on = "loop"
    decoded = Input("DECODED", DecodedRequest)
    generate = Output("GENERATE", GenerateRequest)
    llm = SidePacket("LLM_NODE_RESOURCES", LlmResources)

    async def process(self, cc: Context) -> None:
        request = cc[self.decoded]
        if request is not None:
            llm = cc[self.llm]
            cc.send(self.generate, await llm.rendered(await request.to_request(llm)))

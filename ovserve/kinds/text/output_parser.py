"""OutputParserCalculator: model text becomes content, reasoning and tool calls, by the request's dialects."""

from __future__ import annotations

from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.llm.output import Parsed
from ovserve.llm.output_parser import OutputParser as Parser
from ovserve.llm.request import Delta, GenerateRequest


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

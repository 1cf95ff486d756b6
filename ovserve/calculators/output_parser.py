"""OutputParserCalculator: model text becomes content (and, with a dialect, reasoning and tool calls)."""

from __future__ import annotations

from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.llm.output import OutputParser as Parser
from ovserve.llm.output import Parsed
from ovserve.llm.request import Delta


@calculator("OutputParserCalculator")
class OutputParser(Calculator):
    delta = Input("DELTA", Delta)
    parsed = Output("PARSED", Parsed)

    def open(self, cc: Context) -> None:
        self.parser = Parser()

    def process(self, cc: Context) -> None:
        delta = cc[self.delta]
        if delta is not None:
            cc.send(self.parsed, self.parser.feed(delta))

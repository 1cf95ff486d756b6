"""AnswerAppendCalculator: text of another node at the end of each choice, such as the sources of an answer.

| port | type | |
|---|---|---|
| input `GENERATE` | `GenerateRequest` | |
| input `PARSED` | `Parsed` | from OutputParser |
| input `TEXT` | `str` | one packet, at the first timestamp; without it nothing is appended |
| output `PARSED` | `Parsed` | |

Nothing is appended to a choice that ended with tool calls, that was filtered, or whose format the request
prescribes: `response_format` with text behind it would not be the format.
"""

from __future__ import annotations

import msgspec

from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.llm.output import Content, Parsed
from ovserve.llm.request import GenerateRequest

ENDS = ("stop", "length")


@calculator("AnswerAppendCalculator")
class AnswerAppend(Calculator):
    request = Input("GENERATE", GenerateRequest)
    parsed = Input("PARSED", Parsed)
    text = Input("TEXT", str)
    appended = Output("PARSED", Parsed)

    def __init__(self) -> None:
        self._text, self._formatted = "", False

    def process(self, cc: Context) -> None:
        self._text = cc[self.text] or self._text
        request, parsed = cc[self.request], cc[self.parsed]
        if request is not None and request.sampling.constraint is not None:
            self._formatted = True
        if parsed is None:
            return
        if self._text and not self._formatted and parsed.finish_reason in ENDS:
            parsed = msgspec.structs.replace(parsed, parts=(*parsed.parts, Content(self._text)))
        cc.send(self.appended, parsed)

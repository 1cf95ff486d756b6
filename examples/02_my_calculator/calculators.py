"""MaskDigitsCalculator: replaces every digit of an answer by `#`. The author's own node of `graph.pbtxt`.

The server imports this file because it is next to `graph.pbtxt` and is called `calculators.py`. Serve it:

    .venv/bin/ovserve serve --rest_port 8000 --model_name masked --model_path examples/02_my_calculator

`map_text` reaches all text that the model wrote: content, reasoning, the arguments of tool calls and the
tokens of logprobs. A rule about single characters needs no memory. A rule about words does, because one word
may arrive in two packets: `TextMap` of `ovserve.calculators.library` holds back the tail of the text.
"""

from __future__ import annotations

import re

from ovserve.calculators.library import Calculator, Context, Input, Output, Parsed, calculator

DIGIT = re.compile(r"\d")


@calculator("MaskDigitsCalculator")
class MaskDigits(Calculator):
    """One packet out for one packet in; counters and the finish reason go through untouched."""

    parsed = Input("PARSED", Parsed)
    masked = Output("PARSED", Parsed)

    def process(self, cc: Context) -> None:
        parsed = cc[self.parsed]
        if parsed is not None:
            # Arguments of calls are JSON and must stay it, so their digits become another digit.
            hidden = parsed.map_text(
                lambda text: DIGIT.sub("#", text), arguments=lambda text: DIGIT.sub("1", text)
            )
            cc.send(self.masked, hidden)  # a new packet: what came in may have other readers

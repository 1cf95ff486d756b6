"""RepeatableCalculator: every answer is the model's most likely one, whatever the request asks. A node of
the `graph.pbtxt` next to it; the server imports this file because it has this name and place.

`examples/02_my_calculator/` changes what comes out of the model, this changes what goes in.
"""

from __future__ import annotations

import msgspec

from ovserve.graph import Calculator, Context, Input, Output, calculator
from ovserve.llm.request import GREEDY_TEMPERATURE, GenerateRequest


@calculator("RepeatableCalculator")
class Repeatable(Calculator):
    """One request out for one request in."""

    asked = Input("GENERATE", GenerateRequest)
    settled = Output("GENERATE", GenerateRequest)

    def process(self, cc: Context) -> None:
        asked = cc[self.asked]
        if asked is not None:
            # A packet may have other readers, so it is never changed in place.
            sampling = msgspec.structs.replace(asked.sampling, temperature=GREEDY_TEMPERATURE)
            cc.send(self.settled, msgspec.structs.replace(asked, sampling=sampling))

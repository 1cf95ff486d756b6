"""GateCalculator: lets a packet through if another stream allows it at the same timestamp.

| port | type | |
|---|---|---|
| input `IN` | any | |
| input `ALLOW` | `bool` | one for each packet of `IN`; a missing one does not allow |
| output `OUT` | any | |

A packet that is not allowed is dropped, and the answer may then never come. With the option `message` it is a
400 with `code: content_filter` and this message. Both count as the node's event `closed`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.errors import ContentFiltered
from ovserve.graph import Calculator, Context, Input, Output, calculator


class GateOptions(msgspec.Struct, frozen=True):
    message: str = ""


@calculator("GateCalculator")
class Gate(Calculator):
    options_type = GateOptions

    given: Input[Any] = Input("IN", object)
    allow = Input("ALLOW", bool)
    passed: Output[Any] = Output("OUT", object)

    def process(self, cc: Context) -> None:
        value = cc[self.given]
        if value is None:
            return
        if cc[self.allow]:
            cc.send(self.passed, value)
            return
        cc.count("closed")
        if message := cc.options(GateOptions).message:
            raise ContentFiltered(message)

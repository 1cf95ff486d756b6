"""CounterCalculator: counts packets for `/metrics`.

| port | type | |
|---|---|---|
| input `IN` | any | |
| output `OUT` | any, optional | the same packets |

Option: `event`, the label of `ovserve_node_events_total{node=...,event=...}`, "packets" by default. A node of
one's own counts with `cc.count("event")`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ovserve.graph import Calculator, Context, Input, Output, calculator


class CounterOptions(msgspec.Struct, frozen=True):
    event: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")] = "packets"


@calculator("CounterCalculator")
class PacketCounter(Calculator):
    options_type = CounterOptions

    given: Input[Any] = Input("IN", object)
    passed: Output[Any] = Output("OUT", object, optional=True)

    def process(self, cc: Context) -> None:
        value = cc[self.given]
        if value is not None:
            cc.count(cc.options(CounterOptions).event)
            cc.send(self.passed, value)

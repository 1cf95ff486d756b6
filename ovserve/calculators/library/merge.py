"""MergeCalculator: packets of several streams become one stream, in the order in which they come.

| port | type |
|---|---|
| inputs `IN:0`, `IN:1`, ... | any |
| output `OUT` | any |

For branches of which each request takes one, or several one after the other. It needs no input stream
handler: every input is its own sync set. Timestamps of the output count from 0.
"""

from __future__ import annotations

from typing import Any

from ovserve.graph import Calculator, Context, Contract, Input, Node, Output, calculator


@calculator("MergeCalculator")
class Merge(Calculator):
    immediate = True

    merged: Output[Any] = Output("OUT", object)

    def __init__(self) -> None:
        self._next = 0

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        if not any(end.tag == "IN" for end in node.inputs):
            raise node.error("a merge needs inputs IN:0, IN:1 and so on", "input_stream")
        count = max(end.index for end in node.inputs if end.tag == "IN") + 1
        inputs: tuple[Input[Any], ...] = tuple(Input(f"IN:{i}") for i in range(count))
        return Contract(inputs, (cls.merged,))

    def process(self, cc: Context) -> None:
        for value in cc.values.values():
            cc.send(self.merged, value, self._next)
            self._next += 1

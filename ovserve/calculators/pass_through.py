"""PassThroughCalculator: each input goes to the output of the same tag and index, untouched."""

from __future__ import annotations

from typing import Any

from ovserve.graph import Calculator, Context, Contract, Input, Node, Output, calculator


@calculator("PassThroughCalculator")
class PassThrough(Calculator):
    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        inputs: tuple[Input[Any], ...] = tuple(Input(f"{e.tag}:{e.index}") for e in node.inputs)
        return Contract(inputs, tuple(Output(f"{p.tag}:{p.index}", optional=True) for p in inputs))

    async def process(self, cc: Context) -> None:
        for source, target in zip(cc.contract.inputs, cc.contract.outputs, strict=True):
            if source in cc.values:
                cc.send(target, cc[source])
